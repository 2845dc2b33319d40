"""The methods by which a training logs media, and which trial this process runs. A subclass says
where media are kept.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from regrow.tasks.media import content
from regrow.tasks.media.content import Content


class MediaLog(ABC):
    """What is logged belongs to the step that the next report ends, and after the last report to
    the last step. See `Trial`.
    """

    @abstractmethod
    def log_media(self, name: str, make: Callable[[], Content]) -> None:
        """Keep what `make` returns; it is not called if nothing is kept here. Raises ReportError
        for an invalid name.
        """

    def log_text(self, name: str, text: str) -> None:
        """Log a text. Raises ReportError for anything but a `str`."""
        self.log_media(name, lambda: content.text(text))

    def log_image(self, name: str, image: Any) -> None:
        """Log an image.

        Args:
            name: up to 100 printable characters; a slash makes a group, as in "val/errors".
            image: pixels as an array or a tensor of height x width (x 1, 3 or 4 channels, which may
                come first), integers from 0 to 255 or floats from 0 to 1; a picture of Pillow's;
                or the path or the bytes of an image file.

        Raises:
            ReportError: it is no image.

        """
        self.log_media(name, lambda: content.image(image))

    def log_table(self, name: str, rows: Any, columns: Sequence[object] | None = None) -> None:
        """Log a table.

        Args:
            name: up to 100 printable characters; a slash makes a group, as in "val/errors".
            rows: a list of maps or of lists, a map from columns to lists, or a data frame. Values
                other than numbers, text, True, False and None are kept as text.
            columns: the names of the columns; None: the keys of maps, else numbers from 1.

        Raises:
            ReportError: it is no table, or a row has another length.

        """
        self.log_media(name, lambda: content.table(rows, columns))

    def log_figure(self, name: str, figure: Any) -> None:
        """Log a figure of matplotlib's, kept as PNG, or of Plotly's, kept as JSON. Raises
        ReportError for anything else.
        """
        self.log_media(name, lambda: content.figure(figure))

    def log_file(self, name: str, path: str | os.PathLike[str]) -> None:
        """Log a copy of a file. Raises ReportError if it does not exist."""
        self.log_media(name, lambda: content.file(path))


_running: list[MediaLog] = []
"""A process runs one attempt at a time."""


@contextmanager
def running(trial: MediaLog) -> Iterator[None]:
    """Within the block, `trial` is the one that `running_trial` returns, in all threads."""
    _running.append(trial)
    try:
        yield
    finally:
        _running.remove(trial)


def running_trial() -> MediaLog | None:
    """Return the trial of this process; None if it runs none."""
    return _running[-1] if _running else None
