"""What compared experiments reached, as rows of texts: for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.search.numbers import columned, money, readable
from regrow.show.views.comparison import leading

ABSENT = object()
"""Stands for the value of a parameter that a configuration does not have."""
_LEAST = {"steps": "steps", "wasted_steps": "steps done again", "losses": "losses"}
"""Keys of which less is better, with their titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table with a column for each experiment.

    Attributes:
        best: positions of the best cells.
        differs: whether it is a parameter with different values.

    """

    title: str
    cells: Sequence[str]
    best: Sequence[int] = ()
    differs: bool = False


def outcomes(
    view: dict[str, Any], *, title: str, duration: Callable[[float], str], count: str = ""
) -> Iterator[Row]:
    """Yield the rows of a `comparison.compare`. `title`: of the first row. `duration`: formats
    seconds. `count`: format of the numbers of trials.
    """
    found = view["experiments"]

    def counts(one: dict[str, Any], *keys: str) -> list[str]:
        return [format(one[key], count) for key in keys]

    def least(title: str, key: str, shown: Callable[[Any], str]) -> Row:
        values = [one[key] for one in found]
        best = [] if None in values else leading(values, "min")
        return Row(title=title, cells=list(map(shown, values)), best=best)

    best = [one["best"] for one in found]
    values = [None if one is None else one.get("mean", one["value"]) for one in best]
    deviations = [None if one is None else one.get("sd") for one in best]
    yield Row(
        title=title,
        cells=[
            cell if sd is None else f"{cell} +- {readable(sd, 2)}"
            for cell, sd in zip(columned(values), deviations, strict=True)
        ],
        best=leading(values, view["mode"]),
    )
    yield Row(
        title="of trial",
        cells=["" if one is None else f"{one['trial']} at step {one['step']}" for one in best],
    )
    yield Row(title="status", cells=[one["status"] for one in found])
    if any(one["tags"] for one in found):
        yield Row(title="tags", cells=[", ".join(one["tags"]) for one in found])
    if any(one["notes"] for one in found):
        last = [one["notes"][-1]["text"] if one["notes"] else "" for one in found]
        yield Row(title="note", cells=last)
    yield Row(title="trials", cells=[" of ".join(counts(one, "trials", "total")) for one in found])
    ends = ("done", "stopped", "failed")
    yield Row(title=", ".join(ends), cells=[", ".join(counts(one, *ends)) for one in found])
    for key, named in _LEAST.items():
        yield least(named, key, "{:,}".format)
    yield least("ran", "elapsed_s", duration)
    yield least("slot-hours", "slot_hours", "{:.3g}".format)
    if any(one["cost"] is not None for one in found):
        yield least("cost", "cost", lambda price: "" if price is None else money(price))


def configurations(configs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[Any], bool]]:
    """Yield the parameters of best configurations: name, each experiment's value (`ABSENT` if it
    has none), and whether they differ.
    """
    for name in dict.fromkeys(key for config in configs for key in config):
        values = [config.get(name, ABSENT) for config in configs]
        yield name, values, any(value is ABSENT or value != values[0] for value in values)
