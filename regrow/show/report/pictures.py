"""The two most informative figures as PNG, drawn by Matplotlib: for artifacts, and where no browser
can draw Plotly's.

Only Matplotlib's objects and its Agg canvas are used, not pyplot, so that threads share no state.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from regrow.search.history import History
from regrow.show.figures import series
from regrow.show.figures.look import BEST, COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, LINE, FAINT = "#24292f", "#aab2bb", "#e6e9ed"
MARKERS = {
    "done": "o",
    "stopped": "o",
    "paused": "D",
    "failed": "x",
    "lost": "x",
    "running": "^",
    "pending": ".",
}
POINTS = 40_000
"""Maximum points of all curves; more than the picture's pixels across make no difference."""
_FONTS = threading.Lock()
"""All threads of a process share Matplotlib's FreeType faces, and laying out text changes them."""


def png(history: History, name: str) -> bytes | None:
    """Return a picture of 1,600 by 900 pixels; `name` is "optimization_history" or
    "learning_curves".

    None if there is nothing to draw. Raises KeyError for another name.
    """
    draw = PICTURES[name]
    with _FONTS:
        figure = draw(history)
        if figure is None:
            return None
        file = io.BytesIO()
        figure.savefig(file, format="png")
        return file.getvalue()


def optimization_history(history: History) -> Figure | None:
    """Draw the best value of each trial, and the best so far."""
    if history.best is None:
        return None
    trials = series.ranked(history)
    values = [t.best[0] for t in trials if t.best]
    figure, axes = _axes(history, values, "trial", history.objective.name)
    for outcome, group in series.counted(history).items():
        reached = [(t.number, t.best[0]) for t in group if t.best]
        if reached:
            hollow = outcome in ("stopped", "paused")
            colour = COLOURS[outcome]
            filled = {} if MARKERS[outcome] == "x" else {"facecolors": "none" if hollow else colour}
            axes.scatter(
                *zip(*reached, strict=True),
                s=26,
                marker=MARKERS[outcome],
                linewidths=1.3,
                label=f"{outcome} ({len(group)})",
                alpha=0.9,
                zorder=3,
                **({"edgecolors": colour, **filled} if filled else {"color": colour}),
            )
    steps = series.best_so_far(history)
    places, heights = [n for n, _ in steps], [v for _, v in steps]
    end = len(history.trials) - 1
    axes.step(
        [*places, end],
        [*heights, heights[-1]],
        where="post",
        color=INK,
        linewidth=1.6,
        label="best so far",
        zorder=2,
    )
    number, value = steps[-1]
    axes.scatter(
        [number],
        [value],
        s=150,
        marker="*",
        color=BEST,
        zorder=4,
        label=f"best: trial {number}, {value:.5g}",
    )
    _whole(axes)
    _legend(axes)
    return figure


def learning_curves(history: History) -> Figure | None:
    """Draw the objective by step, one line per trial."""
    drawn = [t for t in history.trials if t.values]
    if not drawn:
        return None
    figure, axes = _axes(
        history, [v for t in drawn for v in t.values], "step", history.objective.name
    )
    most = max(12, POINTS // len(drawn))
    faint = 0.75 if len(drawn) <= 50 else 0.45 if len(drawn) <= 300 else 0.2
    for outcome, group in series.counted(history).items():
        label: str | None = f"{outcome} ({len(group)})"
        for trial in group:
            if trial.values and trial.number != history.best:
                places = series.thinned(trial.values, most)
                mark = {"marker": ".", "markersize": 5} if len(trial.values) == 1 else {}
                axes.plot(
                    [p + 1 for p in places],
                    [trial.values[p] for p in places],
                    color=COLOURS[outcome],
                    linewidth=1.1,
                    alpha=faint,
                    label=label,
                    solid_capstyle="round",
                    **mark,
                )
                label = None
    if (leader := history.leader) is not None and leader.best is not None:
        value, step = leader.best
        label = f"best: trial {leader.number}, {value:.5g}"
        axes.plot(
            range(1, leader.step + 1),
            leader.values,
            color=BEST,
            linewidth=2.2,
            zorder=4,
            label=label,
        )
        axes.scatter([step], [value], s=150, marker="*", color=BEST, zorder=5)
    _whole(axes)
    _legend(axes)
    return figure


PICTURES: dict[str, Callable[[History], Any]] = {
    "optimization_history": optimization_history,
    "learning_curves": learning_curves,
}


def _axes(history: History, values: list[float], across: str, up: str) -> tuple[Figure, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), dpi=200, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    log = series.logarithmic(values)
    limits, _ = series.span(values, history.objective.mode, log=log)
    if log:
        axes.set_yscale("log")
    if limits is not None:
        axes.set_ylim(*((10.0**v for v in limits) if log else limits))
    axes.set_title(_plain(history.spec.name), loc="left", fontsize=12, fontweight="bold", color=INK)
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(f"{_plain(up)} ({history.objective.mode})", color=INK)
    axes.grid(visible=True, color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LINE)
    return figure, axes


def _plain(text: str) -> str:
    """Escape a user's text: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def _whole(axes: Any) -> None:
    """Use whole numbers for trials and steps."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _legend(axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    shown = axes.legend(
        handles,
        labels,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=min(5, len(labels)),
        frameon=False,
        fontsize=8.5,
        handletextpad=0.4,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
    for handle in shown.legend_handles:
        handle.set_alpha(1.0)
