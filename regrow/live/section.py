"""One part of the live view, which draws itself in as many rows as it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A title and `rows` rows; `first` and `then`: rows that it gets before, and after, other sections have their first ones."""

    rows: int
    first: int
    then: int
    draw: Callable[[int, int], list[Text]]
    """(width, rows) to that many lines and the title's, or fewer."""
