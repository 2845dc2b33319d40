"""The exit codes of the command line. docs/reference/command-line.md explains them to users."""

from __future__ import annotations

import signal
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regrow.search.history import History


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    """The experiment, or the trial of `try`, failed, or `verify` found a difference."""
    WRONG_INPUT = 2
    """The input or the environment is wrong."""
    INTERRUPTED = 3
    """The experiment was interrupted or stopped, and can be resumed."""
    DAMAGED = 4
    """The durable state is damaged."""


def ignore_signals() -> None:
    """Ignore signals from now on: they must not change the exit code of the last lines."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


_OF_STATUS = {
    "finished": ExitCode.DONE,
    "failed": ExitCode.FAILED,
    "interrupted": ExitCode.INTERRUPTED,
    "stopped": ExitCode.INTERRUPTED,
}


def of_experiment(history: History) -> ExitCode:
    """Return the exit code of a command that followed an experiment to its end. A log that was not
    closed counts as interrupted.
    """
    return _OF_STATUS[history.closed.status] if history.closed is not None else ExitCode.INTERRUPTED
