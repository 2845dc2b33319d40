"""Converts what a training logs to the bytes that are kept. Imports NumPy and Pillow only
where they are needed.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.tasks.errors import ReportError
from regrow.tasks.media.items import Kind

_SIGNS = {
    ".png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    ".jpg": re.compile(rb"\xff\xd8\xff"),
    ".gif": re.compile(rb"GIF8[79]a"),
    ".webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
"""How files of the formats begin that are kept as they are, by their suffixes."""
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is to be kept: bytes, or a file that is to be copied. See `Item` for the others."""

    kind: Kind
    suffix: str
    data: bytes | Path

    @property
    def size(self) -> int:
        """Bytes. Raises OSError if the file is gone."""
        return len(self.data) if isinstance(self.data, bytes) else self.data.stat().st_size


def text(given: object) -> Content:
    """Return a text. Raises ReportError for anything else."""
    if not isinstance(given, str):
        raise ReportError(f"log_text takes a text, not {_named(given)}")
    return Content(kind="text", suffix=".txt", data=given.encode(errors="replace"))


def file(path: str | os.PathLike[str]) -> Content:
    """Return a file's content. Raises ReportError if there is no such file."""
    found = Path(path)
    if not found.is_file():
        raise ReportError(f"log_file: there is no file {found}")
    suffix = found.suffix.lower()
    known = re.fullmatch(r"\.[a-z0-9]{1,16}", suffix, re.ASCII) is not None
    return Content(kind="file", suffix=suffix if known else "", data=found)


def image(given: Any) -> Content:
    """Return an image as PNG, or as the JPEG, GIF or WebP file that it is. Raises ReportError."""
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if not path.is_file():
            raise ReportError(f"log_image: there is no file {path}")
        return _of_file(path.read_bytes(), str(path))
    if isinstance(given, bytes):
        return _of_file(given, "what is given")
    if not callable(getattr(given, "save", None)):  # else a picture of Pillow's
        from PIL import Image

        given = Image.fromarray(_pixels(given))
    return _png(given)


def table(rows: Any, columns: Sequence[object] | None = None) -> Content:
    """Return a table as JSON, `{"columns": [...], "data": [[...], ...]}`. Raises ReportError."""
    if columns is None and hasattr(rows, "columns") and hasattr(rows, "values"):
        columns, rows = list(rows.columns), rows.values.tolist()  # a data frame
    if isinstance(rows, Mapping):
        columns = list(rows)
        try:
            rows = list(zip(*rows.values(), strict=True))
        except (TypeError, ValueError) as error:
            raise ReportError(f"log_table: a map takes columns of one length: {error}") from None
    found = list(rows) if isinstance(rows, Iterable) and not isinstance(rows, str) else None
    if found is None or any(isinstance(row, str) or not isinstance(row, Iterable) for row in found):
        raise ReportError(
            "log_table takes a list of rows, each a map or a list, or a data frame, not"
            f" {_named(rows)}"
        )
    if columns is None:
        names = (name for row in found if isinstance(row, Mapping) for name in row)
        columns = list(dict.fromkeys(names))
        if not columns and found:
            columns = list(range(1, max(len(list(row)) for row in found) + 1))
    cells = [
        [_cell(row.get(name)) for name in columns]
        if isinstance(row, Mapping)
        else [_cell(value) for value in row]
        for row in found
    ]
    if ragged := next((row for row in cells if len(row) != len(columns)), None):
        raise ReportError(f"log_table: a row has {len(ragged)} values, for {len(columns)} columns")
    written = {"columns": list(map(str, columns)), "data": cells}
    # with a ? for half of a surrogate pair, as in a text
    data = json.dumps(written, ensure_ascii=False).encode(errors="replace")
    return Content(kind="table", suffix=".json", data=data)


def figure(given: Any) -> Content:
    """Return a figure of matplotlib's as PNG, one of Plotly's as JSON. Raises ReportError."""
    if callable(getattr(given, "to_plotly_json", None)):
        return Content(kind="figure", suffix=".json", data=given.to_json().encode())
    if callable(getattr(given, "gcf", None)):  # pyplot itself
        given = given.gcf()
    elif not callable(getattr(given, "savefig", None)) and callable(
        getattr(given, "get_figure", None)
    ):  # axes, and what is drawn on them
        given = given.get_figure()
    if not callable(getattr(given, "savefig", None)):
        raise ReportError(
            f"log_figure takes a figure of matplotlib's or Plotly's, not {_named(given)}"
        )
    buffer = io.BytesIO()
    given.savefig(buffer, format="png", bbox_inches="tight")
    return Content(kind="figure", suffix=".png", data=buffer.getvalue())


def _of_file(data: bytes, name: str) -> Content:
    for suffix, sign in _SIGNS.items():
        if sign.match(data):
            return Content(kind="image", suffix=suffix, data=data)
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as found:
            return _png(found)
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise ReportError(f"log_image: {name} is no image that can be read: {error}") from None


def _png(picture: Any) -> Content:
    if getattr(picture, "mode", "RGB") not in ("1", "L", "LA", "P", "RGB", "RGBA"):
        picture = picture.convert("RGB")
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return Content(kind="image", suffix=".png", data=buffer.getvalue())


def _pixels(given: Any) -> Any:
    """Return 8-bit pixels: height, width, and channels unless there is one. Raises ReportError."""
    import numpy as np

    if callable(getattr(given, "detach", None)):  # a tensor
        given = given.detach().cpu()
        given = (given.float() if given.is_floating_point() else given).numpy()
    try:
        found = np.asarray(given)
    except ValueError:
        found = np.empty(0)
    if found.ndim == 3 and found.shape[0] in _CHANNELS and found.shape[2] not in _CHANNELS:
        found = np.moveaxis(found, 0, 2)  # channels first, as PyTorch has them
    if found.ndim == 3 and found.shape[2] == 1:
        found = found[:, :, 0]
    flat = found.ndim == 2 or (found.ndim == 3 and found.shape[2] in _CHANNELS)
    if not flat or found.size == 0 or found.dtype.kind not in "buif":
        raise ReportError(
            "log_image takes pixels as height x width or height x width x 1, 3 or 4, a picture of"
            f" Pillow's, or a file, not {_named(given)}"
        )
    if found.dtype.kind == "f":
        found = np.nan_to_num(found, nan=0.0, posinf=1.0, neginf=0.0).clip(0.0, 1.0) * 255 + 0.5
    elif found.dtype.kind == "b":
        found = found * np.uint8(255)
    return np.ascontiguousarray(found.clip(0, 255).astype(np.uint8))


def _cell(value: Any) -> Any:
    """Return a value as JSON has it; a number that JSON lacks, and any object, as text."""
    if callable(getattr(value, "item", None)) and getattr(value, "shape", ()) == ():
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def _named(given: object) -> str:
    shape = getattr(given, "shape", None)
    return f"{type(given).__name__}{'' if shape is None else f' of shape {tuple(shape)}'}"
