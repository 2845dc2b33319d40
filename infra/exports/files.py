"""Tables as files: CSV that a spreadsheet may open without running what is in it, and Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from regrow.infra.exports.frames import Column, Table, frame

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


def parquet_bytes(table: Table) -> bytes:
    """The same as Parquet, with the types of the columns; those of mixed types as JSON text."""
    mixed = [Column(name=c.name, kind="text", cells=_json(c.cells)) if c.kind == "any" else c for c in table]
    out = io.BytesIO()
    frame(mixed).to_parquet(out, engine="pyarrow", index=False)
    return out.getvalue()


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
