"""The objective by step, one line per trial, coloured by outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regrow.infra.log.rows import Rows
from regrow.search.history import TrialRecord
from regrow.show.figures import series
from regrow.show.figures.look import BEST, COLOURS, finished, marker, objective_axis, safe

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLE = "Learning curves"
READING = (
    "Each line is a trial, its mark where it ended. Good schedules stop lines low and let the"
    " promising ones run on."
)
NOTHING = "No trial has reported a step yet."
POINTS = 24_000
"""Maximum points of all lines, which a browser draws in a fraction of a second without WebGL, which
is limited per page.
"""
CURVES = 1000


def figure(told: Rows) -> Figure | None:
    """Make the figure; None before the first step."""
    history = told.history
    drawn = [t for t in history.trials if t.values]
    if not drawn:
        return None
    from plotly import graph_objects as go

    made, metric = go.Figure(), safe(history.objective.name)
    best = history.leader
    shown = series.sample(drawn, CURVES, keep=[best] if best is not None else [])
    most = max(12, POINTS // len(shown))
    chosen = {t.number for t in shown}
    faint = 0.8 if len(shown) <= 40 else 0.55 if len(shown) <= 200 else 0.3
    thin = any(len(t.values) > most for t in shown)
    # The other outcomes are drawn on top.
    order = sorted(
        series.counted(history).items(), key=lambda one: one[0] not in ("stopped", "failed")
    )
    for outcome, group in order:
        lines = [t for t in group if t.number in chosen and t is not best]
        if lines:
            hover = (
                f"trial %{{customdata}}, {outcome}<br>step %{{x}}: {metric}"
                " %{y:.5g}<extra></extra>"
            )
            made.add_scatter(
                **_joined(lines, most),
                mode="lines",
                legendgroup=outcome,
                name=f"{outcome} ({len(group)})",
                opacity=faint,
                line={"color": COLOURS[outcome], "width": 1.3},
                hovertemplate=hover,
            )
            if len(shown) > 200 and outcome == "done":
                continue  # all of these end at the same step
            made.add_scatter(
                x=[t.step for t in lines],
                y=[t.values[-1] for t in lines],
                customdata=[t.number for t in lines],
                mode="markers",
                legendgroup=outcome,
                showlegend=False,
                hovertemplate=hover,
                opacity=min(1.0, faint + 0.2),
                marker=marker(outcome, 6 if len(lines) < 200 else 4),
            )
    if best is not None and best.best is not None:
        value, step = best.best
        hover = f"trial {best.number}, the best<br>step %{{x}}: {metric} %{{y:.6g}}<extra></extra>"
        made.add_scatter(
            **_joined([best], 2000),
            mode="lines",
            legendgroup="best",
            name=f"best: trial {best.number}, {value:.5g}",
            hovertemplate=hover,
            line={"color": BEST, "width": 3},
        )
        made.add_scatter(
            x=[step],
            y=[value],
            customdata=[best.number],
            mode="markers",
            legendgroup="best",
            showlegend=False,
            marker=marker("best", 15),
            hovertemplate=hover,
        )
    axis, note = objective_axis(
        history, [v for t in shown for v in (t.values if len(t.values) <= most else t.values[::3])]
    )
    made.update_layout(xaxis={"title": {"text": "step"}, "rangemode": "tozero"}, yaxis=axis)
    return finished(
        made,
        f"Of each line {most} points are drawn, its lowest and highest ones among them."
        if thin
        else "",
        f"{len(shown):,} of {len(drawn):,} trials are drawn, evenly spread."
        if len(shown) < len(drawn)
        else "",
        note,
        height=460,
    )


def _joined(trials: Sequence[TrialRecord], most: int) -> dict[str, Any]:
    """Return all lines in one trace, with gaps between them: Plotly takes a hundred times as long
    for a thousand traces.
    """
    import numpy as np

    x: list[float] = []
    y: list[float] = []
    numbers: list[int] = []
    for trial in trials:
        places = series.thinned(trial.values, most)
        x += [place + 1 for place in places] + [np.nan]
        y += [trial.values[place] for place in places] + [np.nan]
        numbers += [trial.number] * (len(places) + 1)
    most_of_32 = float(np.finfo(np.float32).max)
    drawn = np.clip(np.array(y), -most_of_32, most_of_32).astype(np.float32)
    return {"x": np.array(x, np.float32), "y": drawn, "customdata": np.array(numbers, np.int32)}
