"""Several metrics against each other, and the Pareto-optimal trials."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from regrow.infra.log.rows import LogRows
from regrow.search.history import TrialRecord
from regrow.search.spec.parts import Metric
from regrow.show.figures import series, style

TITLE = "Pareto front"
READING = (
    "Two metrics at each trial's last step. No trial beats one of the front in one metric and is as"
    " good in all others."
)
NOTHING = "The experiment has one metric, so there is no front."
PANELS = 6
POINTS = 2000


def figure(log_rows: LogRows) -> style.Figure | None:
    history = log_rows.history
    metrics = history.spec.metrics
    complete = [
        t
        for t in history.trials
        if all(t.curve.metrics(t.step).get(m.name) is not None for m in metrics)
    ]
    if len(metrics) < 2 or not complete:
        return None
    front = set(history.front)
    best = [t for t in complete if t.number in front]
    others = series.sample([t for t in complete if t.number not in front], POINTS)
    broken = [t for t in others if not t.curve.feasible(t.step)]
    kept = [t for t in others if t not in broken] if len(broken) < len(others) else []
    pairs = list(combinations(metrics, 2))[:PANELS]
    columns = min(2, len(pairs))
    rows = math.ceil(len(pairs) / columns)
    height = min(0.14, 0.3 / rows)
    made = style.panels(rows, columns, horizontal_spacing=0.12, vertical_spacing=height)
    groups: list[tuple[str, list[TrialRecord], dict[str, Any]]] = [
        (
            "breaks a constraint",
            broken,
            {"color": style.COLOURS["failed"], "symbol": "x", "size": 6},
        ),
        ("others", kept, {"color": style.COLOURS["pending"], "size": 6}),
        ("front", best, {"color": style.BEST, "size": 9, "symbol": "diamond"}),
    ]
    for place, (first, second) in enumerate(pairs):
        cell = {"row": place // columns + 1, "col": place % columns + 1}
        if len(metrics) == 2:
            x, y = _step_line(best, first, second)
            style.add_line(
                made, x, y, {"color": style.BEST, "width": 1.5}, showlegend=False, **cell
            )
        across, up = style.safe(first.name, style.NAME), style.safe(second.name, style.NAME)
        for name, group, marker in groups:
            if group:
                style.add_points(
                    made,
                    [(*_ends(t, first, second), t.number) for t in group],
                    marker,
                    f"trial %{{customdata}}<br>{across} %{{x:.8~g}}<br>{up} %{{y:.8~g}}",
                    name=f"{name} ({len(group)})",
                    legendgroup=name,
                    showlegend=place == 0,
                    **cell,
                )
        made.update_xaxes(title={"text": f"{across} ({first.mode})"}, **cell)
        made.update_yaxes(title={"text": f"{up} ({second.mode})"}, **cell)
    several = math.comb(len(metrics), 2) > PANELS
    return style.finished(
        made,
        f"The first {PANELS} pairs of metrics are drawn." if several else "",
        style.part(
            POINTS,
            len(complete) - len(best),
            "trials that are not of the front are drawn, evenly spread.",
        ),
        height=90 + 360 * rows,
        min_width=320 * columns,
    )


def _ends(trial: TrialRecord, first: Metric, second: Metric) -> tuple[float, float]:
    return trial.curve.column(first.name)[-1], trial.curve.column(second.name)[-1]


def _step_line(
    front: list[TrialRecord], first: Metric, second: Metric
) -> tuple[list[float | None], list[float | None]]:
    """Return the dominated area's edge: between two of the front, the worse of both values."""
    points = sorted(_ends(trial, first, second) for trial in front)
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
