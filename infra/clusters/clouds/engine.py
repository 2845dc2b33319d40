"""The engine for cloud machines: Ray's launcher with the cloud's provider and Ray's second
autoscaler.

The account does what the launcher does not do, or not safely: it creates beforehand what the
launcher would create with too many rights, and proves afterwards that nothing is left.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from regrow.infra.clusters import private
from regrow.infra.clusters.clouds import aws, azure, gcp, groups
from regrow.infra.clusters.clouds.aws import Account
from regrow.infra.clusters.clouds.aws_account import AwsAccount
from regrow.infra.clusters.clouds.fleet_account import FleetAccount
from regrow.infra.clusters.description import Aws, Azure, Gcp, OnVms
from regrow.infra.clusters.folder import Folder
from regrow.infra.clusters.launcher import Launcher, LauncherEngine
from regrow.infra.clusters.machines import Remote
from regrow.infra.clusters.prices import Prices
from regrow.infra.clusters.provider import Machine, Offer, offers
from regrow.tasks.errors import RegrowError


class _VmEngine(LauncherEngine):
    """What all clouds have in common; see Provider."""

    cluster: OnVms

    def __init__(self, cluster: OnVms) -> None:
        self.cluster = cluster
        self._prices = Prices.of_cluster(cluster)
        self._folder = Folder(cluster.name)
        self._key = self._folder.path / "key"

    def plan(self) -> list[Offer]:
        return offers(
            self.cluster.head.type,
            "on-demand",
            ((one.type, one.market, one.most) for one in self.cluster.workers),
            lambda kind, market: self._prices.of(kind, self.cluster.region, market or "on-demand"),
        )

    def check(self) -> None:
        private.validate(self.launcher().file())

    def up(self, say: Callable[[str], None]) -> None:
        self.check()
        if self.is_up(say):
            return
        self._folder.make()
        self._make_key()
        self._prepared(say).up(say)

    def _prepared(self, say: Callable[[str], None]) -> Launcher:
        """Create in the account what the cluster needs besides machines. Returns the launcher."""
        return self.launcher()

    def _make_key(self) -> None:
        """Create the cluster's SSH key on first use: a separate one, as the head gets a copy."""
        if not self._key.exists():
            name = f"regrow-{self.cluster.name}"
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]
            try:
                subprocess.run([*words, self._key], check=True, capture_output=True)
            except FileNotFoundError:
                raise RegrowError(
                    "there is no program ssh-keygen here; install OpenSSH's client"
                ) from None

    def _public_key(self) -> str:
        """Return the public key, or a placeholder before it exists, for a file to be read."""
        file = self._key.with_suffix(".pub")
        if file.exists():
            return file.read_text().strip()
        return "the cluster's public key, made by `regrow cluster up`"

    def head(self) -> Remote:
        for one in self.status():
            if one.role == "head" and one.state == "running":
                return Remote(
                    address=one.address,
                    user=groups.user(self.cluster),
                    key=self._key,
                    known_hosts=self._folder.path / "known_hosts",
                )
        raise RegrowError(
            f"the cluster {self.cluster.name} has no head that runs; `regrow cluster up` makes one"
        )


class AwsEngine(_VmEngine):
    """A cluster on EC2; see Provider."""

    cluster: Aws

    def status(self) -> list[Machine]:
        return [*AwsAccount(self.cluster).machines(), *FleetAccount(self.cluster).machines()]

    def down(self, say: Callable[[str], None]) -> None:
        account, there = AwsAccount(self.cluster), len(self.status())
        FleetAccount(self.cluster).end(say)
        account.end(say)
        say(
            f"nothing of the cluster {self.cluster.name} is left in {self.cluster.region}; it had"
            f" {there} machines"
        )

    def _prepared(self, say: Callable[[str], None]) -> Launcher:
        return self.launcher(AwsAccount(self.cluster).prepare(self._public_key().encode(), say))

    def launcher(self, account: Account | None = None) -> Launcher:
        site = aws.site(self.cluster, self._prices, str(self._key), account)
        return Launcher(self.cluster, site)


class RayEngine(_VmEngine):
    """A cluster on GCP or Azure, where Ray's own provider does everything; see Provider."""

    cluster: Gcp | Azure

    def status(self) -> list[Machine]:
        return private.machines(self.launcher().file())

    def down(self, say: Callable[[str], None]) -> None:
        launcher = self.launcher()
        launcher.down(say)
        if left := private.machines(launcher.file()):
            named = ", ".join(one.address for one in left)
            raise RegrowError(
                f"of the cluster {self.cluster.name} this is left in {self.cluster.region}: {named}"
            )
        say(f"no machine of the cluster {self.cluster.name} is left in {self.cluster.region}")

    def launcher(self) -> Launcher:
        key = str(self._key)
        match self.cluster:
            case Gcp():
                site = gcp.site(self.cluster, self._prices, key, self._public_key())
            case Azure():
                site = azure.site(self.cluster, self._prices, key)
        return Launcher(self.cluster, site)
