"""Parsing of reports that a program prints or writes: lines of JSON, rows of CSV."""

from __future__ import annotations

import csv
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from regrow.tasks.errors import ReportError

MOST_LINE_BYTES = 16 << 20
"""Size limit of a report."""


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
        self._taken = self._known = 0
        """Lines that were taken; lines of a rewritten file that come now and were taken before."""

    def new(self, *, final: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the objects added since the last call. `final`: also an unfinished line.

        Raises ReportError for a line of more than MOST_LINE_BYTES, and for what cannot be read.
        """
        try:
            with self._opened() as file:
                if not self._was_appended(file.fileno()):  # rewritten, as pandas and Lightning do
                    self._known, self._end, self._last, self._header = self._taken, 0, b"", None
                file.seek(self._end)
                while line := file.readline(MOST_LINE_BYTES + 1):
                    if len(line) > MOST_LINE_BYTES:
                        raise ReportError(
                            f"{self._path.name}: a line has more than {MOST_LINE_BYTES >> 20} MB,"
                            " and a report has one line; end each by a newline"
                        )
                    if not final and not line.endswith(b"\n"):
                        return
                    self._end, self._last = self._end + len(line), line
                    found = self._parsed(line)
                    if self._known:
                        self._known -= 1
                        continue
                    self._taken += 1
                    if found is not None:
                        yield found
        except FileNotFoundError:
            return
        except OSError as error:
            raise ReportError(
                f"{self._path.name}, the report file, cannot be read: {error.strerror}; write a"
                " plain file there"
            ) from error

    def _opened(self) -> IO[bytes]:
        # a pipe would block until it has a writer
        handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(0, "it is no file")
        return os.fdopen(handle, "rb")

    def _was_appended(self, handle: int) -> bool:
        """Return whether the last line read is still in place, so that new lines follow it."""
        return os.pread(handle, len(self._last), self._end - len(self._last)) == self._last

    def _parsed(self, line: bytes) -> dict[str, Any] | None:
        text = line.decode("utf-8-sig", "replace").strip()
        if self._path.suffix != ".csv":
            return numbers(text)
        csv.field_size_limit(MOST_LINE_BYTES)  # of this process, which has no other tables
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
