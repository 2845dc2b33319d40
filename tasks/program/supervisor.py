"""Supervisor process between an attempt and its program: neither the program nor anything it
started outlives the attempt.

A standalone script that imports only the standard library: `python -I -S supervisor.py GRACE
PROGRAM ARGUMENT...`. Its standard input is controlled by the attempt. A byte means "end the
program" (SIGTERM, after GRACE seconds SIGKILL); the end of the stream means that the attempt is
gone, or wants the program killed (SIGKILL). It ends as the program did: with the same exit code, or
by the same signal.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals to the whole group or session, ignored here: this process ends with its program."""


def main(grace: float, command: list[str]) -> None:
    """Run the program, and end as it does."""
    for number in _OURS:
        signal.signal(number, signal.SIG_IGN)
    # orphans of the program become this process's children, and are found
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    ended, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    me, program = os.getpid(), os.fork()
    if program == 0:
        _become(command, me)
    status = _watched(program, ended, grace)
    # its orphans, and the program itself if it still runs
    while (reaped := _reaped(program)) is not None:
        status = reaped[1] if reaped[0] == program else status
    code = os.waitstatus_to_exitcode(status or 0)
    if code < 0:
        signal.set_wakeup_fd(-1)
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(me, -code)
    os._exit(code)


def _watched(program: int, ended: int, grace: float) -> int | None:
    """Wait for the program and return its status; None if it has to be killed."""
    deadline: float | None = None
    while True:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == program:
                    return found[1]
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([0, ended], [], [], left)
        if ended in ready:
            os.read(ended, 64)
        if 0 in ready:
            if not os.read(0, 1):
                return None
            with suppress(ProcessLookupError):
                os.killpg(program, signal.SIGTERM)
            deadline = deadline or time.monotonic() + grace
        elif deadline is not None and time.monotonic() >= deadline:
            return None


def _reaped(program: int) -> tuple[int, int] | None:
    """Kill what is left, and wait for one process: its pid and status, None if none is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program, signal.SIGKILL)
    for child in _children():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)
    try:
        return os.waitpid(-1, 0)
    except ChildProcessError:
        return None


def _children() -> list[int]:
    """Return the children of this process; none if there is no /proc."""
    me, found = str(os.getpid()).encode(), []
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit():
                with suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                    if file.read().rpartition(b")")[2].split()[1] == me:
                        found.append(int(name))
    return found


def _become(command: list[str], parent: int) -> None:
    """Replace this process, the forked child, by the program."""
    try:
        os.setpgid(0, 0)
        for number in (*_OURS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:  # else the parent died before prctl took effect
            os.execvp(command[0], command)  # noqa: S606 - never a shell
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)  # as a shell that does not find the command


def _prctl(option: int, value: int) -> None:
    with suppress(AttributeError, OSError):  # Linux only; elsewhere the process group must do
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
