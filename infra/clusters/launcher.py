"""Clusters that Ray's launcher brings up (`ray up`): the file that it is given, and how it is run.

What differs between the clouds and machines of one's own is in a `Site`: the sections `provider` and `auth`, the types of
nodes, and what a machine does at its end.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from regrow.infra.clusters import shipping
from regrow.infra.clusters.description import Cluster
from regrow.infra.clusters.folder import Folder
from regrow.infra.clusters.node import DASHBOARD_PORT, folder
from regrow.infra.clusters.private import RAY
from regrow.infra.machine import private_files
from regrow.tasks.errors import RegrowError

Json = dict[str, Any]
GCS_PORT = 6379
_SAID = re.compile(r"\x1b\[[0-9;]*m")
"""Colours in the launcher's output."""
_STEP = re.compile(r"\[\d+/\d+\] (?!No )(.*)")
"""One of the launcher's steps, unless there is nothing to do in it."""
_SHOWN = 15
"""Lines of the launcher's output that are told when it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What a launcher file has of one cloud."""

    provider: Json
    auth: Json
    node_types: Json = field(default_factory=dict)
    """Empty where machines have no types; else `head` is one of them."""
    most: int
    """How many workers there may be."""
    autoscaler_v2: bool = True
    then: str | None = None
    """What a machine runs at its end, such as what turns it off."""
    worker_arguments: tuple[str, ...] = ()
    """Of `ray start` on workers; in words that a shell may expand."""
    initialization: tuple[str, ...] = ()
    """Commands before those of the cluster file."""


class Launcher:
    """Ray's launcher for one cluster."""

    def __init__(self, cluster: Cluster, site: Site) -> None:
        self.cluster, self.site = cluster, site
        self.folder = Folder(cluster.name)
        self.there = folder(cluster.name).relative_to(Path.home()).as_posix()
        """The folder on the machines, below a home."""

    def python(self) -> str:
        """The interpreter on the machines, for a shell there."""
        return shlex.quote(self.cluster.python) if self.cluster.python else f'"$HOME"/{self.there}/env/bin/python'

    def node(self, rest: str) -> str:
        """A command for a shell on one of the machines."""
        return f"{self.python()} -m regrow.infra.clusters.node {self.cluster.name} {rest}"

    def file(self) -> Json:
        """What the launcher is given. Without secrets, and the same each time."""
        cluster, site = self.cluster, self.site
        then = f"--then {shlex.quote(site.then)} " if site.then else ""
        types = {"available_node_types": site.node_types, "head_node_type": "head"} if site.node_types else {}
        head = (
            f"--head --port={GCS_PORT} --num-cpus=0 --num-gpus=0 --dashboard-host=127.0.0.1 --dashboard-port={DASHBOARD_PORT} "
            "--include-log-monitor=false --disable-usage-stats --autoscaling-config=~/ray_bootstrap_config.yaml"
        )
        worker = " ".join((f"--address=$RAY_HEAD_IP:{GCS_PORT} --include-log-monitor=false", *site.worker_arguments))
        return {
            "cluster_name": cluster.name, "max_workers": site.most, "idle_timeout_minutes": cluster.idle / 60,
            "provider": site.provider, "auth": site.auth, **types,
            "file_mounts": self._mounts(), "initialization_commands": list(site.initialization),
            "setup_commands": [*cluster.setup, *self.environment_commands()],
            "head_setup_commands": [], "worker_setup_commands": [],
            "head_start_ray_commands": [self.node(f"start head --idle {cluster.idle:g} {then}-- {head}")],
            "worker_start_ray_commands": [self.node(f"start worker {then}-- {worker}")],
        }

    def written(self) -> bytes:
        """The file's bytes."""
        text: bytes = yaml.safe_dump(self.file(), sort_keys=False, width=1000, encoding="utf-8")
        return text

    def up(self, say: Callable[[str], None]) -> None:
        """Brings up what is missing. Raises RegrowError, with what the launcher said, and SpecError for `env`."""
        self._ship()
        self.run("up", "-y", "--no-config-cache", say=say)

    def down(self, say: Callable[[str], None]) -> None:
        """Has the launcher end the cluster."""
        self.run("down", "-y", say=say)

    def run(self, verb: str, *options: str, say: Callable[[str], None]) -> None:
        """Runs `ray VERB` on the file."""
        file = self.folder.make().engine / "launcher.yaml"
        private_files.replace(file, self.written())
        with self.folder.log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [*RAY, verb, *options, str(file)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", env=self.environment(),
            )
            lines: list[str] = []
            for line in process.stdout or ():
                plain = _SAID.sub("", line).rstrip()
                log.write(f"{plain}\n")
                log.flush()
                lines.append(plain)
                if step := _STEP.search(plain):
                    say(f"  {step[1]}")
            if process.wait() != 0:
                told = "\n".join(line for line in lines[-_SHOWN:] if line)
                where = f"all of it is in {self.folder.log}"
                raise RegrowError(f"`ray {verb}` of the cluster {self.cluster.name} failed ({where}):\n{told}")

    def environment(self) -> Mapping[str, str]:
        """Of the launcher's own process."""
        version = "1" if self.site.autoscaler_v2 else "0"
        return {**os.environ, "RAY_UP_enable_autoscaler_v2": version, "RAY_USAGE_STATS_ENABLED": "0"}

    def _mounts(self) -> Json:
        here, there = self.folder.path, f"~/{self.there}"
        found = {f"{there}/token": str(here / "token"), f"{there}/environment": str(here / "environment")}
        found |= {f"{there}/{one}": str(here / "engine" / one) for one in self.shipped()}
        mounts: dict[str, str] = getattr(self.cluster, "mounts", {})
        return {**found, **mounts}

    def shipped(self) -> dict[str, bytes]:
        """The files of which the environment on the machines is made; none where they have one already."""
        if self.cluster.python is not None:
            return {}
        lock = Path(self.cluster.lock) if self.cluster.lock else None
        return {shipping.wheel_name(): shipping.wheel(), "requirements.txt": shipping.requirements(lock)}

    def environment_commands(self) -> list[str]:
        """What a machine runs to have its environment made, in a shell."""
        if self.cluster.python is not None:
            return []
        return [shipping.environment_script(self.there, self._stamp())]

    def _stamp(self) -> str:
        """Changes with what the environment is made of."""
        return hashlib.sha256(b"".join(self.shipped().values())).hexdigest()[:16]

    def _ship(self) -> None:
        """Writes what the machines are given."""
        _ = self.folder.token_file
        self.folder.environment_file(self.cluster)
        for name, content in self.shipped().items():
            private_files.replace(self.folder.engine / name, content)
