"""The value against each parameter, in one small plot each."""

from __future__ import annotations

import math
from typing import Any

from regrow.infra.log.rows import LogRows
from regrow.search.history import History, TrialRecord
from regrow.show.figures import parameters, series, style
from regrow.show.views import summaries
from regrow.show.views.names import HEADING, shortened

TITLE = "Slices"
READING = (
    "The value against each parameter. Points that crowd towards one side at the best values say"
    " where to search on."
)
NOTHING = "It takes two trials with a value and a parameter that differs between them."
AXES = 12
POINTS = 3000
COLUMNS = 3
ACROSS = 28
"""Cells of a parameter's name below its plot."""
LABELS = 36
"""Cells of the labels of all choices of a parameter, below its plot."""
SHORTEST = 3
"""Cells of such a label."""
SPREAD = 0.6
"""Width in which the points of a choice lie beside each other; choices are 1 apart."""


def figure(log_rows: LogRows) -> style.Figure | None:
    history = log_rows.history
    trials, found = parameters.varied(history)
    if not found:
        return None
    axes = found[:AXES]
    columns = min(COLUMNS, len(axes))
    rows = math.ceil(len(axes) / columns)
    gaps = {"horizontal_spacing": 0.035, "vertical_spacing": min(0.16, 0.3 / rows)}
    made = style.panels(rows, columns, shared_yaxes=True, **gaps)
    shown = series.sample(trials, max(150, POINTS // len(axes)), keep=trials[:50])
    chosen = {trial.number for trial in shown}
    groups = {
        outcome: [t for t in group if t.number in chosen]
        for outcome, group in series.counted(history).items()
    }
    groups["best"] = trials[:1]
    values = [trial.best[0] for trial in trials if trial.best]
    value_axis, note = style.objective_axis(history, values, HEADING)
    names = shortened([axis.name for axis in axes], [ACROSS] * len(axes))
    title = value_axis.pop("title")
    named: set[str] = set()
    for place, axis in enumerate(axes):
        cell = {"row": place // columns + 1, "col": place % columns + 1}
        for outcome, group in groups.items():
            if points := _points(history, axis, group):
                style.add_points(
                    made,
                    [(x, y, number) for x, y, number, _ in points],
                    style.marker(outcome, 13 if outcome == "best" else 6),
                    f"trial %{{customdata}}<br>{style.safe(axis.name)} %{{text}}<br>%{{y:.8~g}}",
                    text=[text for *_, text in points],
                    opacity=1.0 if outcome == "best" else 0.8,
                    name=outcome,
                    legendgroup=outcome,
                    showlegend=outcome not in named,
                    **cell,
                )
                named.add(outcome)
        configs = [summaries.reached_with(history, trial) for trial in shown]
        active = [config[axis.name] for config in configs if config.get(axis.name) is not None]
        named_so = {"text": style.safe(names[place]), "standoff": 6}
        made.update_xaxes(**_scale(axis, active), title=named_so, **cell)
        made.update_yaxes(**value_axis, **({"title": title} if cell["col"] == 1 else {}), **cell)
    return style.finished(
        made,
        f"The first {AXES} of {len(found)} parameters are drawn." if len(found) > AXES else "",
        style.part(
            len(shown), len(trials), "trials are drawn: the best fifty, and others evenly spread."
        ),
        note,
        height=90 + 260 * rows,
        min_width=260 * columns,
    )


def _points(
    history: History, axis: parameters.ParameterAxis, trials: list[TrialRecord]
) -> list[tuple[float, float, int, str]]:
    """Return (x, value, number, text) of the trials in which the parameter is active."""
    found = []
    for trial in trials:
        config = summaries.reached_with(history, trial)
        place = axis.place(config)
        if place is not None and trial.best is not None:
            spread = 0.0 if axis.categories is None else series.spread(trial.number, SPREAD)
            x = config[axis.name] if axis.log else place + spread
            text = style.safe(series.short(config[axis.name]))
            found.append((x, trial.best[0], trial.number, text))
    return found


def _scale(axis: parameters.ParameterAxis, values: list[Any]) -> dict[str, Any]:
    if axis.categories is not None:
        whole = {"range": [-0.6, len(axis.categories) - 0.4]}
        if len(axis.categories) > 20:
            return {"showticklabels": False, **whole}
        most = max(SHORTEST, LABELS // len(axis.categories))
        labels = list(map(style.safe, shortened(axis.categories, [most] * len(axis.categories))))
        every = -(-len(labels) * SHORTEST // LABELS)
        places = list(range(0, len(labels), every))
        return {"tickvals": places, "ticktext": labels[::every], "tickangle": 0, **whole}
    if axis.log:
        return style.logarithmic(values)
    if not all(isinstance(value, int) for value in values):
        return {}
    return {"tickvals": parameters.ticks(float(min(values)), float(max(values)))}
