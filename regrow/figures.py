"""An experiment's figures as a user asks for them: Plotly's, which notebooks show and `write_image` makes PNGs of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regrow.infra.log.rows import Rows
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Figures:
    """The figures of the report, each as a function that returns a Plotly figure.

    A notebook shows it, and keeps it with all that a browser needs (2 MB each), also in what nbconvert makes of it.
    `figure.write_html(file)` and `figure.write_image(file)` (with the extra `png`) save it. Each raises UserError, saying why,
    where there is nothing to draw; `all` leaves those out.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def all(self) -> dict[str, Figure]:
        """Every figure that has something to show, by name, in the order of the report."""
        from regrow.infra import figures
        from regrow.infra.figures.embedded import EmbeddedFigure

        made = {name: figures.figure(self._rows, name) for name in figures.KINDS}
        return {name: EmbeddedFigure(figure) for name, figure in made.items() if figure is not None}

    def optimization_history(self) -> Figure:
        """The value of each trial, and the best so far."""
        return self._made("optimization_history")

    def learning_curves(self) -> Figure:
        """The objective of each trial by step, coloured by outcome."""
        return self._made("learning_curves")

    def best_trial(self) -> Figure:
        """All metrics of the best trial by step, its attempts marked."""
        return self._made("best_trial")

    def parallel_coordinates(self) -> Figure:
        """Each trial as a line through its parameters to its value."""
        return self._made("parallel_coordinates")

    def importances(self) -> Figure:
        """How much of the differences in value each parameter explains."""
        return self._made("importances")

    def slices(self) -> Figure:
        """The value over each parameter by itself."""
        return self._made("slices")

    def pareto_front(self) -> Figure:
        """Where there are several metrics: the trials that no other one beats in all of them."""
        return self._made("pareto_front")

    def rungs(self) -> Figure:
        """Which trials the schedule stopped, paused or let go on, and at which step."""
        return self._made("rungs")

    def lineage(self) -> Figure:
        """Population-based training: which trial took over whose weights, and when."""
        return self._made("lineage")

    def timeline(self) -> Figure:
        """Nodes over time with each attempt, loss and recovery."""
        return self._made("timeline")

    def scaling(self) -> Figure:
        """Steps a second by number of workers, for trials that have some; where the trainable reports a metric `samples` (of that
        step, over all workers), also samples a second a worker, and how well that scales.
        """
        return self._made("scaling")

    def wasted_work(self) -> Figure:
        """What losses cost, by class and by trial."""
        return self._made("wasted_work")

    def _made(self, name: str) -> Figure:
        from regrow.infra import figures
        from regrow.infra.figures.embedded import EmbeddedFigure

        figure = figures.figure(self._rows, name)
        if figure is None:
            raise UserError(f"there is no figure {name!r} to draw: {figures.KINDS[name].NOTHING}")
        return EmbeddedFigure(figure)
