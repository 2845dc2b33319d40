"""The best value of each trial, in the order in which they were proposed, and the best so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regrow.infra.log.rows import Rows
from regrow.show.figures import series
from regrow.show.figures.look import GREY, finished, marker, objective_axis, safe

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLE = "Optimisation history"
READING = (
    "Each point is a trial at its best value, the line the best so far. Where it stays flat, more"
    " trials bring little."
)
NOTHING = "No trial has reported a value yet."
MOST = 3000
"""Maximum points: each is an element of the page."""


def figure(told: Rows) -> Figure | None:
    """Make the figure; None before the first value that counts."""
    history = told.history
    leader = history.leader
    if leader is None or leader.best is None:
        return None
    from plotly import graph_objects as go

    made, metric = go.Figure(), safe(history.objective.name)
    steps = series.best_so_far(history)
    leaders = [history.trials[number] for number, _ in steps]
    values = [t.best[0] for t in history.trials if t.best]
    for outcome, group in series.counted(history).items():
        reached = [t for t in group if t.best]
        shown = series.sample(
            reached, max(1, MOST * len(reached) // max(1, len(values))), keep=leaders
        )
        if shown:
            made.add_scatter(
                x=[t.number for t in shown],
                y=[t.best[0] for t in shown if t.best],
                customdata=[t.number for t in shown],
                mode="markers",
                name=f"{outcome} ({len(group)})",
                marker=marker(outcome, 8 if len(values) < 400 else 6),
                hovertemplate=f"trial %{{x}}, {outcome}<br>{metric} %{{y:.5g}}<extra></extra>",
            )
    end = len(history.trials) - 1
    made.add_scatter(
        x=[*(n for n, _ in steps), end],
        y=[*(v for _, v in steps), steps[-1][1]],
        mode="lines",
        name="best so far",
        line={"shape": "hv", "color": GREY, "width": 2},
        hoverinfo="skip",
    )
    made.add_scatter(
        x=[leader.number],
        y=[leader.best[0]],
        customdata=[leader.number],
        mode="markers",
        name=f"best: trial {leader.number}, {leader.best[0]:.5g}",
        marker=marker("best", 15),
        hovertemplate=f"trial %{{x}}, the best<br>{metric} %{{y:.6g}}<extra></extra>",
    )
    axis, note = objective_axis(history, values)
    edge = max(0.5, 0.02 * end)
    made.update_layout(xaxis={"title": {"text": "trial"}, "range": [-edge, end + edge]}, yaxis=axis)
    left_out = (
        f"{MOST:,} of {len(values):,} trials are drawn, evenly spread, and each that was the best"
        " so far."
        if len(values) > MOST
        else ""
    )
    return finished(made, left_out, note)
