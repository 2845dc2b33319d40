"""The engine for existing machines: Ray's launcher with its provider `local`, and Ray's first
autoscaler.

With the second autoscaler the workers never start (ray#57153, #59905). The launcher's own `down`
stops everything that Ray runs on the head. Ours ends, on each machine, only what belongs to this
cluster, and checks that it has ended.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from regrow.infra.clusters.description import Ssh
from regrow.infra.clusters.launcher import Launcher, LauncherEngine, Site
from regrow.infra.clusters.machines import UNREACHABLE, Remote
from regrow.infra.clusters.node import versions
from regrow.infra.clusters.private import forget_launched
from regrow.infra.clusters.provider import Machine, Offer, offers
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError

_LOOK_SECONDS = 20.0
_SEEN_SECONDS = 5
"""Seconds until a file made by the head must be visible on the other machines."""
_STOP_SECONDS = 120.0
_JOIN_SECONDS = 180.0
"""Seconds to wait for workers, before the experiment begins without the missing ones."""
_JOIN_LOOK_SECONDS = 1.0
_NO_COMMAND = 127
"""Exit code of a shell that does not find the command."""


class SshEngine(LauncherEngine):
    """A cluster on machines that are reached by SSH; see Provider."""

    cluster: Ssh

    def __init__(self, cluster: Ssh) -> None:
        self.cluster = cluster
        self._launcher = Launcher(cluster, _site(cluster))
        key, known = Path(cluster.key).expanduser(), self._launcher.folder.path / "known_hosts"
        self._remotes = {
            address: Remote(address=address, user=cluster.user, key=key, known_hosts=known)
            for address in (cluster.head, *cluster.workers)
        }

    def launcher(self) -> Launcher:
        return self._launcher

    def head(self) -> Remote:
        return self._remotes[self.cluster.head]

    def plan(self) -> list[Offer]:
        workers = ((one, None, 1) for one in self.cluster.workers)
        return offers(self.cluster.head, None, workers, lambda *_: 0.0)

    def check(self) -> None:
        if not Path(self.cluster.key).expanduser().is_file():
            hint = "make one with `ssh-keygen -t ed25519`, or name yours"
            raise SpecError("key", self.cluster.key, "there is no such file", hint)

    def up(self, say: Callable[[str], None]) -> None:
        self.check()
        self._launcher.folder.make()
        self._check_machines()
        if self.is_up(say):
            return
        self._check_shared()
        forget_launched(self.cluster.name, self._launcher.folder.path)
        self._launcher.up(say)
        self._await_workers(say)

    def _check_machines(self) -> None:
        """Check that each machine can be reached and has the same versions as this one. Raises
        RegrowError, naming the machine, otherwise.
        """
        command = self._launcher.node("versions") if self.cluster.python else "true"
        for address, done in zip(self._remotes, self._asked(command, _LOOK_SECONDS), strict=True):
            said = done.stderr.decode(errors="replace").strip().splitlines()
            if done.returncode != 0:
                why = said[-1] if said else f"exit code {done.returncode}"
                if done.returncode == UNREACHABLE:
                    why += f"; it was asked as {self.cluster.user}, with {self.cluster.key}"
                elif "No module named" in why or "Error while finding module" in why:
                    why = (
                        f"no regrow is in {self.cluster.python}; install it there, or leave"
                        " `python` out of the cluster file"
                    )
                raise RegrowError(f"{address} cannot be used: {why}")
            if self.cluster.python and (there := json.loads(done.stdout.splitlines()[-1])) != (
                ours := versions()
            ):
                name = next(name for name in ours if there.get(name) != ours[name])
                hint = (
                    f"install {name} {ours[name]} there, or leave `python` out of the cluster file"
                )
                where = f"{address} has {name} {there.get(name)} in {self.cluster.python}"
                raise RegrowError(f"{where}, here is {ours[name]}; {hint}")

    def _check_shared(self) -> None:
        """Check that each folder of `shared` is the same on all machines. Raises RegrowError,
        naming the folder and the machines, otherwise.
        """
        for folder in self.cluster.shared:
            file = shlex.quote(f"{folder}/.regrow-{uuid.uuid4().hex}")
            look = (
                f"for i in $(seq {_SEEN_SECONDS}); do test -e {file} && exit 0; sleep 1; done;"
                " exit 1"
            )
            made = self.head().run(
                f"test -d {shlex.quote(folder)} && touch {file}", timeout=_LOOK_SECONDS
            )
            hint = "mount it there, or leave it out of `shared`"
            if made.returncode != 0:
                raise RegrowError(
                    f"shared: {folder} is no folder on {self.head().address} that can be written;"
                    f" {hint}"
                )
            try:
                apart = [
                    one.address for one in self._each(look, _LOOK_SECONDS) if one.state != "running"
                ]
                if apart:
                    raise RegrowError(
                        f"shared: {folder} on {', '.join(apart)} is not that of"
                        f" {self.head().address}; {hint}"
                    )
            finally:
                self.head().run(f"rm -f {file}", timeout=_LOOK_SECONDS)

    def _await_workers(self, say: Callable[[str], None]) -> None:
        """Wait until Ray runs on all workers, or on as many as start in time."""
        deadline, there = time.monotonic() + _JOIN_SECONDS, -1
        while there < len(self.cluster.workers):
            now = [one for one in self.status() if one.role == "worker" and one.state == "running"]
            if len(now) != there:
                there = len(now)
                say(f"  {there} of {len(self.cluster.workers)} workers")
            if time.monotonic() > deadline:
                if not there:
                    raise RegrowError(
                        f"no worker came up within {_JOIN_SECONDS:g} s; `regrow cluster status`"
                        " says how they are"
                    )
                say("the experiment begins with these; others join when they can")
                return
            time.sleep(_JOIN_LOOK_SECONDS)

    def status(self) -> list[Machine]:
        return [
            machine
            for machine in self._each(self._launcher.node("status"), _LOOK_SECONDS)
            if machine.state != "nothing"
        ]

    def down(self, say: Callable[[str], None]) -> None:
        # The head first, because it would start its workers again.
        self.head().run(self._launcher.node("stop"), timeout=_STOP_SECONDS)
        left = [
            one
            for one in self._each(self._launcher.node("stop now"), _STOP_SECONDS)
            if one.state != "nothing"
        ]
        if left:
            told = "; ".join(f"{one.address}: {one.state}" for one in left)
            raise RegrowError(f"of the cluster {self.cluster.name} this is left, or may be: {told}")
        say(
            f"nothing of the cluster {self.cluster.name} runs any more on {len(self._remotes)}"
            " machines"
        )

    def _each(self, command: str, seconds: float) -> list[Machine]:
        """Run a command on all machines. Returns their states, the head first."""
        made = self.cluster.python is None
        return [
            Machine(
                address=address,
                role="head" if address == self.cluster.head else "worker",
                state=_state(done, made=made),
            )
            for address, done in zip(self._remotes, self._asked(command, seconds), strict=True)
        ]

    def _asked(self, command: str, seconds: float) -> list[subprocess.CompletedProcess[bytes]]:
        with ThreadPoolExecutor(len(self._remotes)) as threads:
            run = partial(Remote.run, command=command, timeout=seconds)
            return list(threads.map(run, self._remotes.values()))


def _state(done: subprocess.CompletedProcess[bytes], *, made: bool) -> str:
    """Return `running`, `nothing` if the machine has no process of the cluster, or a description of
    the problem.

    `made`: the environment is made by regrow there, so without one nothing was ever started.
    """
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode == UNREACHABLE:
        return f"cannot be reached: {said.splitlines()[-1] if said else 'no answer'}"
    if done.returncode == _NO_COMMAND and made:
        return "nothing"
    if done.returncode != 0:
        return said.splitlines()[-1] if said else f"exit code {done.returncode}"
    try:
        told: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return "running"
    if told["supervisor"] is not None:
        return "running"
    return f"left over: {'; '.join(told['left'])}" if told["left"] else "nothing"


def _site(cluster: Ssh) -> Site:
    """Return the parts of the launcher file for these machines."""
    count = len(cluster.workers)
    return Site(
        provider={"type": "local", "head_ip": cluster.head, "worker_ips": list(cluster.workers)},
        auth={"ssh_user": cluster.user, "ssh_private_key": str(Path(cluster.key).expanduser())},
        most=count,
        autoscaler_v2=False,
        worker_arguments=() if cluster.cpus is None else (f"--num-cpus={cluster.cpus}",),
    )
