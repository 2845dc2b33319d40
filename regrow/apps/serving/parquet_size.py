"""How much a file of Parquet holds, found without expanding it: from its page headers, as its
footer's totals may be forged.

The footer and the headers are read here, because pyarrow's metadata of a damaged column end the
process (`terminate called after throwing an instance of 'parquet::ParquetException'`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MARK = b"PAR1"
_MOST_PARTS = 1_000_000
"""Most fields and elements of a file's metadata, which take half a second; a column has some 40."""
_MOST_DEPTH = 16
_DICTIONARY_PAGE = 2
_HEADS = (5, 8)
"""Fields of a page header: the head of a page of data, of version 1 and of version 2."""
_ENCODING = {5: 2, 8: 4}
"""Field of each of them with the encoding of its values."""
_DICTIONARIES, _BY_PREFIX = frozenset({2, 8}), 7
"""Encodings that store what is repeated once: as a dictionary, and as the beginning of the next."""


class Damaged(ValueError):
    """It is no file of Parquet."""


class _Thrift:
    """Reads values of Thrift's compact protocol, from `at` on; structs are dicts by field number.
    Raises Damaged.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self.at, self._left = data, 0, _MOST_PARTS

    def struct(self, depth: int = 0) -> dict[int, Any]:
        if depth > _MOST_DEPTH:
            raise Damaged
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            found[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth)
        return found

    def _byte(self) -> int:
        self.at += 1
        self._left -= 1
        if self.at > len(self._data) or self._left < 0:
            raise Damaged
        return self._data[self.at - 1]

    def _bytes(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self._data):
            raise Damaged
        return self._data[self.at - count : self.at]

    def _unsigned(self) -> int:
        found = shift = 0
        while (part := self._byte()) & 0x80:
            found |= (part & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise Damaged
        return found | part << shift

    def _signed(self) -> int:
        found = self._unsigned()
        return (found >> 1) ^ -(found & 1)

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2 | 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._unsigned())
            case 9 | 10:
                head = self._byte()
                count = head >> 4 if head >> 4 < 15 else self._unsigned()
                return [self._value(head & 15, depth + 1) for _ in range(count)]
            case 11:
                count = self._unsigned()
                kinds = self._byte() if count else 0
                return [
                    (self._value(kinds >> 4, depth + 1), self._value(kinds & 15, depth + 1))
                    for _ in range(count)
                ]
            case 12:
                return self.struct(depth + 1)
            case _:
                raise Damaged


def sizes(data: bytes, most_values: int, most_bytes: int) -> tuple[int, int]:
    """Return how many values a file holds, and how many bytes they take once they are expanded;
    beyond either limit, what was counted until then. Raises Damaged.

    Nothing larger than the limits is expanded for that. The bytes are an upper limit for columns
    that can only be measured by expanding them.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        footer = _footer(data)
        values, size = int(footer[3]), 0
        columns = [one[3] for group in footer[4] for one in group[1]]
        pages = [list(_pages(data, one)) for one in columns]
        values = max(values, sum(count for of_column in pages for _, count, _ in of_column))
        size = sum(one for of_column in pages for one, _, _ in of_column)
        if values > most_values or size > most_bytes:
            return values, size
        schema: Any = parquet.ParquetFile(pa.BufferReader(data)).schema
        texts = set[str]()
        for number, of_column in enumerate(pages):
            kind = schema.column(number % len(schema))
            encodings = {encoding for _, _, encoding in of_column}
            count = sum(count for _, count, _ in of_column)
            if not encodings & {*_DICTIONARIES, _BY_PREFIX}:
                continue
            if kind.physical_type == "FIXED_LEN_BYTE_ARRAY":
                size += count * kind.length
            elif kind.physical_type != "BYTE_ARRAY":
                continue
            elif _BY_PREFIX in encodings or kind.logical_type.type not in ("STRING", "NONE"):
                size += count * sum(one for one, _, _ in of_column)
            else:
                texts.add(kind.path)
        if texts and size <= most_bytes:
            file = parquet.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
            table = file.read(list(texts))
            size += sum(_length(part) for column in table.columns for part in column.chunks)
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        raise Damaged(str(error)) from None
    return values, size


def _footer(data: bytes) -> dict[int, Any]:
    if data[-4:] != _MARK:
        raise Damaged
    length = int.from_bytes(data[-8:-4], "little")
    if length > len(data) - 8:
        raise Damaged
    return _Thrift(data[-8 - length : -8]).struct()


def _pages(data: bytes, column: dict[int, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield of each page of a column its expanded bytes, its values, and their encoding, -1 for a
    page without values.
    """
    wanted, start = column[5], min(column[9], column.get(11) or column[9])
    end = start + column[7]
    while wanted > 0 and start < end:
        if start < 0:
            raise Damaged
        reader = _Thrift(data[start : start + (1 << 20)])
        header = reader.struct()
        if header[2] < 0 or header[3] < 0:
            raise Damaged
        start += reader.at + header[3]
        number = next((one for one in _HEADS if one in header), 0)
        head = header[number] if number else {1: 0, 0: -1}
        yield header[2], head[1], head[_ENCODING.get(number, 0)]
        wanted -= head[1]


def _length(array: Any) -> int:
    """Return the bytes of all texts of a column, in lists and structs, too."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_dictionary(array.type):
        lengths: Any = compute.binary_length(array.dictionary)
        return int(compute.sum(lengths.cast(pa.int64()).take(array.indices)).as_py() or 0)
    if not pa.types.is_nested(array.type):
        return 0
    parts = array.flatten()
    return sum(map(_length, parts if isinstance(parts, list) else [parts]))
