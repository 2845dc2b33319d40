"""How large a body of Parquet is once it is expanded."""

from __future__ import annotations

from typing import Any

PARQUET = "application/vnd.apache.parquet"
"""Its Content-Type."""
_ROWS = 1000
"""Rows of a file of Parquet that are expanded at a time to measure it."""


class Damaged(ValueError):
    """The body is no file of Parquet."""


def parquet_sizes(data: bytes, most_values: int, most_bytes: int) -> tuple[int, int]:
    """Return how many values a file of Parquet holds, and how many bytes they take once they are
    expanded; beyond either limit, what was counted until then. Raises Damaged.

    Texts that are stored once and repeated, in dictionaries, are not expanded for that. Of others
    at most _ROWS rows are expanded at a time.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(data))
        # Not `row_group(n).column(n)`: pyarrow ends the process if that is damaged.
        whole: Any = file.metadata
        size = sum(whole.row_group(n).total_byte_size for n in range(whole.num_row_groups))
        values = whole.num_rows * whole.num_columns
        if values > most_values or size > most_bytes:
            return values, size
        columns: Any = map(file.schema.column, range(whole.num_columns))
        texts = [one.path for one in columns if one.physical_type == "BYTE_ARRAY"]
        try:
            return _counted(data, texts, most_values, most_bytes)
        except OSError:  # an encoding that pyarrow cannot turn into dictionaries
            return _counted(data, [], most_values, most_bytes)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(str(error)) from None


def _counted(data: bytes, texts: list[str], most_values: int, most_bytes: int) -> tuple[int, int]:
    """Count values and bytes batch by batch. `texts`: columns that are read as dictionaries."""
    import pyarrow as pa
    from pyarrow import parquet

    values = size = 0
    file = parquet.ParquetFile(pa.BufferReader(data), read_dictionary=texts)
    for batch in file.iter_batches(_ROWS):
        for column in batch.columns:
            count, more = _expanded(column)
            values, size = values + count, size + more
        if values > most_values or size > most_bytes:
            break
    return values, size


def _expanded(array: Any) -> tuple[int, int]:
    """Return the values of an array, in lists and structs too, and their bytes without
    dictionaries.
    """
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_nested(array.type) and not pa.types.is_dictionary(array.type):
        parts = array.flatten()
        found = [_expanded(part) for part in (parts if isinstance(parts, list) else [parts])]
        return sum(count for count, _ in found), sum(size for _, size in found)
    if not pa.types.is_dictionary(array.type):
        return len(array), int(array.nbytes)
    lengths: Any = compute.binary_length(array.dictionary)
    repeated = compute.sum(lengths.cast(pa.int64()).take(array.indices)).as_py()
    return len(array), int(repeated or 0)
