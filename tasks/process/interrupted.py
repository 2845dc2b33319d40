"""Signals at the beginning of a command, when nothing needs an orderly end: they raise, and are not
lost.

Python raises a handler's exception wherever the main thread is, and that may be where exceptions
are caught for another reason, or ignored (an optional import, a finalizer). So code that begins the
next step calls `check` first.
"""

from __future__ import annotations

from typing import Any, NoReturn

_came: list[int] = []


class InterruptedBySignal(KeyboardInterrupt):
    """Raised by a signal.

    Not a bare KeyboardInterrupt: if one is raised within `exec`, which creates dataclasses and
    named tuples, `python -m` ends by SIGINT instead of with its exit code even when it is caught
    (CPython 3.11 to 3.14).
    """


def interrupt(number: int, _: Any) -> NoReturn:
    """Signal handler for the beginning of a process that ends soon after: raises Interrupted, and
    makes `check` raise it again.
    """
    _came.append(number)
    raise InterruptedBySignal


def check() -> None:
    """Raise Interrupted if `interrupt` did before."""
    if _came:
        raise InterruptedBySignal
