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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

from regrow.infra.clusters.description import Ssh
from regrow.infra.clusters.launcher import Launcher, Site
from regrow.infra.clusters.machines import UNREACHABLE, Remote
from regrow.infra.clusters.node import versions
from regrow.infra.clusters.private import forget_launched
from regrow.infra.clusters.provider import Machine, Offer
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


class SshEngine:
    """A cluster on machines that are reached by SSH; see Provider."""

    def __init__(self, cluster: Ssh) -> None:
        self.cluster = cluster
        self.launcher = Launcher(cluster, _site(cluster))
        key, known = Path(cluster.key).expanduser(), self.launcher.folder.path / "known_hosts"
        self._remotes = {
            address: Remote(address=address, user=cluster.user, key=key, known_hosts=known)
            for address in (cluster.head, *cluster.workers)
        }
        self._head = self._remotes[cluster.head]

    def plan(self) -> list[Offer]:
        """See Provider."""
        head = Offer(role="head", type=self.cluster.head, market=None, most=1, price=0.0)
        return [
            head,
            *(
                Offer(role="workers", type=one, market=None, most=1, price=0.0)
                for one in self.cluster.workers
            ),
        ]

    def files(self) -> dict[str, bytes]:
        """See Provider."""
        return {"launcher.yaml": self.launcher.written()}

    def check(self) -> None:
        """See Provider."""
        if not Path(self.cluster.key).expanduser().is_file():
            hint = "make one with `ssh-keygen -t ed25519`, or name yours"
            raise SpecError("key", self.cluster.key, "there is no such file", hint)

    def up(self, say: Callable[[str], None]) -> None:
        """See Provider."""
        self.check()
        self.launcher.folder.make()
        self._check_machines()
        if any(machine.role == "head" for machine in self.status()):
            say(
                f"the cluster {self.cluster.name} is up; what is missing of it is brought up by its"
                " head"
            )
            return
        self._check_shared()
        forget_launched(self.cluster.name, self.launcher.folder.path)
        self.launcher.up(say)
        self._await_workers(say)

    def _check_machines(self) -> None:
        """Check that each machine can be reached and has the same versions as this one. Raises
        RegrowError, naming the machine, otherwise.
        """
        command = self.launcher.node("versions") if self.cluster.python else "true"
        with ThreadPoolExecutor(len(self._remotes)) as threads:
            answers = threads.map(
                lambda remote: remote.run(command, timeout=_LOOK_SECONDS), self._remotes.values()
            )
        for address, done in zip(self._remotes, answers, strict=True):
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
            made = self._head.run(
                f"test -d {shlex.quote(folder)} && touch {file}", timeout=_LOOK_SECONDS
            )
            hint = "mount it there, or leave it out of `shared`"
            if made.returncode != 0:
                raise RegrowError(
                    f"shared: {folder} is no folder on {self._head.address} that can be written;"
                    f" {hint}"
                )
            try:
                apart = [
                    one.address for one in self._each(look, _LOOK_SECONDS) if one.state != "running"
                ]
                if apart:
                    raise RegrowError(
                        f"shared: {folder} on {', '.join(apart)} is not that of"
                        f" {self._head.address}; {hint}"
                    )
            finally:
                self._head.run(f"rm -f {file}", timeout=_LOOK_SECONDS)

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
        """See Provider."""
        return [
            machine
            for machine in self._each(self.launcher.node("status"), _LOOK_SECONDS)
            if machine.state != "nothing"
        ]

    def command(
        self, words: Sequence[str], *, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """See Provider."""
        return self._head.run(self.launcher.node(f"exec {shlex.join(words)}"), stdin=stdin)

    def hold(self, words: Sequence[str]) -> AbstractContextManager[IO[bytes]]:
        """See Provider."""
        return self._head.hold(self.launcher.node(f"exec {shlex.join(words)}"))

    def tunnel(self, port: int) -> AbstractContextManager[int]:
        """See Provider."""
        return self._head.tunnel(port)

    def down(self, say: Callable[[str], None]) -> None:
        """See Provider."""
        # The head first, because it would start its workers again.
        self._on(self._head, self.launcher.node("stop"), _STOP_SECONDS)
        left = [
            one
            for one in self._each(self.launcher.node("stop now"), _STOP_SECONDS)
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
        with ThreadPoolExecutor(len(self._remotes)) as threads:
            return list(
                threads.map(
                    lambda remote: self._on(remote, command, seconds), self._remotes.values()
                )
            )

    def _on(self, remote: Remote, command: str, seconds: float) -> Machine:
        done = remote.run(command, timeout=seconds)
        role: Any = "head" if remote.address == self.cluster.head else "worker"
        return Machine(
            address=remote.address, role=role, state=_state(done, made=self.cluster.python is None)
        )


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
