"""What a person is shown of an exception of their own code: their frames, and one line. Nothing runs here."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

_OURS = tuple(f"{folder}/" for folder in {Path(__file__).parents[1], Path(__file__).resolve().parents[1] / "tasks"})
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAMES = re.compile(r'^ +(?:File ".*", line \d+|\^+$)', re.MULTILINE)
"""In a message that is a whole traceback of another process, as Ray's are: what is wrong stands in its last line."""
_LONGEST = 300
"""Characters of a message in one line; the traceback has all of it."""


def user_trace(error: BaseException) -> str:
    """The traceback without our frames and the import system's, whichever of the chained exceptions they are in."""
    shown = traceback.TracebackException.from_exception(error, compact=True)
    _trim(shown)
    return printable(_COLOURS.sub("", "".join(shown.format())))


def in_a_line(error: BaseException) -> str:
    """Its type and message, on one line of bounded length."""
    line = one_line(f"{type(error).__name__}: {_text(error)}").removesuffix(":")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def one_line(text: str) -> str:
    """Text of any kind on one line."""
    return printable(" ".join(text.split()))


def printable(text: str) -> str:
    """Text that every terminal, log and database takes: no lone surrogates, no control characters but line ends and tabs."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in clean)


def _text(error: BaseException) -> str:
    try:
        text = _COLOURS.sub("", str(error))
    except Exception:  # noqa: BLE001 - the user's own class, whose __str__ may be wrong
        return "(its message cannot be shown)"
    return text.strip().rpartition("\n")[2] if _FRAMES.search(text) else text


def _trim(shown: traceback.TracebackException) -> None:
    shown.stack[:] = [f for f in shown.stack if not f.filename.startswith((*_OURS, "<frozen importlib"))]
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _trim(other)
