"""The supervisor of Ray on each machine of a cluster, so that no process outlives its purpose.

    python -m regrow.infra.clusters.node NAME start head|worker [--idle S] [--then COMMAND]
        -- ARGUMENTS OF ray start
    python -m regrow.infra.clusters.node NAME stop
    python -m regrow.infra.clusters.node NAME exec COMMAND...

Ray's own processes have no parent, and on SIGTERM leave without draining. This supervisor is the
parent of `ray start --block`, under which the node drains first. A head on which no job has run for
`idle` seconds ends, even if no user is left to end it; then its workers end, too. So does a node
that Ray has drained: `ray start --block` itself keeps waiting, and with the head gone nothing would
end the machine. At its end a machine runs the command at `--then`, for example to terminate itself.
Processes of the cluster are recognised by a variable in their environment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from regrow.infra.clusters import marks
from regrow.infra.clusters.jobs import under_way
from regrow.infra.clusters.private import RAY
from regrow.infra.clusters.provider import DASHBOARD_PORT
from regrow.infra.machine import capacity
from regrow.infra.machine.descendants import adopt, end_children
from regrow.infra.machine.host_environment import ray_folder
from regrow.infra.machine.processes import marked
from regrow.infra.machine.supervised import Supervised, await_ready, sole, sole_record, spawn, until
from regrow.infra.state.places import CLUSTER
from regrow.tasks.errors import RegrowError
from regrow.tasks.process import temporary

MARK = CLUSTER
_RAYLET = "raylet\n"
"""Name of Ray's process for a machine, as the kernel reports it."""
_EXPERIMENT = "regrow run "
"""Part of the command of an experiment's process on the head."""
_BEGUN = "Ray runtime started"
"""Output of `ray start` once the node has started."""
_START_SECONDS = 180.0
_DRAIN_SECONDS = 60.0
"""Seconds that a node may take to end; Ray itself waits 30 s for its tasks."""
_FIRST_SECONDS = 300.0
"""Least seconds that a head waits for its first job: its workers are still being set up."""
_LOOK_SECONDS = 5.0
_TICK = 0.2
_SHOWN = 20
"""Lines of Ray's output that are shown if it does not start."""


def folder(name: str) -> Path:
    """Return a machine's folder for the cluster: `environment`, `token`, and what is installed."""
    return Path.home() / ".local" / "share" / "regrow" / "nodes" / name


