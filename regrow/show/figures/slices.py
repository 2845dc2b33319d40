"""The value against each parameter, in one small plot each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from regrow.infra.log.rows import Rows
from regrow.search.history import History, TrialRecord
from regrow.show.figures import parameters, series
from regrow.show.figures.look import finished, logarithmic, marker, objective_axis, safe

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TITLE = "Slices"
READING = (
    "The value against each parameter. Points that crowd towards one side at the best values say"
    " where to search on."
)
NOTHING = "It takes two trials with a value and a parameter that differs between them."
AXES = 12
POINTS = 3000
COLUMNS = 3


def figure(told: Rows) -> Figure | None:
    """Make the figure; None for fewer than two trials with a value, and if no parameter differs."""
    history = told.history
    trials = series.ranked(history)
    found = parameters.axes(history, trials) if len(trials) > 1 else []
    if not found:
        return None
    from plotly.subplots import make_subplots

    axes = found[:AXES]
    columns = min(COLUMNS, len(axes))
    rows = math.ceil(len(axes) / columns)
    made = make_subplots(
        rows=rows,
        cols=columns,
        shared_yaxes=True,
        horizontal_spacing=0.035,
        vertical_spacing=min(0.16, 0.3 / rows),
    )
    shown = series.sample(trials, max(150, POINTS // len(axes)), keep=trials[:50])
    chosen = {trial.number for trial in shown}
    value_axis, note = objective_axis(history, [t.best[0] for t in trials if t.best])
    title = value_axis.pop("title")
    named: set[str] = set()
    for place, axis in enumerate(axes):
        row, column = place // columns + 1, place % columns + 1
        for outcome, group in series.counted(history).items():
            _add(
                made,
                history,
                axis,
                [t for t in group if t.number in chosen],
                outcome,
                named,
                row=row,
                col=column,
            )
        _add(made, history, axis, trials[:1], "best", named, row=row, col=column)
        values = [v for t in shown if (v := series.settings(history, t).get(axis.name)) is not None]
        made.update_xaxes(
            **_scale(axis, values),
            title={"text": safe(axis.name), "standoff": 6},
            row=row,
            col=column,
        )
        made.update_yaxes(**value_axis, row=row, col=column)
        if column == 1:
            made.update_yaxes(title=title, row=row, col=column)
    return finished(
        made,
        f"The first {AXES} of {len(found)} parameters are drawn." if len(found) > AXES else "",
        f"{len(shown):,} of {len(trials):,} trials are drawn: the best fifty, and others evenly"
        " spread."
        if len(shown) < len(trials)
        else "",
        note,
        height=90 + 260 * rows,
        min_width=200 * columns,
    )


def _add(
    made: Figure,
    history: History,
    axis: parameters.Axis,
    trials: list[TrialRecord],
    outcome: str,
    named: set[str],
    **cell: int,
) -> None:
    points = []
    for trial in trials:
        config = series.settings(history, trial)
        place = axis.place(config)
        if place is not None and trial.best is not None:
            spread = series.spread(trial.number, 0.5) if axis.categories is not None else 0.0
            points.append(
                (
                    10.0**place if axis.log else place + spread,
                    trial.best[0],
                    trial.number,
                    safe(series.short(config[axis.name])),
                )
            )
    if not points:
        return
    x, y, numbers, texts = (list(column) for column in zip(*points, strict=True))
    made.add_scatter(
        x=x,
        y=y,
        customdata=numbers,
        text=texts,
        mode="markers",
        marker=marker(outcome, 13 if outcome == "best" else 6),
        opacity=0.8 if outcome != "best" else 1.0,
        name=outcome,
        legendgroup=outcome,
        showlegend=outcome not in named,
        hovertemplate=(
            f"trial %{{customdata}}<br>{safe(axis.name)} %{{text}}<br>%{{y:.5g}}<extra></extra>"
        ),
        **cell,
    )
    named.add(outcome)


def _scale(axis: parameters.Axis, values: list[Any]) -> dict[str, Any]:
    if axis.categories is not None:
        labels = [safe(label if len(label) <= 14 else label[:13] + "…") for label in axis.labels()]
        ticks = list(range(len(labels)))
        if len(ticks) > 20:
            return {"showticklabels": False, "range": [-0.6, len(labels) - 0.4]}
        return {"tickvals": ticks, "ticktext": labels, "range": [-0.6, len(labels) - 0.4]}
    if axis.log:
        return logarithmic(values)
    whole = all(isinstance(value, int) for value in values)
    return {"tickvals": parameters.ticks(float(min(values)), float(max(values)))} if whole else {}
