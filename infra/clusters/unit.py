"""Agents on a machine that is reached by SSH: each a unit, which starts again after a loss.

    python -m regrow.infra.clusters.unit CLUSTER start NAME | supervise NAME
    python -m regrow.infra.clusters.unit CLUSTER status | stop | versions

Where systemd has a manager of the user's units that lasts without a login, a unit is one of its: it
starts with the machine, too. Elsewhere a supervisor of ours starts the agent again. Both run the
same script, which has been sent here with the project; both leave an agent alone that has ended
because the experiment has, or because it cannot take part.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from regrow.infra.machine import locks
from regrow.infra.machine.descendants import ancestors
from regrow.infra.machine.processes import kill_all, marked
from regrow.infra.machine.supervised import (
    Backoff,
    Supervised,
    await_ready,
    end_of,
    last_lines,
    single_supervisor,
    sole_record,
    spawn,
    until,
)
from regrow.infra.machine.versions import versions
from regrow.tasks.errors import RegrowError
from regrow.tasks.process import temporary

MARK, NAMED = "REGROW_UNIT", "REGROW_UNIT_NAME"
"""Variables of all processes of an agent: the cluster, and the unit's name."""
PLACE = ".local/share/regrow/agents"
"""The folder of all clusters on a machine, below the home folder."""
NOT_READY = 75
"""Exit code of the script where it finds no state or no project: a disk may be mounted later."""
FINAL = (0, 1, 2)
"""Exit codes of an agent after which it is not started again: the experiment has ended, or this
machine cannot take part.
"""
LEAVE_SECONDS = 90.0
"""Seconds that an agent may take to leave: its trials save."""
_ANSWER_SECONDS = LEAVE_SECONDS + 30.0
_PAUSE_SECONDS, _STEADY_SECONDS, _MOST_SECONDS = 1.0, 60.0, 60.0
_START_SECONDS = 20.0
_LOG_BYTES = 1 << 20
_TICK = 0.1


def root(cluster: str) -> Path:
    """Return this machine's folder of a cluster."""
    return Path.home() / PLACE / cluster


def service(cluster: str, name: str) -> str:
    """Return the name of a unit for systemd."""
    return f"regrow-{cluster}.{name}.service"


