"""Clusters started by Ray's launcher (`ray up`): the launcher file, and how the launcher is run.

A `Site` has what differs between clouds: the sections `provider` and `auth`, the types of nodes,
and what a machine does at its end.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import yaml

from regrow.infra.clusters import shipping
from regrow.infra.clusters.description import WithHead
from regrow.infra.clusters.folder import Folder
from regrow.infra.clusters.machines import Remote
from regrow.infra.clusters.node import folder
from regrow.infra.clusters.private import RAY
from regrow.infra.clusters.provider import DASHBOARD_PORT, Machine
from regrow.infra.machine import private_files
from regrow.tasks.errors import RegrowError

Json = dict[str, Any]
GCS_PORT = 6379
_SAID = re.compile(r"\x1b\[[0-9;]*m")
"""Colours in the launcher's output."""
_STEP = re.compile(r"\[\d+/\d+\] (?!No )(.*)")
"""A step in the launcher's output, unless it has nothing to do."""
_ENDING = ("stopping", "stopped", "shutting-down")
"""States of a head that does not count any more."""
_SHOWN = 15
"""Lines of the launcher's output that are shown if it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The parts of a launcher file that depend on the cloud."""

    provider: Json
    auth: Json
    node_types: Json = field(default_factory=dict)
    """The types of machines; `head` is one of them."""
    most: int
    """Most workers."""
    then: str | None = None
    """Command that a machine runs at its end, for example to turn itself off."""
    initialization: tuple[str, ...] = ()
    """Commands to run before those of the cluster file."""


class Launcher:
    """Ray's launcher for one cluster."""

    def __init__(self, cluster: WithHead, site: Site) -> None:
        self.cluster, self.site = cluster, site
        self.folder = Folder(cluster.name)
        self.there = folder(cluster.name).relative_to(Path.home()).as_posix()
        """The folder on the machines, relative to the home folder."""

    def python(self) -> str:
        """Return the interpreter on the machines, quoted for their shell."""
        if self.cluster.python:
            return shlex.quote(self.cluster.python)
        return f'"$HOME"/{self.there}/env/bin/python'

    def node(self, rest: str) -> str:
        """Return a `clusters.node` command for a shell on one of the machines."""
        return f"{self.python()} -m regrow.infra.clusters.node {self.cluster.name} {rest}"

    def file(self) -> Json:
        """Return the launcher file's content, without secrets and always in the same order."""
        cluster, site = self.cluster, self.site
        then = f"--then {shlex.quote(site.then)} " if site.then else ""
        head = (
            f"--head --port={GCS_PORT} --num-cpus=0 --num-gpus=0 --dashboard-host=127.0.0.1"
            f" --dashboard-port={DASHBOARD_PORT} --include-log-monitor=false --disable-usage-stats"
            " --autoscaling-config=~/ray_bootstrap_config.yaml"
        )
        worker = f"--address=$RAY_HEAD_IP:{GCS_PORT} --include-log-monitor=false"
        return {
            "cluster_name": cluster.name,
            "max_workers": site.most,
            "idle_timeout_minutes": cluster.idle / 60,
            "provider": site.provider,
            "auth": site.auth,
            "available_node_types": site.node_types,
            "head_node_type": "head",
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
        """Start what is missing of the cluster. Raises RegrowError and SpecError."""
        self._ship()
        self.run("up", "-y", "--no-config-cache", say=say)

    def down(self, say: Callable[[str], None]) -> None:
        """End the cluster by the launcher."""
        self.run("down", "-y", say=say)

    def run(self, verb: str, *options: str, say: Callable[[str], None]) -> None:
        """Run `ray VERB` on the launcher file. Raises RegrowError with the end of its output."""
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
        """Return the launcher's environment. RAY_TMPDIR: not /tmp/ray, which all users share."""
        ours = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(self.folder.path)}
        return {**os.environ, "RAY_UP_enable_autoscaler_v2": "1", **ours}

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
        """Return the files from which machines make their environment; none if they have one."""
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
        made_from = hashlib.sha256(b"".join(self.shipped().values())).hexdigest()[:16]
        return [shipping.environment_script(self.there, made_from)]

    def _ship(self) -> None:
        """Write the files that the machines get."""
        _ = self.folder.token_file
        self.folder.environment_file(self.cluster)
        for name, content in self.shipped().items():
            private_files.replace(self.folder.engine / name, content)


class LauncherEngine(ABC):
    """What all engines with Ray's launcher have in common; see Provider."""

    cluster: WithHead

    @abstractmethod
    def launcher(self) -> Launcher:
        """Return the launcher, with what is known so far."""

    @abstractmethod
    def status(self) -> list[Machine]:
        """See Provider."""

    @abstractmethod
    def head(self) -> Remote:
        """Return the head's machine. Raises RegrowError if there is none that runs."""

    def files(self) -> dict[str, bytes]:
        return {"launcher.yaml": self.launcher().written()}

    def command(self, words: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
        return self.head().run(self.launcher().node(f"exec {shlex.join(words)}"))

    def hold(self, words: Sequence[str]) -> AbstractContextManager[IO[bytes]]:
        return self.head().hold(self.launcher().node(f"exec {shlex.join(words)}"))

    def tunnel(self, port: int) -> AbstractContextManager[int]:
        return self.head().tunnel(port)

    def is_up(self, say: Callable[[str], None]) -> bool:
        """Return whether there is a head, which then brings up what is missing."""
        there = any(one.role == "head" and one.state not in _ENDING for one in self.status())
        if there:
            say(
                f"the cluster {self.cluster.name} is up; what is missing of it is brought up by its"
                " head"
            )
        return there
