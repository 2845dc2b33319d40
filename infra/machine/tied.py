"""Runs a module as a program that is killed when the process that started it ends, and not by the
signals that tell an agent to leave.

python -m regrow.infra.machine.tied MODULE ARGUMENTS...
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from contextlib import suppress

_IGNORED = (signal.SIGUSR1, signal.SIGUSR2)
"""Slurm sends what `--signal` names to all processes of a step, such as one in a container that
`srun` starts. The agent decides what follows from it. What this program starts ignores them, too.
"""


def command(module: str) -> list[str]:
    """Return the beginning of a command that runs a module so. It must be started by a thread that
    lasts: the kernel takes the end of that thread for the end of the process.
    """
    return [sys.executable, "-m", "regrow.infra.machine.tied", module]


def main() -> None:
    """Run the module that the arguments name."""
    parent = os.getppid()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    with suppress(AttributeError, OSError):  # Linux only
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before
        return
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
