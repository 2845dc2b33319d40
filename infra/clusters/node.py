"""What runs on each machine of a cluster: a supervisor of its part of Ray, so that nothing of it outlives what it is for.

    python -m regrow.infra.clusters.node NAME start head|worker [--idle S] [--then COMMAND] -- ARGUMENTS OF ray start
    python -m regrow.infra.clusters.node NAME status | stop | stop now | versions
    python -m regrow.infra.clusters.node NAME exec COMMAND...

Ray's own processes have no parent, and on SIGTERM leave without a word. Under `ray start --block`, whose parent this is, the
node drains first. A head on which no job has run for `idle` seconds ends, whether or not anybody is left who would end it;
then the workers, whose head is gone, end, too. So does one that Ray has drained: `ray start --block` itself waits on, and if
the head is gone by then nobody ends the machine. At its end a machine runs the command at `--then`, such as one that
terminates it. What belongs to the cluster is known by a variable of its environment.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import FrameType

from regrow.infra.clusters.private import RAY, forget_launched
from regrow.infra.machine.descendants import adopt, end_children
from regrow.infra.machine.processes import marked
from regrow.infra.state.places import CLUSTER
from regrow.tasks.errors import RegrowError

MARK = CLUSTER
DASHBOARD_PORT = 8265
_RAYLET = "raylet\n"
"""What the system calls Ray's own process for a machine."""
_EXPERIMENT = "regrow run "
"""In the command of an experiment's process on the head."""
_BEGUN = "Ray runtime started"
"""What `ray start` says as soon as the node is there."""
_START_SECONDS = 180.0
_DRAIN_SECONDS = 60.0
"""How long a node may take to end; Ray itself waits 30 s for its tasks."""
_FIRST_SECONDS = 300.0
"""How long a head waits at least for its first job: its workers are still being set up."""
_LOOK_SECONDS = 5.0
_NOW = signal.SIGINT
"""Tells a supervisor to end without draining: with its head gone, that would take Ray 30 s and do nothing."""
_TICK = 0.2
_COMMAND = 200
"""Characters of a process's command that are told."""
_SHOWN = 20
"""Lines of Ray's output that are told when it does not start."""


def folder(name: str) -> Path:
    """Where a machine has what belongs to the cluster: `environment`, `token`, what is installed, its log."""
    return Path.home() / ".local" / "share" / "regrow" / "nodes" / name


class Node:
    """The part of the cluster `name` that runs on this machine."""

    def __init__(self, name: str) -> None:
        self.name, self.folder = name, folder(name)
        # Not in the folder, which machines may share.
        self._lock = Path(tempfile.gettempdir()) / f"regrow-{os.getuid()}-{name}.lock"
        self.log = Path(tempfile.gettempdir()) / f"regrow-{os.getuid()}-{name}.log"

    def environment(self) -> dict[str, str]:
        """The environment of all that runs here: this process's own, the cluster's, and where the token is."""
        token = self.folder / "token"
        found = dict(os.environ)
        for line in (self.folder / "environment").read_text().splitlines():
            key, _, value = line.partition("=")
            found[key] = value
        bin_folder = str(Path(sys.executable).parent)
        return {
            **found, MARK: self.name, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": os.pathsep.join((bin_folder, found.get("PATH", os.defpath))),
        }

    def running(self) -> int | None:
        """The process that supervises this machine; None if there is none."""
        try:
            with self._lock.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            pass
        except BlockingIOError:
            return int(self._lock.read_text() or 0) or None
        return None

    def start(self, arguments: Sequence[str]) -> None:
        """Starts the supervisor, unless there is one, and returns when Ray runs. Raises RegrowError if it does not."""
        if self.running() is not None:
            return
        self.log.unlink(missing_ok=True)
        forget_launched(self.name)
        with os.fdopen(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600), "w") as log:
            command = [sys.executable, "-m", "regrow.infra.clusters.node", self.name, "supervise", *arguments]
            supervisor = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(), start_new_session=True, cwd="/"
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._has_begun():
            if supervisor.poll() is not None or time.monotonic() > deadline:
                said = self.log.read_text(errors="replace")
                self.stop()
                last = "\n".join(said.splitlines()[-_SHOWN:])
                raise RegrowError(f"Ray did not start on {os.uname().nodename}; it said:\n{last}")
            time.sleep(_TICK)

    def supervise(self, role: str, idle: float, then: str | None, arguments: Sequence[str]) -> None:
        """Runs Ray in this process's session until it ends, is told to end, or has had nothing to do for `idle` seconds."""
        with self._only() as told:
            adopt()  # Ray's agents outlive what started them, and hide their environment behind a title
            ray = subprocess.Popen([*RAY, "start", "--block", *arguments])
            jobs = Jobs(self) if role == "head" else None
            busy = look = time.monotonic()
            joined, patience = False, max(idle, _FIRST_SECONDS)
            while ray.poll() is None and not told:
                time.sleep(_TICK)
                if time.monotonic() < look:
                    continue
                look = time.monotonic() + _LOOK_SECONDS
                there = self._has_raylet()
                if not there and (joined or self._has_begun()):
                    break
                joined = there
                if jobs is None:
                    continue
                if jobs.any():
                    busy, patience = look, idle
                elif time.monotonic() - busy > patience:
                    sys.stdout.write(f"no job has run for {patience:g} s: the cluster ends\n")
                    sys.stdout.flush()
                    break
            _end(ray, drain=_NOW not in told)
            end_children()
            _kill(MARK + "=" + self.name)
        if then:
            subprocess.run(then, shell=True, check=False)  # noqa: S602 - a command of the cluster file's engine

    def stop(self, *, now: bool = False) -> None:
        """Ends all that runs here for the cluster, and returns when it is gone. `now`: without the drain, as its head is gone."""
        if (supervisor := self.running()) is not None:
            os.kill(supervisor, _NOW if now else signal.SIGTERM)
            deadline = time.monotonic() + _DRAIN_SECONDS + _LOOK_SECONDS
            while self.running() is not None and time.monotonic() < deadline:
                time.sleep(_TICK)
        _kill(f"{MARK}={self.name}")

    def _has_begun(self) -> bool:
        """Whether Ray says that it runs: its raylet may be gone before it is looked for, half a minute before its command."""
        return _BEGUN in self.log.read_text(errors="replace")

    def _has_raylet(self) -> bool:
        return any(_name(process) == _RAYLET for process in marked(f"{MARK}={self.name}"))

    def left(self) -> list[str]:
        """The commands of the processes that belong to the cluster here."""
        found = []
        for process in marked(f"{MARK}={self.name}"):
            try:
                words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            found.append(f"{process} {b' '.join(words).decode(errors='replace')[:_COMMAND].strip()}")
        return found

    @contextmanager
    def _only(self) -> Iterator[list[int]]:
        """Makes this the one supervisor here; gives the signals that ask for its end, as they come."""
        told: list[int] = []

        def take(number: int, _frame: FrameType | None) -> None:
            told.append(number)

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, take)
        with os.fdopen(os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600), "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate()
            lock.write(str(os.getpid()))
            lock.flush()
            yield told


