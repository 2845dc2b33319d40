"""The engine for machines of a cloud: Ray's launcher with the cloud's provider and its second autoscaler.

What the launcher does not do, or not safely, is done around it by an account: before, what it would make with too many rights;
afterwards, the proof that nothing is left.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from regrow.infra.clusters.clouds import aws, groups
from regrow.infra.clusters.clouds.aws import Account
from regrow.infra.clusters.clouds.aws_account import AwsAccount
from regrow.infra.clusters.description import Aws
from regrow.infra.clusters.folder import Folder
from regrow.infra.clusters.launcher import Launcher
from regrow.infra.clusters.machines import Remote
from regrow.infra.clusters.prices import Prices
from regrow.infra.clusters.provider import Machine, Offer
from regrow.infra.machine import private_files
from regrow.tasks.errors import RegrowError


class AwsEngine:
    """A cluster on EC2; see Provider."""

    def __init__(self, cluster: Aws) -> None:
        self.cluster = cluster
        self._prices = Prices(Path(cluster.prices) if cluster.prices else None)
        self._folder = Folder(cluster.name)
        self._kept = self._folder.path / "account.json"
        """What there is in the account; as long as it is here, something may be there."""

    def plan(self) -> list[Offer]:
        """See Provider."""
        return groups.offers(self.cluster, self._prices)

    def files(self) -> dict[str, bytes]:
        """See Provider."""
        return {"launcher.yaml": self._launcher(None).written()}

    def check(self) -> None:
        """See Provider."""
        from regrow.infra.clusters import private

        private.validate(self._launcher(None).file())

    def up(self, say: Callable[[str], None]) -> None:
        """See Provider."""
        self.check()
        if any(one.role == "head" and one.state in ("pending", "running") for one in self.status()):
            say(f"the cluster {self.cluster.name} is up; what is missing of it is brought up by its head")
            return
        self._folder.make()
        account = AwsAccount(self.cluster).prepare(self._public_key(), say)
        private_files.replace(self._kept, account.written())
        self._launcher(account).up(say)

    def status(self) -> list[Machine]:
        """See Provider."""
        return AwsAccount(self.cluster).machines()

    def command(self, words: Sequence[str], *, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """See Provider."""
        return self._head().run(self._launcher(None).node(f"exec {shlex.join(words)}"), stdin=stdin)

    def tunnel(self, port: int) -> AbstractContextManager[int]:
        """See Provider."""
        return self._head().tunnel(port)

    def down(self, say: Callable[[str], None]) -> None:
        """See Provider."""
        account = AwsAccount(self.cluster)
        there = len(account.machines())
        account.end(say)
        self._kept.unlink(missing_ok=True)
        say(f"nothing of the cluster {self.cluster.name} is left in {self.cluster.region}; it had {there} machines")

    def _launcher(self, account: Account | None) -> Launcher:
        return Launcher(self.cluster, aws.site(self.cluster, self._prices, str(self._key), account))

    @property
    def _key(self) -> Path:
        return self._folder.path / "key"

    def _public_key(self) -> bytes:
        """Of the cluster's own key, which is made with the first use: the head gets a copy, and is to have no other."""
        if not self._key.exists():
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", aws.called(self.cluster.name), "-f", str(self._key)]
            try:
                subprocess.run(words, check=True, capture_output=True)
            except FileNotFoundError:
                raise RegrowError("there is no program ssh-keygen here; install OpenSSH's client") from None
        return self._key.with_suffix(".pub").read_bytes()

    def _head(self) -> Remote:
        for one in self.status():
            if one.role == "head" and one.state == "running":
                known = self._folder.path / "known_hosts"
                return Remote(address=one.address, user=self.cluster.user or "ubuntu", key=self._key, known_hosts=known)
        raise RegrowError(f"the cluster {self.cluster.name} has no head that runs; `regrow cluster up` makes one")
