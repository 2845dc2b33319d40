"""All metrics of the best trial by step, and where its attempts began."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from regrow.infra.log.rows import LogRows
from regrow.search.history import TrialRecord, repeats
from regrow.show.figures import series
from regrow.show.figures.style import BEST, COLOURS, GREY, Figure, finished, marker, panels, safe
from regrow.show.views.names import shortened

TITLE = "The best trial"
READING = (
    "All metrics of the best trial; the star is the step that counts, a dotted line the first step"
    " of a later attempt."
)
NOTHING = "No trial has reported a value yet."
MOST = 8
"""Maximum number of metrics, each of which has its plot."""
POINTS = 2000
UP = 18
"""Cells of a metric's name beside its plot."""


def figure(log_rows: LogRows) -> Figure | None:
    history = log_rows.history
    found = repeats.best(history)
    if found is None:
        return None
    trial, step = found.trial, found.step
    count, drawn = _lines(log_rows, trial, [metric.name for metric in history.spec.metrics])
    names, at_best = list(drawn), trial.curve.shown(step)
    spacing = min(0.06, 0.3 / len(names))
    made = panels(len(names), 1, shared_xaxes=True, vertical_spacing=spacing)
    short = shortened(names, [UP] * len(names))
    for place, name in enumerate(names, start=1):
        line = drawn[name]
        kept = series.thinned(line, POINTS)
        colour = BEST if name == history.objective.name else COLOURS["done"]
        made.add_scatter(
            x=[place + 1 for place in kept],
            y=[None if math.isnan(line[place]) else line[place] for place in kept],
            customdata=[trial.curve.attempt_at(place + 1) for place in kept],
            mode="lines+markers" if len(kept) <= 60 else "lines",
            name=safe(name),
            showlegend=False,
            row=place,
            col=1,
            line={"color": colour, "width": 2},
            marker={"size": 5},
            hovertemplate=(
                f"step %{{x}}, attempt %{{customdata}}<br>{safe(name)} %{{y:.8~g}}<extra></extra>"
            ),
            meta="attempt",
        )
        if (value := at_best.get(name)) is not None:
            made.add_scatter(
                x=[step],
                y=[value],
                mode="markers",
                marker=marker("best", 14) | {"color": colour},
                showlegend=False,
                row=place,
                col=1,
                hoverinfo="skip",
            )
        made.update_yaxes(title={"text": safe(short[place - 1])}, row=place, col=1)
    changes = [last + 1 for _, last in trial.curve.runs[:-1]]
    for number in series.sample(changes, 30):
        made.add_vline(x=number, line={"color": GREY, "width": 1, "dash": "dot"})
    made.update_xaxes(title={"text": "step"}, row=len(names), col=1)
    return finished(
        made,
        f"{MOST} of its {count} metrics are drawn." if count > MOST else "",
        f"Of each line {POINTS:,} points are drawn." if trial.step > POINTS else "",
        height=max(300, 90 + 150 * len(names)),
    )


def _lines(
    rows: LogRows, trial: TrialRecord, first: list[str]
) -> tuple[int, dict[str, Sequence[float]]]:
    """Return how many metrics a trial reported, and the values of MOST of them by step, those in
    `first` first; NaN where a step lacks one.
    """
    names = dict.fromkeys(first)
    drawn = {name: array("d") for name in first[:MOST]}
    for place, (_, row) in enumerate(rows.of(trial.number)):
        for name in row.metrics:
            if name not in names and len(drawn) < MOST:
                drawn[name] = array("d", [math.nan]) * place
            names[name] = None
        for name, line in drawn.items():
            value = row.metrics.get(name)
            line.append(math.nan if value is None else value)
    return len(names), dict(drawn)
