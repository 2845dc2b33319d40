"""How exceptions of user code are shown: the user's frames, and one line. Nothing runs here."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

_OURS = tuple(
    f"{folder}/"
    for folder in {Path(__file__).parents[2], Path(__file__).resolve().parents[2] / "tasks"}
)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAMES = re.compile(r'^ +(?:File ".*", line \d+|\^+$)', re.MULTILINE)
"""Matches a message with a whole traceback of another process, as Ray's: its last line counts."""
_LONGEST = 300
"""Characters of a message on one line; the traceback has more of it."""
_LONGEST_TRACE = 60_000
"""Characters of a traceback in the log: its beginning, and twice as much of its end."""


def user_trace(error: BaseException) -> str:
    """Format the traceback, and chained ones, without frames of regrow and the import system."""
    try:
        shown = traceback.TracebackException.from_exception(error, compact=True)
        _trim(shown)
        text = "".join(shown.format())
    except Exception as wrong:  # noqa: BLE001 - any part of the user's exception class may be broken
        frames = "".join(traceback.format_tb(error.__traceback__))
        text = (
            f"{frames}{in_a_line(error)}\n(its traceback cannot be shown as it is:"
            f" {in_a_line(wrong)})\n"
        )
    return printable(_COLOURS.sub("", _cut(text)))


def in_a_line(error: BaseException) -> str:
    """Format an exception's type and message on one line of bounded length."""
    line = one_line(f"{type(error).__name__}: {_text(error)}").removesuffix(":")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def one_line(text: str) -> str:
    """Join any text to one line."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """Escape what terminals, logs or databases may reject: surrogates, control characters."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in clean
    )


def _text(error: BaseException) -> str:
    try:
        text = _COLOURS.sub("", _cut(str(error)))
    except BaseException:  # noqa: BLE001 - __str__ of the user's exception class may be broken
        return "(its message cannot be shown)"
    return text.strip().rpartition("\n")[2] if _FRAMES.search(text) else text


def _cut(text: str) -> str:
    """Remove the middle of a text that is too long."""
    if len(text) <= _LONGEST_TRACE:
        return text
    head, tail = _LONGEST_TRACE // 3, 2 * _LONGEST_TRACE // 3
    return f"{text[:head]}\n... ({len(text) - head - tail:,} characters) ...\n{text[-tail:]}"


def _trim(shown: traceback.TracebackException) -> None:
    todo = [shown]  # not recursive: a chain of thousands would exceed Python's call depth
    while todo:
        one = todo.pop()
        one.stack[:] = [
            f for f in one.stack if not f.filename.startswith((*_OURS, "<frozen importlib"))
        ]
        todo += [
            other
            for other in (one.__cause__, one.__context__, *(one.exceptions or ()))
            if other is not None
        ]
