"""Reports in what a program prints or writes: lines of JSON, rows of CSV. Nothing is run here."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def numbers(line: str) -> dict[str, Any] | None:
    """The object in a line of JSON, None if it is another line."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def report_in(found: dict[str, Any], objective: str) -> dict[str, Any] | None:
    """What of an object is a report: its numbers, and the objective whatever it is. None if it lacks the objective."""
    if objective not in found:
        return None
    return {
        name: value for name, value in found.items()
        if name == objective or (isinstance(value, int | float) and not isinstance(value, bool))
    }


class ReportFile:
    """A file of reports that a program writes: CSV if it is called so, else lines of JSON. It may be written anew as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header: list[str] | None = None
        self._end = 0
        self._last = b""
        """The last line that was taken, which ends at `_end`."""
        self._taken = 0

    def new(self, *, final: bool = False) -> Iterator[dict[str, Any]]:
        """The objects that came since the last call. `final`: a last line that nobody ended counts, too."""
        try:
            with self._path.open("rb") as file:
                skipped = 0
                if not self._goes_on(file.fileno()):  # written anew, as pandas and Lightning do
                    skipped, self._end, self._last, self._header = self._taken, 0, b"", None
                file.seek(self._end)
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines:
            if not final and not line.endswith(b"\n"):
                return
            self._end, self._last = self._end + len(line), line
            found = self._parsed(line)
            if skipped:
                skipped -= 1
                continue
            self._taken += 1
            if found is not None:
                yield found

    def _goes_on(self, handle: int) -> bool:
        """Whether what was read is still there, so that the rest follows it."""
        return os.pread(handle, len(self._last), self._end - len(self._last)) == self._last

    def _parsed(self, line: bytes) -> dict[str, Any] | None:
        text = line.decode("utf-8-sig", "replace").strip()
        if self._path.suffix != ".csv":
            return numbers(text)
        cells = next(csv.reader([text]), [])
        if self._header is None:
            self._header = cells
            return None
        return {name: number for name, cell in zip(self._header, cells, strict=False) if (number := _number(cell)) is not None}


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
