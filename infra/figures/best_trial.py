"""All metrics of the best trial by step, and where its attempts began."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regrow.infra.figures import series
from regrow.infra.figures.look import BEST, COLOURS, GREY, finished, safe
from regrow.search.history import History

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLE = "The best trial"
READING = "All metrics of the best trial; the star is the step that counts, a dotted line the first step of a later attempt."
NOTHING = "No trial has reported a value yet."
MOST = 8
"""Metrics, as each has a plot of its own."""
POINTS = 2000


def figure(history: History) -> Figure | None:
    """None before the first value that counts."""
    if history.best is None:
        return None
    from plotly.subplots import make_subplots

    trial = history.trials[history.best]
    assert trial.best is not None
    _, step = trial.best
    metrics = history.spec.metrics
    found = list(dict.fromkeys([*(m.name for m in metrics), *(name for row in trial.rows for name in row.metrics)]))
    names = found[:MOST]
    made = make_subplots(rows=len(names), cols=1, shared_xaxes=True, vertical_spacing=min(0.06, 0.3 / len(names)))
    for place, name in enumerate(names, start=1):
        values = [row.metrics.get(name) for row in trial.rows]
        there = [0.0 if v is None else v for v in values]
        kept = series.thinned(there, POINTS)
        colour = BEST if name == history.objective.name else COLOURS["done"]
        made.add_scatter(
            x=[trial.rows[p].step for p in kept], y=[values[p] for p in kept], customdata=[trial.lineage[p] for p in kept],
            mode="lines+markers" if len(kept) <= 60 else "lines", name=safe(name), showlegend=False, row=place, col=1,
            line={"color": colour, "width": 2}, marker={"size": 5},
            hovertemplate=f"step %{{x}}, attempt %{{customdata}}<br>{safe(name)} %{{y:.6g}}<extra></extra>", meta="attempt",
        )
        if values[step - 1] is not None:
            made.add_scatter(
                x=[step], y=[values[step - 1]], mode="markers", marker={"color": colour, "symbol": "star", "size": 14},
                showlegend=False, row=place, col=1, hoverinfo="skip",
            )
        made.update_yaxes(title={"text": safe(name) if len(name) <= 18 else safe(name[:17] + "…")}, row=place, col=1)
    changes = [row.step for row, a, b in zip(trial.rows[1:], trial.lineage[1:], trial.lineage, strict=False) if a != b]
    for number in series.sample(changes, 30):
        made.add_vline(x=number, line={"color": GREY, "width": 1, "dash": "dot"})
    made.update_xaxes(title={"text": "step"}, row=len(names), col=1)
    notes = []
    if len(found) > MOST:
        notes.append(f"{MOST} of its {len(found)} metrics are drawn.")
    if len(trial.rows) > POINTS:
        notes.append(f"Of each line {POINTS:,} points are drawn.")
    return finished(made, height=max(300, 90 + 150 * len(names)), note=" ".join(notes))
