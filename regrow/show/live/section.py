"""One part of the live view, which draws itself in a given number of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part with a title and `rows` rows. `first`: rows that it gets in the first round, `then`:
    maximum rows, filled once all sections have their first ones.
    """

    rows: int
    first: int
    then: int
    draw: Callable[[int, int], list[Text]]
    """(width, rows) to the title's line and that many lines, or fewer."""
