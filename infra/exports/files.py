"""Tables as files: CSV that a spreadsheet may open without running what is in it, and Parquet."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from regrow.infra.exports.frames import Column, Table, frame
from regrow.tasks.errors import UserError

_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
"""What makes a spreadsheet calculate a cell, as OWASP lists it ("CSV Injection"), full-width forms included."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""What a terminal would obey."""


def csv_bytes(table: Table) -> bytes:
    r"""The table as CSV (RFC 4180): UTF-8, CRLF, a header; empty cells for nothing, ISO 8601 in UTC, lists and maps as JSON.

    Text that a spreadsheet would take for a formula (it begins with =, +, - or @, perhaps after white space) gets an apostrophe
    in front; control characters are written as \x1b. Numbers are numbers, also negative ones.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow([_harmless(column.name) for column in table])
    writer.writerows(zip(*(_cells(column) for column in table), strict=True))
    return out.getvalue().encode()


def write_csv(table: Table, path: Path) -> None:
    """Writes what `csv_bytes` gives; a file that is there is replaced by a whole one. Raises UserError if it cannot be."""
    _replace(path, lambda file: file.write(csv_bytes(table)))


def write_parquet(table: Table, path: Path) -> None:
    """The same as a Parquet file, with the types of the columns; those of mixed types as JSON text."""
    mixed = [Column(name=c.name, kind="text", cells=_json(c.cells)) if c.kind == "any" else c for c in table]
    data = frame(mixed)
    _replace(path, lambda file: data.to_parquet(file, engine="pyarrow", index=False))


def _cells(column: Column) -> Iterator[str]:
    match column.kind:
        case "time":
            written: Callable[[Any], str] = _time
        case "text" | "any":
            written = _text
        case "truth":
            written = json.dumps
        case _:
            written = repr
    return ("" if cell is None else written(cell) for cell in column.cells)


def _time(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(cell: Any) -> str:
    if isinstance(cell, str):
        return _harmless(cell)
    return json.dumps(cell, ensure_ascii=False)  # of a list, map, number: nothing that a spreadsheet would calculate


def _harmless(text: str) -> str:
    shown = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return f"'{shown}" if _FORMULA.match(text) else shown


def _json(cells: list[Any]) -> list[str | None]:
    return [None if cell is None else json.dumps(cell, ensure_ascii=False) for cell in cells]


def _replace(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Puts a whole file in the place of `path`, or changes nothing."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # mkstemp's file is its maker's alone
        os.replace(name, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