class Unit:
    """One agent of a cluster on this machine. `name`: see `unit_files.unit_name`."""

    def __init__(self, cluster: str, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.folder = root(cluster) / "units" / name
        self._service = service(cluster, name)
        self._marks = f"{MARK}={cluster}", f"{NAMED}={name}"
        # Not in the folder, which machines may share.
        if (own := temporary.own()) is None:
            raise RegrowError(
                f"the folder regrow-{os.getuid()} for temporary files on {os.uname().nodename} is"
                " not this user's: have it removed, or set another TMPDIR"
            )
        self._lock = own / f"agent-{cluster}.{name}.lock"

    @property
    def log(self) -> Path:
        """What the agent printed on this machine."""
        return self.folder / f"{os.uname().nodename}.log"

    def state(self) -> str:
        """Return `running`, `restarting`, or `ended`."""
        if _services().joinpath(self._service).exists():
            output = _systemctl("show", "--property=ActiveState", "--value", self._service).stdout
            match output.strip():
                case "active" | "deactivating":
                    return "running"
                case "activating":
                    return "restarting"
        if _left(*self._marks):
            return "running"
        return "restarting" if locks.is_held(self._lock) else "ended"

    def start(self) -> str:
        """Start it, unless it runs. Returns what keeps it running: `systemd` or `supervisor`."""
        if self.state() == "ended":
            _sweep(self.cluster, self.name)
            self._unpack()
            # keep the end of a log that has grown
            if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
                self.log.write_bytes(end_of(self.log, _LOG_BYTES))
            if _has_manager():
                shutil.copyfile(self.folder / self._service, _services() / self._service)
                _ask_manager("daemon-reload")
                _ask_manager("enable", "--now", self._service)
            else:
                command = [sys.executable, "-P", "-m", __spec__.name if __spec__ else __name__]
                command += [self.cluster, "supervise", self.name]
                process = Supervised.of(spawn(command, self.log, environment=os.environ))
                if failed := await_ready(
                    lambda _: locks.is_held(self._lock),
                    process.is_alive,
                    seconds=_START_SECONDS,
                    what="start",
                    tick=_TICK,
                ):
                    raise RegrowError(
                        f"the agent's supervisor {failed}; it said: {_last(self.log)}"
                    )
        return "systemd" if _services().joinpath(self._service).exists() else "supervisor"

    def _unpack(self) -> None:
        """Unpack the project that was sent last, unless it is there: it may run on another machine
        that has the same folder.
        """
        for packed in self.folder.glob("project-*.tar.gz"):
            into = packed.with_name(packed.name.removesuffix(".tar.gz"))
            if not into.exists():
                partial = into.with_name(f".{into.name}.{os.uname().nodename}.{os.getpid()}")
                with tarfile.open(packed) as project:
                    # Python before 3.11.4 has no filters
                    project.extraction_filter = getattr(tarfile, "data_filter", None)
                    project.extractall(partial)  # noqa: S202 - packed by regrow
                with suppress(OSError):  # another machine was first
                    partial.rename(into)
                shutil.rmtree(partial, ignore_errors=True)
            packed.unlink(missing_ok=True)

    def supervise(self) -> None:
        """Run the agent, again and again, until its end is final or a signal asks for its end."""
        with single_supervisor(self._lock, self.name) as signals:
            pauses = Backoff(_PAUSE_SECONDS, _MOST_SECONDS, steady=_STEADY_SECONDS)
            while not signals:
                began = time.monotonic()
                agent = Supervised.of(
                    subprocess.Popen(
                        ["/bin/sh", self.folder / "agent.sh"], stdin=subprocess.DEVNULL
                    )
                )
                while agent.is_alive() and not signals:
                    time.sleep(_TICK)
                agent.end(grace=LEAVE_SECONDS)
                _kill(*self._marks)
                if agent.child is not None and agent.child.returncode in FINAL:
                    break
                until(lambda: signals, seconds=pauses.after(time.monotonic() - began), tick=_TICK)

    def ask_to_leave(self) -> None:
        """Tell it to leave, and not to start again; return at once."""
        if _services().joinpath(self._service).exists():
            _systemctl("disable", "--now", "--no-block", self._service)
        if (supervisor := sole_record(self._lock).get("process")) is not None:
            with suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGTERM)

    def remove(self) -> None:
        """Wait until it has left, and remove its unit."""
        file = _services() / self._service
        if file.exists():
            _systemctl("stop", self._service)
            file.unlink()
            _systemctl("daemon-reload")
            _systemctl("reset-failed", self._service)
        until(
            lambda: not locks.is_held(self._lock),
            seconds=LEAVE_SECONDS + _START_SECONDS,
            tick=_TICK,
        )
        _kill(*self._marks)
        self._lock.unlink(missing_ok=True)


