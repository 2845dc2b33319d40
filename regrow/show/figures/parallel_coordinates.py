"""Parallel coordinates: one line per trial through its parameters to its value.

Drawn as ordinary lines. Plotly's own kind uses WebGL, which needs 5 to 20 seconds for a first
picture without a GPU; it also shows no trial numbers, omits inactive parameters, and compiles code,
which a strict page policy forbids.
"""

from __future__ import annotations

from dataclasses import dataclass

from regrow.infra.log.rows import LogRows
from regrow.search.history import History, TrialRecord
from regrow.show.figures import parameters, series
from regrow.show.figures.style import BEST, GREY, Figure, blank, finished, part, safe, shade
from regrow.show.views import summaries
from regrow.show.views.names import LONGEST, shortened

TITLE = "Parallel coordinates"
READING = (
    "Each line is a trial, the darker the better it ranks. Drag over a part of an axis to keep only"
    " the lines through it, and double-click to have all back."
)
NOTHING = "It takes two trials with a value and a parameter that differs between them."
MOST = 800
AXES = 11
SHADES = 12
OFF = -0.16
"""Height of lines of trials in which a parameter is inactive; active ones are between 0 and 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinateAxis:
    """One axis: for each trial its height and its value as text; ticks by height."""

    name: str
    heights: list[float]
    texts: list[str]
    ticks: list[tuple[float, str]]


def figure(log_rows: LogRows) -> Figure | None:
    history = log_rows.history
    trials, found = parameters.varied(history)
    if not found:
        return None
    shown = series.sample(trials, MOST, keep=trials[:100])
    last, beyond = _objective(history, shown)
    columns = [*(_column(history, axis, shown) for axis in found[:AXES]), last]
    made = blank()
    ends = [1 + (len(shown) - 1) * n // SHADES for n in range(SHADES + 1)]
    for n in reversed(range(SHADES)):  # the worst first, so that the best are on top
        group = range(ends[n], ends[n + 1])
        _lines(made, columns, shown, group, shade(1 - n / (SHADES - 1)), width=1.2)
    _lines(made, columns, shown, range(1), BEST, width=3)
    for place, column in enumerate(columns):
        made.add_shape(
            type="line",
            x0=place,
            x1=place,
            y0=-0.02,
            y1=1.02,
            line={"color": GREY, "width": 1.5},
            layer="above",
        )
        for height, label in column.ticks:
            made.add_annotation(
                x=place,
                y=height,
                text=label,
                xanchor="right",
                xshift=-4,
                showarrow=False,
                font={"size": 11},
                borderpad=1,
            )
    names = shortened([column.name for column in columns], [LONGEST] * len(columns))
    made.update_layout(
        xaxis={
            "side": "top",
            "tickvals": list(range(len(columns))),
            "ticktext": [f"<b>{safe(name)}</b>" for name in names],
            "tickangle": 0,
            "tickfont": {"size": 11},
            "range": [-0.55, len(columns) - 0.85],
            "showgrid": False,
            "showline": False,
            "ticks": "",
            "fixedrange": True,
        },
        yaxis={"visible": False, "range": [-0.24, 1.06], "fixedrange": True},
        showlegend=False,
        dragmode="select",
        selectdirection="v",
        margin={"l": 20, "r": 50, "t": 50, "b": 16},
    )
    return finished(
        made,
        part(
            len(shown), len(trials), "trials are drawn: the best hundred, and others evenly spread."
        ),
        f"The first {AXES} of {len(found)} parameters are drawn." if len(found) > AXES else "",
        f"{beyond:,} far worse values are drawn at the end of the last axis." if beyond else "",
        height=460,
        min_width=100 * len(columns),
    )


def _lines(
    made: Figure,
    columns: list[CoordinateAxis],
    trials: list[TrialRecord],
    places: range,
    colour: str,
    *,
    width: float,
) -> None:
    """Add the trials at these places as one trace with gaps."""
    import numpy as np

    x, y, numbers, texts = list[float](), list[float](), list[int](), list[str]()
    for place in places:
        x += [*range(len(columns)), np.nan]
        y += [*(column.heights[place] for column in columns), np.nan]
        numbers += [trials[place].number] * (len(columns) + 1)
        texts += [*(f"{safe(column.name)} {safe(column.texts[place])}" for column in columns), ""]
    if x:
        made.add_scatter(
            x=np.array(x, np.float32),
            y=np.array(y, np.float32),
            customdata=np.array(numbers, np.int32),
            text=texts,
            mode="lines",
            line={"color": colour, "width": width},
            opacity=0.75 if width < 2 else 1.0,
            hovertemplate="trial %{customdata}<br>%{text}<extra></extra>",
        )


def _objective(history: History, trials: list[TrialRecord]) -> tuple[CoordinateAxis, int]:
    """Return the last axis, and how many outliers on the bad side are drawn at its end."""
    values = [t.best[0] for t in trials if t.best]
    limits, beyond = series.span(values, history.objective.mode)
    inside = values if limits is None else [v for v in values if limits[0] <= v <= limits[1]]
    low, high = min(inside), max(inside)
    # Halved, so that the difference of two values does not overflow.
    half = (high / 2 - low / 2) or 0.5
    column = CoordinateAxis(
        name=history.objective.name,
        heights=[(min(max(v, low), high) / 2 - low / 2) / half for v in values],
        texts=[series.short(v) for v in values],
        ticks=[((tick / 2 - low / 2) / half, label) for tick, label in _round(low, high)],
    )
    return column, beyond


def _column(
    history: History, axis: parameters.ParameterAxis, trials: list[TrialRecord]
) -> CoordinateAxis:
    configs = [summaries.reached_with(history, trial) for trial in trials]
    places = [axis.place(config) for config in configs]
    active = [p for p in places if p is not None]
    spread = 0.0
    if axis.categories is not None:
        count = len(axis.categories)
        low, high, spread = 0.0, count - 1.0, 0.6 / max(6, count)
        marks = [(float(n), safe(label, 20)) for n, label in enumerate(axis.categories)]
        marks = marks[:: -(-count // 20)]
    else:
        low, high = min(active), max(active)
        marks = parameters.decades(low, high) if axis.log else _round(low, high)
    width = (high - low) or 1.0
    heights = [
        (OFF if place is None else (place - low) / width)
        + series.spread(trial.number, 0.06 if place is None else spread)
        for place, trial in zip(places, trials, strict=True)
    ]
    off = [(OFF, "not active")] if len(active) < len(places) else []
    return CoordinateAxis(
        name=axis.name,
        heights=heights,
        texts=[series.short(config.get(axis.name, "is not active")) for config in configs],
        ticks=[*off, *(((at - low) / width, label) for at, label in marks)],
    )


def _round(low: float, high: float) -> list[tuple[float, str]]:
    return [(tick, safe(series.short(float(tick)))) for tick in parameters.ticks(low, high)]