class Node:
    """The part of the cluster `name` that runs on this machine."""

    def __init__(self, name: str) -> None:
        """Locate the node's files. Raises RegrowError if another user has this user's folder."""
        self.name, self.folder = name, folder(name)
        # Not in the cluster's folder, which machines may share. In a folder where no other user can
        # write a process id to signal, or place a link.
        if (own := temporary.own()) is None:
            taken = f"{tempfile.gettempdir()}/regrow-{os.getuid()} on {os.uname().nodename}"
            raise RegrowError(
                f"{taken} is not this user's folder: have it removed, or set another TMPDIR"
            )
        self._lock, self.log = own / f"{name}.lock", own / f"{name}.log"

    def environment(self) -> dict[str, str]:
        """Return the environment of all processes here: ours, the cluster's, the token's place."""
        token = self.folder / "token"
        found = dict(os.environ)
        for line in (self.folder / "environment").read_text().splitlines():
            key, _, value = line.partition("=")
            found[key] = value
        bin_folder = str(Path(sys.executable).parent)
        ray = (
            {"RAY_TMPDIR": str(Path(at).parent)}
            if (at := sole_record(self._lock).get("ray"))
            else {}
        )
        return {
            **found,
            **ray,
            MARK: self.name,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": os.pathsep.join((bin_folder, found.get("PATH", os.defpath))),
        }

    def running(self) -> int | None:
        """Return the process id of this machine's supervisor; None if there is none."""
        process: int | None = sole_record(self._lock).get("process")
        return process

    def start(self, arguments: Sequence[str]) -> None:
        """Start the supervisor unless it runs, and wait for Ray. Raises RegrowError."""
        if self.running() is not None:
            return
        self.log.unlink(missing_ok=True)
        module = "regrow.infra.clusters.node"
        command = [sys.executable, "-m", module, self.name, "supervise", *arguments]
        supervisor = Supervised.of(spawn(command, self.log, environment=self.environment()))
        if await_ready(
            lambda _: self._has_begun(),
            supervisor.is_alive,
            seconds=_START_SECONDS,
            tick=_TICK,
            pid=supervisor.pid,
        ):
            said = self.log.read_text(errors="replace")
            self.stop()
            last = "\n".join(said.splitlines()[-_SHOWN:])
            raise RegrowError(f"Ray did not start on {os.uname().nodename}; it said:\n{last}")

    def supervise(self, role: str, idle: float, then: str | None, arguments: Sequence[str]) -> None:
        """Run Ray in this process's session until it ends, a signal asks for its end, or no job has
        run for `idle` seconds. Then run `then`.
        """
        place = ray_folder(os.environ)
        with sole(self._lock, f"the cluster {self.name}", ray=str(place)) as told:
            # Where Ray's autoscaler keeps what it has launched.
            os.environ["RAY_TMPDIR"] = str(place.parent)
            # Ray's agents outlive their parents, and hide their environment behind a title.
            adopt()
            ray = subprocess.Popen(
                [
                    *RAY,
                    "start",
                    "--block",
                    f"--temp-dir={place}",
                    *arguments,
                    *_of_this_machine(arguments),
                ]
            )
            busy = look = time.monotonic()
            joined, patience = False, max(idle, _FIRST_SECONDS)
            while ray.poll() is None and not told:
                time.sleep(_TICK)
                if time.monotonic() < look:
                    continue
                look = time.monotonic() + _LOOK_SECONDS
                there = any(_name(process) == _RAYLET for process in marked(f"{MARK}={self.name}"))
                if not there and (joined or self._has_begun()):
                    break
                joined = there
                if role != "head":
                    continue
                if self.has_work():
                    busy, patience = look, idle
                elif time.monotonic() - busy > patience:
                    sys.stdout.write(f"no job has run for {patience:g} s: the cluster ends\n")
                    sys.stdout.flush()
                    break
            _end(ray)
            end_children()
            marks.kill(f"{MARK}={self.name}")
            if temporary.is_room(place.parent):
                shutil.rmtree(place, ignore_errors=True)
        if then:
            subprocess.run(then, shell=True, check=False)  # noqa: S602 - a command from the engine

    def stop(self) -> None:
        """End all processes of the cluster here."""
        if (supervisor := self.running()) is not None:
            os.kill(supervisor, signal.SIGTERM)
            ended = _DRAIN_SECONDS + _LOOK_SECONDS
            until(lambda: self.running() is None, seconds=ended, tick=_TICK)
        marks.kill(f"{MARK}={self.name}")

    def _has_begun(self) -> bool:
        """Return whether Ray's log reports a successful start. The raylet can exit before we look
        for it, half a minute before its command.
        """
        return _BEGUN in self.log.read_text(errors="replace")

    def has_work(self) -> bool:
        """Return whether a job or a driver has not ended. If Ray does not answer, return whether an
        experiment's process runs on this machine.
        """
        try:
            return under_way(DASHBOARD_PORT, (self.folder / "token").read_text().strip())
        except (OSError, ValueError):
            return any(_EXPERIMENT in process for process in self.left())

    def left(self) -> list[str]:
        """Return the commands of the processes here that belong to the cluster."""
        return marks.left(f"{MARK}={self.name}")


def _of_this_machine(arguments: Sequence[str]) -> Iterator[str]:
    """Yield what this process may use of its machine as options of `ray start`, unless given."""
    for name, amount in capacity.of_ray().items():
        option = f"--{name.replace('_', '-')}"
        if not any(one.partition("=")[0] == option for one in arguments):
            yield f"{option}={amount}"


def _end(ray: subprocess.Popen[bytes]) -> None:
    """Make Ray drain and end, and wait for that."""
    if ray.poll() is None:
        ray.terminate()
        try:
            ray.wait(_DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            ray.kill()
            ray.wait()


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text()
    except OSError:
        return ""


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="regrow.infra.clusters.node")
    parser.add_argument("name")
    parser.add_argument("action", choices=("start", "supervise", "stop", "exec"))
    return parser.parse_args(words)


def _duty(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="regrow.infra.clusters.node NAME start")
    parser.add_argument("role", choices=("head", "worker"))
    parser.add_argument("--idle", type=float, default=float("inf"))
    parser.add_argument("--then")
    return parser.parse_args(words)


def versions() -> dict[str, str]:
    """Return the versions that must be equal on all machines: of Python, Ray and log writers."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {
        "Python": python,
        **{name: metadata.version(name) for name in ("ray", "regrow", "msgspec")},
    }


def main(words: Sequence[str]) -> int:
    """Run the command line described at the top of this module."""
    asked, rest = _parsed(words[:2]), list(words[2:])
    node = Node(asked.name)
    match asked.action:
        case "start":
            node.start(rest)
        case "supervise":
            mark = rest.index("--")
            duty = _duty(rest[:mark])
            node.supervise(duty.role, duty.idle, duty.then, rest[mark + 1 :])
        case "stop":
            node.stop()
        case "exec":
            os.execvpe(rest[0], rest, node.environment())  # noqa: S606 - runs the given command
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RegrowError as failed:
        sys.exit(str(failed))
