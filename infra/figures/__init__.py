"""An experiment's figures, one module each, made with Plotly: functions of what the log says, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from regrow.infra.figures import (
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
from regrow.infra.log.rows import Rows

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Kind(Protocol):
    """A module that makes one figure. TITLE and READING (how to read it) go above it, NOTHING is why there is none."""

    TITLE: str
    READING: str
    NOTHING: str

    def figure(self, told: Rows) -> Figure | None:
        """The figure, None where it would have nothing to show."""
        ...


KINDS: dict[str, Kind] = {
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
"""All of them by name, in the order of the report."""


def figure(told: Rows, name: str) -> Figure | None:
    """The figure of this name, None where it would have nothing to show. Raises KeyError for another name."""
    return KINDS[name].figure(told)
