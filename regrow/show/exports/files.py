"""Tables as files: CSV that is safe to open in a spreadsheet, and Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from regrow.show.exports.frames import Column, Table, frame

_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
"""Cells that a spreadsheet would calculate (OWASP: "CSV Injection"), also full-width forms."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Control characters that a terminal would interpret."""


def csv_bytes(parts: Iterable[Table]) -> Iterator[bytes]:
    r"""Yield a table, given in parts, as CSV (RFC 4180): UTF-8, CRLF, a header; empty cells for
    None, ISO 8601 in UTC, lists and maps as JSON.

    Text that a spreadsheet would take for a formula (it begins with =, +, - or @, perhaps after
    white space) gets an apostrophe in front; control characters are written as \x1b. Numbers, also
    negative ones, are written unchanged.
    """
    for place, table in enumerate(parts):
        out = io.StringIO(newline="")
        writer = csv.writer(out)
        if place == 0:
            writer.writerow([_harmless(column.name) for column in table])
        writer.writerows(zip(*(_cells(column) for column in table), strict=True))
        yield out.getvalue().encode()


def parquet_bytes(parts: Iterable[Table]) -> Iterator[bytes]:
    """Yield the same as Parquet, with typed columns; columns of mixed types are JSON text."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    with tempfile.TemporaryFile() as file:
        writer: ParquetWriter | None = None
        for table in parts:
            mixed = [
                Column(
                    name=c.name,
                    kind="text",
                    cells=[
                        None if cell is None else json.dumps(cell, ensure_ascii=False)
                        for cell in c.cells
                    ],
                )
                if c.kind == "any"
                else c
                for c in table
            ]
            schema = None if writer is None else writer.schema
            rows = pa.Table.from_pandas(frame(mixed), schema=schema, preserve_index=False)
            writer = writer or ParquetWriter(file, rows.schema)
            writer.write_table(rows)
        if writer is not None:
            writer.close()
        file.seek(0)
        while block := file.read(2**20):
            yield block


def as_written(cell: str) -> str:
    """Return the text of a CSV cell without the apostrophe that kept it from being a formula."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell[1:]) else cell


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
    return json.dumps(cell, ensure_ascii=False)  # of a list, map, number: never a formula


def _harmless(text: str) -> str:
    shown = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
    return f"'{shown}" if _FORMULA.match(text) else shown
