"""A program's W&B objects beside numbers and artifacts: images, tables and pages are logged with
the trial, as are figures of matplotlib's and Plotly's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from regrow.integrations.wandb.messages import print_once
from regrow.tasks.media.content import Content
from regrow.tasks.media.log import MediaLog

MOST_IN_A_LIST = 100
"""Items of a list that are logged."""
Keep = Callable[[MediaLog, str], None]
"""Logs something under a name. Raises ReportError if it cannot be logged."""


class Media:
    """A histogram or a graph, which is accepted and not recorded, as the trial's log says."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def keep(self, log: MediaLog, name: str) -> None:
        """Log it under a name."""
        print_once(f"{name}: {type(self).__name__} is not recorded")


class Image(Media):
    """Pixels, a picture of Pillow's, a figure of matplotlib's, or the path of a file."""

    def __init__(self, data_or_path: Any = None, *_: Any, caption: Any = None, **__: Any) -> None:
        self.image, self.caption = data_or_path, caption

    def keep(self, log: MediaLog, name: str) -> None:
        if self.caption is not None:
            print_once(f"{name}: captions of images are not recorded")
        (log.log_figure if _is_figure(self.image) else log.log_image)(name, self.image)


class Html(Media):
    """A page: its text, its path, or a file that is open for reading. Kept as a file."""

    def __init__(self, data: Any = "", *_: Any, data_is_not_path: bool = False, **__: Any) -> None:
        if hasattr(data, "read"):
            data = data.read()
        elif not data_is_not_path and isinstance(data, str | os.PathLike):
            given = os.fspath(data)
            if given.endswith(".html") and os.path.isfile(given):
                data = Path(given).read_bytes()
        self.html: bytes = data if isinstance(data, bytes) else str(data).encode(errors="replace")

    def keep(self, log: MediaLog, name: str) -> None:
        log.log_media(name, lambda: Content(kind="file", suffix=".html", data=self.html))


class File(Media):
    """A sound, a film, a shape or a molecule: kept if it is a file."""

    def __init__(self, data_or_path: Any = None, *_: Any, **__: Any) -> None:
        self.path = data_or_path

    def keep(self, log: MediaLog, name: str) -> None:
        if isinstance(self.path, str | os.PathLike):
            log.log_file(name, self.path)
        else:
            print_once(f"{name}: {type(self).__name__} is recorded only if it is given as a file")


class Audio(File):
    pass


class Video(File):
    pass


class Object3D(File):
    pass


class Molecule(File):
    pass


class Plotly(Media):
    """A figure."""

    def __init__(self, val: Any = None, *_: Any, **__: Any) -> None:
        self.figure = val

    def keep(self, log: MediaLog, name: str) -> None:
        log.log_figure(name, self.figure)


class Histogram(Media):
    pass


class Graph(Media):
    pass


class Table(Media):
    """A table, which a program may also read."""

    def __init__(
        self, columns: Any = None, data: Any = None, dataframe: Any = None, *_: Any, **__: Any
    ) -> None:
        if hasattr(data, "columns"):
            dataframe = data
        if dataframe is not None:
            columns, data = dataframe.columns, dataframe.values
        if hasattr(data, "tolist"):  # NumPy's
            data = data.tolist()
        usual = ["Input", "Output", "Expected"]
        self.columns: list[Any] = usual if columns is None else list(columns)
        self.data: list[list[Any]] = [] if data is None else [list(row) for row in data]

    def keep(self, log: MediaLog, name: str) -> None:
        log.log_table(name, [list(map(_in_cell, row)) for row in self.data], self.columns)

    def add_data(self, *row: Any) -> None:
        self.data.append(list(row))

    def get_column(self, name: Any, convert_to: Any = None) -> Any:
        """Return the values of a column, as a list or, with "numpy", an array."""
        place = self.columns.index(name)
        values = [row[place] for row in self.data]
        if convert_to == "numpy":
            import numpy as np

            return np.array(values)
        return values

    def add_column(self, name: Any, data: Any, *_: Any, **__: Any) -> None:
        self.columns.append(name)
        self.data = [
            [*row, value] for row, value in zip(self.data or [[] for _ in data], data, strict=True)
        ]


class Plot(Media):
    """A plot of W&B's: its table is logged."""

    def __init__(self, table: Any = None, *_: Any, **__: Any) -> None:
        self.table = table

    def keep(self, log: MediaLog, name: str) -> None:
        if isinstance(self.table, Table):
            self.table.keep(log, name)
        else:
            print_once(f"{name}: a plot is recorded only if it is made of a wandb.Table")


class Plots:
    """`wandb.plot`: of its plots the tables are logged."""

    def __getattr__(self, name: str) -> type[Plot]:
        if name.startswith("__"):
            raise AttributeError(name)
        return Plot


def kept(name: str, value: Any) -> Iterator[tuple[str, Keep]]:
    """Yield the names of what a value of `wandb.log` holds, and how each is logged; nothing for one
    that is not logged.
    """
    if isinstance(value, Media):
        yield name, value.keep
    elif _is_figure(value):
        yield name, lambda log, at: log.log_figure(at, value)
    elif hasattr(value, "columns") and hasattr(value, "values"):  # a data frame
        yield name, lambda log, at: log.log_table(at, value)
    elif isinstance(value, list | tuple) and value and isinstance(value[0], Media):
        if len(value) > MOST_IN_A_LIST:
            print_once(f"{name}: of {len(value)} items, the first {MOST_IN_A_LIST} are recorded")
        for place, one in enumerate(value[:MOST_IN_A_LIST]):
            yield from kept(f"{name}/{place}", one)


def _is_figure(value: Any) -> bool:
    return any(callable(getattr(value, way, None)) for way in ("savefig", "to_plotly_json"))


def _in_cell(value: Any) -> Any:
    return type(value).__name__ if isinstance(value, Media) else value
