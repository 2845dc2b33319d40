"""Raises an objective's exception from a worker again in the script, so that an `except KeyError`
around `optimize` catches it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from regrow.tasks.errors import UserCodeError


def raised(function: Callable[[Any], Any], number: int, message: str, trace: str) -> UserCodeError:
    """Make the error of a failed trial. `message`: the exception's class and text, `trace`: its
    traceback on the worker.

    It is also an instance of the exception's class if that is a Python builtin or a global name of
    the objective's module; attributes of the exception are not transferred.
    """
    name, text = message.partition(":")[0].strip(), f"trial {number} failed: {message}\n{trace}"
    kind = getattr(function, "__globals__", {}).get(name, getattr(builtins, name, None))
    if (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(UserCodeError, kind)
    ):
        with suppress(Exception):  # a class that cannot be combined, or needs other arguments
            both = type(
                "UserCodeError", (UserCodeError, kind), {"__module__": UserCodeError.__module__}
            )
            made: UserCodeError = both(text, trace)
            return made
    return UserCodeError(text, trace)
