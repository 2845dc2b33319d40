"""The objective by step, one line per trial, coloured by outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regrow.infra.log.rows import LogRows
from regrow.search.history import TrialRecord
from regrow.search.numbers import readable
from regrow.show.figures import series, style

TITLE = "Learning curves"
READING = (
    "Each line is a trial, its mark where it ended. Good schedules stop lines low and let the"
    " promising ones run on."
)
NOTHING = "No trial has reported a step yet."
POINTS = 24_000
"""Maximum points of all lines: a browser draws them in a fraction of a second without WebGL."""
CURVES = 1000


def figure(log_rows: LogRows) -> style.Figure | None:
    history = log_rows.history
    drawn = [t for t in history.trials if t.values]
    if not drawn:
        return None
    made, at = style.blank(), f"step %{{x}}: {style.safe(history.objective.name)}"
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
            hover = f"trial %{{customdata}}, {outcome}<br>{at} %{{y:.8~g}}"
            made.add_scatter(
                **_joined(lines, most),
                mode="lines",
                legendgroup=outcome,
                name=f"{outcome} ({len(group)})",
                opacity=faint,
                line={"color": style.COLOURS[outcome], "width": 1.3},
                hovertemplate=f"{hover}<extra></extra>",
            )
            if len(shown) > 200 and outcome == "done":
                continue  # all of these end at the same step
            style.add_points(
                made,
                [(t.step, t.values[-1], t.number) for t in lines],
                style.marker(outcome, 6 if len(lines) < 200 else 4),
                hover,
                legendgroup=outcome,
                showlegend=False,
                opacity=min(1.0, faint + 0.2),
            )
    if best is not None and best.best is not None:
        value, step = best.best
        hover = f"trial {best.number}, the best<br>{at} %{{y:.8~g}}"
        made.add_scatter(
            **_joined([best], 2000),
            mode="lines",
            legendgroup="best",
            name=f"best: trial {best.number}, {readable(value)}",
            hovertemplate=f"{hover}<extra></extra>",
            line={"color": style.BEST, "width": 3},
        )
        point = [(step, value, best.number)]
        style.add_points(
            made, point, style.marker("best", 15), hover, legendgroup="best", showlegend=False
        )
    axis, note = style.objective_axis(
        history, [v for t in shown for v in (t.values if len(t.values) <= most else t.values[::3])]
    )
    made.update_layout(xaxis={"title": {"text": "step"}, "rangemode": "tozero"}, yaxis=axis)
    thinned = f"Of each line {most} points are drawn, its lowest and highest ones among them."
    return style.finished(
        made,
        thinned if thin else "",
        style.part(len(shown), len(drawn), "trials are drawn, evenly spread."),
        note,
        height=460,
    )


def _joined(trials: Sequence[TrialRecord], most: int) -> dict[str, Any]:
    """Return all lines in one trace with gaps: a thousand traces take a hundred times as long."""
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
