"""Parsing of reports that a program prints or writes: lines of JSON, rows of CSV."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def numbers(line: str) -> dict[str, Any] | None:
    """Return the object in a line of JSON, None for any other line."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class ReportFile:
    """A program's report file, CSV or lines of JSON, which may be rewritten as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._header: list[str] | None = None
        self._end = 0
        self._last = b""
        """Last line that was read, which ends at `_end`."""
        self._taken = 0

    def new(self, *, final: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the objects added since the last call. `final`: also an unfinished line."""
        try:
            with self._path.open("rb") as file:
                skipped = 0
                if not self._goes_on(file.fileno()):  # rewritten, as pandas and Lightning do
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
        """Return whether the last line read is still in place, so that new lines follow it."""
        return os.pread(handle, len(self._last), self._end - len(self._last)) == self._last

    def _parsed(self, line: bytes) -> dict[str, Any] | None:
        text = line.decode("utf-8-sig", "replace").strip()
        if self._path.suffix != ".csv":
            return numbers(text)
        cells = next(csv.reader([text]), [])
        if self._header is None:
            self._header = cells
            return None
        return {
            name: number
            for name, cell in zip(self._header, cells, strict=False)
            if (number := _number(cell)) is not None
        }


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
