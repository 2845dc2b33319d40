"""What an objective raised on a worker, raised again in the script: an `except KeyError` around `optimize` finds it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from regrow.tasks.errors import UserCodeError


def raised(function: Callable[[Any], Any], number: int, message: str, trace: str) -> UserCodeError:
    """The error of a trial that failed. `message`: the exception's class and text, `trace`: its traceback on the worker.

    It is of the exception's own class, too, where that is Python's or a global name of the objective's module; its attributes
    stayed on the worker.
    """
    name = message.partition(":")[0].strip()
    kind = getattr(function, "__globals__", {}).get(name, getattr(builtins, name, None))
    made: type[UserCodeError] = UserCodeError
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(UserCodeError, kind):
        try:
            made = type("UserCodeError", (UserCodeError, kind), {"__module__": UserCodeError.__module__})
            return made(f"trial {number} failed: {message}\n{trace}", trace)
        except Exception:  # noqa: BLE001 - a class that cannot be mixed, or made without its own arguments
            made = UserCodeError
    return made(f"trial {number} failed: {message}\n{trace}", trace)
