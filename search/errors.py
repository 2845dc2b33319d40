"""The error for a specification that cannot be used. Only errors about what a user wrote live here,
none about running it.

Every layer that reads a user's input (the space, the sampler's options, the YAML file) raises this
one class, so that the command line can print one line: where, the value, what is wrong, what to
write.
"""

from __future__ import annotations

import json
from typing import Any

_SHOWN = 80  # characters of a value in the message: a choice may have hundreds of values


def quoted(value: Any, most: int = _SHOWN) -> str:
    """Return the value on one line as JSON, as a YAML user wrote it, else its repr; its first
    characters if it has more than `most`.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        try:
            text = " ".join(repr(value).split())
        except Exception:  # noqa: BLE001 - the user's own class; Python's own integers beyond 4,300 digits
            text = f"a value of type {type(value).__name__}"
    # escape sequences would reach the terminal; a lone surrogate cannot be printed
    if not text.isprintable():
        escaped = text.encode("ascii", "backslashreplace").decode()
        text = json.dumps(text)[1:-1] if text.isascii() else escaped
    return text if len(text) <= most else text[: most - 3] + "..."


class SearchCodeError(Exception):
    """The user's sampler or scheduler raised. The original exception is the cause."""


class SpecError(ValueError):
    """Something that a user wrote cannot be used.

    Attributes:
        key: dotted path of the entry ("space.lr.loguniform").
        value: its value.
        problem: what is wrong with it.
        hint: what to write instead, "" if there is nothing to add.
        where: the file, "" if it came from Python.

    """

    def __init__(self, key: str, value: Any, problem: str, hint: str = "", where: str = "") -> None:
        super().__init__(key, value, problem, hint, where)
        self.key = key
        self.value = value
        self.problem = problem
        self.hint = hint
        self.where = where
        absent = value is None and problem.startswith("is missing")
        named = key if key.isprintable() else quoted(key)
        shown = [named] if absent else [named, quoted(value)]
        self._text = ": ".join([*shown, problem]) + (f"; {hint}" if hint else "")

    def __str__(self) -> str:
        return f"{self.where}: {self._text}" if self.where else self._text

    def within(self, prefix: str) -> SpecError:
        """Return the error with its key below `prefix`: a domain doesn't know its name."""
        return SpecError(f"{prefix}.{self.key}", self.value, self.problem, self.hint, self.where)

    def at(self, where: str) -> SpecError:
        """Return the same error, located in the file `where`."""
        return SpecError(self.key, self.value, self.problem, self.hint, where)

    def __reduce__(self) -> tuple[Any, ...]:
        # A value that isn't JSON (a lambda among the choices) may not survive pickling: send its
        # text instead.
        try:
            json.dumps(self.value)
            value = self.value
        except (TypeError, ValueError):
            value = repr(self.value)
        given = (self.key, value, self.problem, self.hint, self.where)
        return type(self), given, {"_text": self._text}
