"""An experiment's figures for users: Plotly's, shown by notebooks, saved by `write_image`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regrow.infra.log.rows import LogRows
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Figures:
    """The figures of the report, each as a method that returns a Plotly figure.

    A notebook shows a figure and keeps it with everything a browser needs (2 MB each), also in
    nbconvert's output. `figure.write_html(file)` and `figure.write_image(file)` (with the extra
    `png`) save it. Each method raises UserError with the reason if there is nothing to draw; `all`
    omits those figures.
    """

    def __init__(self, rows: LogRows) -> None:
        self._rows = rows

    def all(self) -> dict[str, Figure]:
        """Return every figure that has something to show, by name, in the order of the report."""
        from regrow.show import figures
        from regrow.show.figures.embedded import EmbeddedFigure

        made = {name: figures.figure(self._rows, name) for name in figures.KINDS}
        return {name: EmbeddedFigure(figure) for name, figure in made.items() if figure is not None}

    def optimization_history(self) -> Figure:
        """Plot the value of each trial, and the best so far."""
        return self._made("optimization_history")

    def learning_curves(self) -> Figure:
        """Plot the objective of each trial by step, coloured by outcome."""
        return self._made("learning_curves")

    def best_trial(self) -> Figure:
        """Plot all metrics of the best trial by step, with its attempts marked."""
        return self._made("best_trial")

    def parallel_coordinates(self) -> Figure:
        """Plot each trial as a line through its parameters to its value."""
        return self._made("parallel_coordinates")

    def importances(self) -> Figure:
        """Plot how much of the differences in value each parameter explains."""
        return self._made("importances")

    def slices(self) -> Figure:
        """Plot the value against each single parameter."""
        return self._made("slices")

    def pareto_front(self) -> Figure:
        """Plot the trials that no other trial beats in all metrics, if there are several."""
        return self._made("pareto_front")

    def rungs(self) -> Figure:
        """Plot which trials the scheduler stopped, paused or continued, and at which step."""
        return self._made("rungs")

    def lineage(self) -> Figure:
        """Plot which trial took over whose weights, and when (population-based training)."""
        return self._made("lineage")

    def timeline(self) -> Figure:
        """Plot nodes over time with each attempt, loss and recovery."""
        return self._made("timeline")

    def scaling(self) -> Figure:
        """Plot steps per second by number of workers, for trials with workers.

        If the trainable reports a metric `samples` (of that step, over all workers), also plot
        samples per second per worker and the scaling efficiency.
        """
        return self._made("scaling")

    def wasted_work(self) -> Figure:
        """Plot what losses cost, by class and by trial."""
        return self._made("wasted_work")

    def _made(self, name: str) -> Figure:
        from regrow.show import figures
        from regrow.show.figures.embedded import EmbeddedFigure

        figure = figures.figure(self._rows, name)
        if figure is None:
            raise UserError(f"there is no figure {name!r} to draw: {figures.KINDS[name].NOTHING}")
        return EmbeddedFigure(figure)