def units(cluster: str) -> list[Unit]:
    """Return the units on this machine, also those whose folder was removed by hand."""
    front, end = f"regrow-{cluster}.", ".service"
    names = {file.name[len(front) : -len(end)] for file in _services().glob(f"{front}*{end}")}
    folder = root(cluster) / "units"
    names |= {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    return [Unit(cluster, name) for name in sorted(names)]


def _sweep(cluster: str, name: str) -> None:
    """Remove the units of earlier experiments, and environments other than this process's, unless
    something of the cluster runs here or on another machine that has the same folder.
    """
    folder, host = root(cluster), f"{os.uname().nodename}.log"
    found = units(cluster)
    if any(one.state() != "ended" for one in found) or any(
        log.name != host for log in folder.glob("units/*/*.log")
    ):
        return
    for one in found:
        if one.name != name:
            one.remove()
            shutil.rmtree(one.folder, ignore_errors=True)
    old = {*folder.glob("made-*"), *folder.glob(f"units/{name}/project-*")}
    for place in old - {Path(sys.prefix).parent, *folder.glob(f"units/{name}/*.tar.gz")}:
        shutil.rmtree(place, ignore_errors=True)


def status(cluster: str) -> dict[str, Any]:
    """Return the units of this machine, and the processes that belong to them."""
    described = [
        {
            "name": one.name,
            "state": one.state(),
            "said": _last(one.log),
            "t": one.log.stat().st_mtime if one.log.exists() else 0.0,
        }
        for one in units(cluster)
    ]
    return {"units": described, "left": _left(f"{MARK}={cluster}")}


def stop(cluster: str) -> dict[str, Any]:
    """End all agents of a cluster here, and remove their units. Returns what is left."""
    found = units(cluster)
    for one in found:
        one.ask_to_leave()
    for one in found:
        one.remove()
    _kill(f"{MARK}={cluster}")
    left = [f"unit {file.name}" for file in _services().glob(f"regrow-{cluster}.*.service")]
    return {"units": [], "left": left + _left(f"{MARK}={cluster}")}


def _services() -> Path:
    """Return the folder of the user's units for systemd."""
    chosen = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(chosen) if os.path.isabs(chosen) else Path.home() / ".config"
    return base / "systemd" / "user"


def _has_manager() -> bool:
    """Return whether systemd has a manager of this user's units that lasts without a login."""
    if not Path("/run/systemd/system").exists() or shutil.which("systemctl") is None:
        return False
    if _ended("loginctl", "enable-linger").returncode != 0:
        return False
    _services().mkdir(parents=True, exist_ok=True)
    return until(lambda: _systemctl("show-environment").returncode == 0, seconds=5.0)


def _systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    return _ended("systemctl", "--user", *words)


def _ended(*command: str) -> subprocess.CompletedProcess[str]:
    """Run one of systemd's commands to its end. Raises RegrowError if it does not answer."""
    # A login by SSH has no session of systemd's where sshd does not use PAM.
    runtime = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}"}
    try:
        return subprocess.run(
            command,
            env={**runtime, **os.environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RegrowError(
            f"{' '.join(command)} did not answer in {_ANSWER_SECONDS:.0f} s; see"
            " systemctl --user status"
        ) from None


def _ask_manager(*words: str) -> None:
    """Tell the manager something. Raises RegrowError with its words if it refuses."""
    done = _systemctl(*words)
    if done.returncode != 0:
        raise RegrowError(f"systemctl --user {words[0]}: {' '.join(done.stderr.split())}")


def _last(log: Path) -> str:
    lines = last_lines(log) if log.exists() else []
    return lines[-1] if lines else ""


def _left(*marks: str) -> list[str]:
    """Return the ids and commands of the processes here that have all marks (NAME=value)."""
    found = []
    for process in marked(*marks):
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found.append(f"{process} {b' '.join(words).decode(errors='replace')[:200].strip()}")
    return found


def _kill(*marks: str) -> None:
    """Kill all processes with the marks, except this one's ancestors: a shell, a supervisor."""
    spared = ancestors(os.getpid())
    kill_all(lambda: [process for process in marked(*marks) if process not in spared])


def main(words: Sequence[str]) -> int:
    """Run the command line described at the top of this module."""
    cluster, action, *rest = words
    match action:
        case "start":
            reply: Any = {"by": Unit(cluster, rest[0]).start()}
        case "supervise":
            Unit(cluster, rest[0]).supervise()
            return 0
        case "status":
            reply = status(cluster)
        case "stop":
            reply = stop(cluster)
        case "versions":
            reply = versions()
        case _:
            raise RegrowError(f"there is no action {action}")
    sys.stdout.write(json.dumps(reply) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except RegrowError as failed:
        sys.exit(str(failed))
