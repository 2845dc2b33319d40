"""Clusters started by Ray's launcher (`ray up`): the launcher file, and how the launcher is run.

A `Site` has what differs between clouds and the user's machines: the sections `provider` and
`auth`, the types of nodes, and what a machine does at its end.
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
"""A step in the launcher's output, unless it has nothing to do."""
_SHOWN = 15
"""Lines of the launcher's output that are shown if it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The parts of a launcher file that depend on the cloud."""

    provider: Json
    auth: Json
    node_types: Json = field(default_factory=dict)
    """Empty if machines have no types; else `head` is one of them."""
    most: int
    """Most workers."""
    autoscaler_v2: bool = True
    then: str | None = None
    """Command that a machine runs at its end, for example to turn itself off."""
    worker_arguments: tuple[str, ...] = ()
    """Arguments of `ray start` on workers, as shell words, unquoted."""
    initialization: tuple[str, ...] = ()
    """Commands to run before those of the cluster file."""


class Launcher:
    """Ray's launcher for one cluster."""

    def __init__(self, cluster: Cluster, site: Site) -> None:
        self.cluster, self.site = cluster, site
        self.folder = Folder(cluster.name)
        self.there = folder(cluster.name).relative_to(Path.home()).as_posix()
        """The folder on the machines, relative to the home folder."""

    def python(self) -> str:
        """Return the interpreter on the machines, quoted for their shell."""
        return (
            shlex.quote(self.cluster.python)
            if self.cluster.python
            else f'"$HOME"/{self.there}/env/bin/python'
        )

    def node(self, rest: str) -> str:
        """Return a `clusters.node` command for a shell on one of the machines."""
        return f"{self.python()} -m regrow.infra.clusters.node {self.cluster.name} {rest}"

    def file(self) -> Json:
        """Return the launcher file's content, without secrets and always in the same order."""
        cluster, site = self.cluster, self.site
        then = f"--then {shlex.quote(site.then)} " if site.then else ""
        types = (
            {"available_node_types": site.node_types, "head_node_type": "head"}
            if site.node_types
            else {}
        )
        head = (
            f"--head --port={GCS_PORT} --num-cpus=0 --num-gpus=0 --dashboard-host=127.0.0.1"
            f" --dashboard-port={DASHBOARD_PORT} --include-log-monitor=false --disable-usage-stats"
            " --autoscaling-config=~/ray_bootstrap_config.yaml"
        )
        worker = " ".join(
            (
                f"--address=$RAY_HEAD_IP:{GCS_PORT} --include-log-monitor=false",
                *site.worker_arguments,
            )
        )
        return {
            "cluster_name": cluster.name,
            "max_workers": site.most,
            "idle_timeout_minutes": cluster.idle / 60,
            "provider": site.provider,
            "auth": site.auth,
            **types,
            "file_mounts": self._mounts(),
            "initialization_commands": list(site.initialization),
            "setup_commands": [*cluster.setup, *self.environment_commands()],
            "head_setup_commands": [],
            "worker_setup_commands": [],
            "head_start_ray_commands": [
                self.node(f"start head --idle {cluster.idle:g} {then}-- {head}")
            ],
            "worker_start_ray_commands": [self.node(f"start worker {then}-- {worker}")],
        }

    def written(self) -> bytes:
        """Return the launcher file's bytes."""
        text: bytes = yaml.safe_dump(self.file(), sort_keys=False, width=1000, encoding="utf-8")
        return text

    def up(self, say: Callable[[str], None]) -> None:
        """Start what is missing of the cluster. Raises RegrowError with the launcher's output, and
        SpecError for `env`.
        """
        self._ship()
        self.run("up", "-y", "--no-config-cache", say=say)

    def down(self, say: Callable[[str], None]) -> None:
        """End the cluster by the launcher."""
        self.run("down", "-y", say=say)

    def run(self, verb: str, *options: str, say: Callable[[str], None]) -> None:
        """Run `ray VERB` on the launcher file. Raises RegrowError with the last lines of its
        output.
        """
        file = self.folder.make().engine / "launcher.yaml"
        private_files.replace(file, self.written())
        with self.folder.log.open("a", encoding="utf-8") as log:
            process = subprocess.Popen(
                [*RAY, verb, *options, str(file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self.environment(),
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
                raise RegrowError(
                    f"`ray {verb}` of the cluster {self.cluster.name} failed ({where}):\n{told}"
                )

    def environment(self) -> Mapping[str, str]:
        """Return the environment of the launcher's process. RAY_TMPDIR keeps its files out of
        /tmp/ray, which all users share.
        """
        version = "1" if self.site.autoscaler_v2 else "0"
        ours = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(self.folder.path)}
        return {**os.environ, "RAY_UP_enable_autoscaler_v2": version, **ours}

    def _mounts(self) -> Json:
        here, there = self.folder.path, f"~/{self.there}"
        found = {
            f"{there}/token": str(here / "token"),
            f"{there}/environment": str(here / "environment"),
        }
        found |= {f"{there}/{one}": str(here / "engine" / one) for one in self.shipped()}
        mounts: dict[str, str] = getattr(self.cluster, "mounts", {})
        return {**found, **mounts}

    def shipped(self) -> dict[str, bytes]:
        """Return the files from which the environment on the machines is made; none if the machines
        have an environment.
        """
        if self.cluster.python is not None:
            return {}
        lock = Path(self.cluster.lock) if self.cluster.lock else None
        return {
            shipping.wheel_name(): shipping.wheel(),
            "requirements.txt": shipping.requirements(lock),
        }

    def environment_commands(self) -> list[str]:
        """Return the shell commands with which a machine makes its environment."""
        if self.cluster.python is not None:
            return []
        return [shipping.environment_script(self.there, self._stamp())]

    def _stamp(self) -> str:
        """Return a hash of what the environment is made from."""
        return hashlib.sha256(b"".join(self.shipped().values())).hexdigest()[:16]

    def _ship(self) -> None:
        """Write the files that the machines get."""
        _ = self.folder.token_file
        self.folder.environment_file(self.cluster)
        for name, content in self.shipped().items():
            private_files.replace(self.folder.engine / name, content)
