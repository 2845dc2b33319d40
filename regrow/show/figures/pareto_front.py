"""Several metrics against each other, and the Pareto-optimal trials."""

from __future__ import annotations

import math
from itertools import combinations
from typing import TYPE_CHECKING, Any

from regrow.infra.log.rows import Rows
from regrow.search.history import TrialRecord
from regrow.search.spec.parts import Metric
from regrow.show.figures import series
from regrow.show.figures.look import BEST, COLOURS, finished, safe

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLE = "Pareto front"
READING = (
    "Two metrics at each trial's last step. No trial beats one of the front in one metric and is as"
    " good in all others."
)
NOTHING = "The experiment has one metric, so there is no front."
PANELS = 6
POINTS = 2000


def figure(told: Rows) -> Figure | None:
    """Make the figure; None for one metric, and if no trial has reported all of them."""
    history = told.history
    metrics = history.spec.metrics
    complete = [
        t
        for t in history.trials
        if all(t.curve.metrics(t.step).get(m.name) is not None for m in metrics)
    ]
    if len(metrics) < 2 or not complete:
        return None
    from plotly.subplots import make_subplots

    front = set(history.front)
    best = [t for t in complete if t.number in front]
    others = series.sample([t for t in complete if t.number not in front], POINTS)
    broken = [t for t in others if not t.curve.feasible(t.step)]
    kept = [t for t in others if t not in broken] if len(broken) < len(others) else []
    pairs = list(combinations(metrics, 2))[:PANELS]
    columns = min(2, len(pairs))
    rows = math.ceil(len(pairs) / columns)
    made = make_subplots(
        rows=rows, cols=columns, horizontal_spacing=0.12, vertical_spacing=min(0.14, 0.3 / rows)
    )
    groups: list[tuple[str, list[TrialRecord], dict[str, Any]]] = [
        ("breaks a constraint", broken, {"color": COLOURS["failed"], "symbol": "x", "size": 6}),
        ("others", kept, {"color": COLOURS["pending"], "size": 6}),
        ("front", best, {"color": BEST, "size": 9, "symbol": "diamond"}),
    ]
    for place, (first, second) in enumerate(pairs):
        cell = {"row": place // columns + 1, "col": place % columns + 1}
        if len(metrics) == 2:
            x, y = _stairs(best, first, second)
            edge = {"color": BEST, "width": 1.5}
            made.add_scatter(
                x=x, y=y, mode="lines", line=edge, showlegend=False, hoverinfo="skip", **cell
            )
        for name, group, marker in groups:
            if group:
                made.add_scatter(
                    x=[t.curve.column(first.name)[-1] for t in group],
                    y=[t.curve.column(second.name)[-1] for t in group],
                    customdata=[t.number for t in group],
                    mode="markers",
                    marker=marker,
                    name=f"{name} ({len(group)})",
                    legendgroup=name,
                    showlegend=place == 0,
                    hovertemplate=(
                        f"trial %{{customdata}}<br>{safe(first.name)}"
                        f" %{{x:.5g}}<br>{safe(second.name)} %{{y:.5g}}<extra></extra>"
                    ),
                    **cell,
                )
        made.update_xaxes(title={"text": f"{safe(first.name)} ({first.mode})"}, **cell)
        made.update_yaxes(title={"text": f"{safe(second.name)} ({second.mode})"}, **cell)
    return finished(
        made,
        f"The first {PANELS} pairs of metrics are drawn."
        if math.comb(len(metrics), 2) > PANELS
        else "",
        f"{POINTS:,} of {len(complete) - len(best):,} trials that are not of the front are drawn,"
        " evenly spread."
        if len(complete) - len(best) > POINTS
        else "",
        height=90 + 360 * rows,
        min_width=320 * columns,
    )


def _stairs(
    front: list[TrialRecord], first: Metric, second: Metric
) -> tuple[list[float | None], list[float | None]]:
    """Return the edge of the dominated area: between two trials of the front, it has the worse of
    both values in each metric.
    """
    points = sorted(
        (t.curve.column(first.name)[-1], t.curve.column(second.name)[-1]) for t in front
    )
    if first.mode == "max":
        points.reverse()
    x: list[float | None] = []
    y: list[float | None] = []
    for place, (a, b) in enumerate(points):
        if place:
            x.append(a)
            y.append(points[place - 1][1])
        x.append(a)
        y.append(b)
    return x, y
