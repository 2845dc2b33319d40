"""An experiment's figures, one module each, made with Plotly: pure functions of the log."""

from __future__ import annotations

from typing import Any, Protocol

from regrow.infra.log.rows import LogRows
from regrow.show.figures import (
    best_trial,
    importances,
    learning_curves,
    lineage,
    optimization_history,
    parallel_coordinates,
    pareto_front,
    rungs,
    scaling,
    slices,
    timeline,
    wasted_work,
)
from regrow.show.figures.style import Figure, drawn


class FigureKind(Protocol):
    """A module that makes one figure. TITLE and READING (how to read it) are shown above it;
    NOTHING is the reason if there is no figure.
    """

    TITLE: str
    READING: str
    NOTHING: str

    def figure(self, log_rows: LogRows) -> Figure | None:
        """Make the figure; None if it would show nothing."""
        ...


KINDS: dict[str, FigureKind] = {
    "optimization_history": optimization_history,
    "learning_curves": learning_curves,
    "best_trial": best_trial,
    "parallel_coordinates": parallel_coordinates,
    "importances": importances,
    "slices": slices,
    "pareto_front": pareto_front,
    "rungs": rungs,
    "lineage": lineage,
    "timeline": timeline,
    "scaling": scaling,
    "wasted_work": wasted_work,
}
"""All figures by name, in the order of the report."""
WHOLE = {"learning_curves", "parallel_coordinates", "slices", "lineage", "timeline", "scaling"}
"""Figures that take the whole width of a page."""


def figure(log_rows: LogRows, name: str) -> Figure | None:
    """Make the figure; None if it would show nothing. Raises KeyError for another name."""
    return KINDS[name].figure(log_rows)


def listed() -> list[dict[str, Any]]:
    """Return all figures as pages list them."""
    return [
        {"name": name, "title": kind.TITLE, "reading": kind.READING, "whole": name in WHOLE}
        for name, kind in KINDS.items()
    ]


def described(log_rows: LogRows, name: str) -> dict[str, Any]:
    """Return a figure as `style.drawn` does; {"nothing": the reason} if it would show nothing."""
    made = figure(log_rows, name)
    return {"nothing": KINDS[name].NOTHING} if made is None else drawn(made)