class Jobs:
    """Whether the cluster has work: a job or a driver that has not ended."""

    def __init__(self, node: Node) -> None:
        self._node, self._token = node, node.folder / "token"

    def any(self) -> bool:
        """Whether there is one; where Ray does not say, whether an experiment's process runs on this machine."""
        import requests

        headers = {"Authorization": f"Bearer {self._token.read_text().strip()}"}
        try:
            answer = requests.get(f"http://127.0.0.1:{DASHBOARD_PORT}/api/jobs/", headers=headers, timeout=10)
            answer.raise_for_status()
            return any(job.get("status") in ("PENDING", "RUNNING") for job in answer.json())
        except (OSError, ValueError):
            return any(_EXPERIMENT in process for process in self._node.left())


def _end(ray: subprocess.Popen[bytes], *, drain: bool) -> None:
    """Tells Ray to drain and end, and waits for that; or has it end at once."""
    if ray.poll() is None:
        if drain:
            ray.terminate()
        else:
            ray.kill()
        try:
            ray.wait(_DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            ray.kill()
            ray.wait()


def _kill(mark: str) -> None:
    """Kills all that has the mark, but for what led to this process: a shell that runs it, the supervisor."""
    spared = set(_ancestors(os.getpid()))
    while left := [process for process in marked(mark) if process not in spared]:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_TICK)


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text()
    except OSError:
        return ""


def _ancestors(process: int) -> Iterator[int]:
    while process > 1:
        yield process
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            return


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="regrow.infra.clusters.node")
    parser.add_argument("name")
    parser.add_argument("action", choices=("start", "supervise", "status", "stop", "versions", "exec"))
    return parser.parse_args(words)


def _duty(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="regrow.infra.clusters.node NAME start")
    parser.add_argument("role", choices=("head", "worker"))
    parser.add_argument("--idle", type=float, default=float("inf"))
    parser.add_argument("--then")
    return parser.parse_args(words)


def versions() -> dict[str, str]:
    """What has to be the same on all machines: those of Python and of Ray, and of what speaks with the log."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"Python": python, **{name: metadata.version(name) for name in ("ray", "regrow", "msgspec")}}


def main(words: Sequence[str]) -> int:
    """The command line; see the module's text."""
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
            node.stop(now=rest == ["now"])
        case "versions":
            sys.stdout.write(json.dumps(versions()) + "\n")
        case "exec":
            os.execvpe(rest[0], rest, node.environment())  # noqa: S606 - what it is for
    if asked.action in ("status", "stop"):
        sys.stdout.write(json.dumps({"supervisor": node.running(), "left": node.left()}) + "\n")
    return 0




if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RegrowError as failed:
        sys.exit(str(failed))
