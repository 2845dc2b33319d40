"""The engine for cloud machines: Ray's launcher with the cloud's provider and Ray's second
autoscaler.

The account does what the launcher does not do, or not safely: it creates beforehand what the
launcher would create with too many rights, and proves afterwards that nothing is left.
"""

from __future__ import annotations

import shlex
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from regrow.infra.clusters import private
from regrow.infra.clusters.clouds import aws, azure, gcp, groups
from regrow.infra.clusters.clouds.aws_account import AwsAccount
from regrow.infra.clusters.description import Aws, Azure, Gcp, OnVms
from regrow.infra.clusters.folder import Folder
from regrow.infra.clusters.launcher import Launcher
from regrow.infra.clusters.machines import Remote
from regrow.infra.clusters.prices import Prices
from regrow.infra.clusters.provider import Machine, Offer
from regrow.infra.machine import private_files
from regrow.tasks.errors import RegrowError


class _VmEngine(ABC):
    """What all clouds have in common; see Provider."""

    def __init__(self, cluster: OnVms) -> None:
        self.cluster = cluster
        self._prices = Prices(Path(cluster.prices) if cluster.prices else None)
        self._folder = Folder(cluster.name)
        self._key = self._folder.path / "key"

    @abstractmethod
    def _launcher(self) -> Launcher:
        """Return the launcher, with what is known of the account so far."""

    @abstractmethod
    def status(self) -> list[Machine]:
        """See Provider."""

    def plan(self) -> list[Offer]:
        """See Provider."""
        return groups.offers(self.cluster, self._prices)

    def files(self) -> dict[str, bytes]:
        """See Provider."""
        return {"launcher.yaml": self._launcher().written()}

    def check(self) -> None:
        """See Provider."""
        private.validate(self._launcher().file())

    def up(self, say: Callable[[str], None]) -> None:
        """See Provider."""
        self.check()
        if any(one.role == "head" and one.state in ("pending", "running") for one in self.status()):
            say(
                f"the cluster {self.cluster.name} is up; what is missing of it is brought up by its"
                " head"
            )
            return
        self._folder.make()
        self._make_key()
        self._prepared(say).up(say)

    def _prepared(self, say: Callable[[str], None]) -> Launcher:
        """Create in the account what the cluster needs besides machines. Returns the launcher."""
        return self._launcher()

    def command(
        self, words: Sequence[str], *, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """See Provider."""
        return self._head().run(self._launcher().node(f"exec {shlex.join(words)}"), stdin=stdin)

    def hold(self, words: Sequence[str]) -> AbstractContextManager[IO[bytes]]:
        """See Provider."""
        return self._head().hold(self._launcher().node(f"exec {shlex.join(words)}"))

    def tunnel(self, port: int) -> AbstractContextManager[int]:
        """See Provider."""
        return self._head().tunnel(port)

    def _make_key(self) -> None:
        """Create the cluster's SSH key on the first use. It is a separate key because the head gets
        a copy.
        """
        if not self._key.exists():
            words = [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-C",
                f"regrow-{self.cluster.name}",
                "-f",
                str(self._key),
            ]
            try:
                subprocess.run(words, check=True, capture_output=True)
            except FileNotFoundError:
                raise RegrowError(
                    "there is no program ssh-keygen here; install OpenSSH's client"
                ) from None

    def _public_key(self) -> str:
        """Return the public key, or a placeholder before it exists, as in a file for the user to
        read.
        """
        file = self._key.with_suffix(".pub")
        return (
            file.read_text().strip()
            if file.exists()
            else "the cluster's public key, made by `regrow cluster up`"
        )

    def _head(self) -> Remote:
        for one in self.status():
            if one.role == "head" and one.state == "running":
                known = self._folder.path / "known_hosts"
                return Remote(
                    address=one.address,
                    user=self.cluster.user or "ubuntu",
                    key=self._key,
                    known_hosts=known,
                )
        raise RegrowError(
            f"the cluster {self.cluster.name} has no head that runs; `regrow cluster up` makes one"
        )


class AwsEngine(_VmEngine):
    """A cluster on EC2; see Provider."""

    cluster: Aws

    def __init__(self, cluster: Aws) -> None:
        super().__init__(cluster)
        self._kept = self._folder.path / "account.json"
        """File with the resources in the account. While it exists, some may exist."""

    def status(self) -> list[Machine]:
        """See Provider."""
        return AwsAccount(self.cluster).machines()

    def down(self, say: Callable[[str], None]) -> None:
        """See Provider."""
        account = AwsAccount(self.cluster)
        there = len(account.machines())
        account.end(say)
        self._kept.unlink(missing_ok=True)
        say(
            f"nothing of the cluster {self.cluster.name} is left in {self.cluster.region}; it had"
            f" {there} machines"
        )

    def _prepared(self, say: Callable[[str], None]) -> Launcher:
        account = AwsAccount(self.cluster).prepare(self._public_key().encode(), say)
        private_files.replace(self._kept, account.written())
        return Launcher(self.cluster, aws.site(self.cluster, self._prices, str(self._key), account))

    def _launcher(self) -> Launcher:
        return Launcher(self.cluster, aws.site(self.cluster, self._prices, str(self._key), None))


class RayEngine(_VmEngine):
    """A cluster on GCP or Azure, where Ray's own provider does everything; see Provider."""

    cluster: Gcp | Azure

    def status(self) -> list[Machine]:
        """See Provider."""
        return private.machines(self._launcher().file())

    def down(self, say: Callable[[str], None]) -> None:
        """See Provider."""
        launcher = self._launcher()
        launcher.down(say)
        if left := private.machines(launcher.file()):
            named = ", ".join(one.address for one in left)
            raise RegrowError(
                f"of the cluster {self.cluster.name} this is left in {self.cluster.region}: {named}"
            )
        say(f"no machine of the cluster {self.cluster.name} is left in {self.cluster.region}")

    def _launcher(self) -> Launcher:
        key = str(self._key)
        match self.cluster:
            case Gcp():
                site = gcp.site(self.cluster, self._prices, key, self._public_key())
            case Azure():
                site = azure.site(self.cluster, self._prices, key)
        return Launcher(self.cluster, site)
