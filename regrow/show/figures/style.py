"""The common look of all figures: colours, templates for light and dark, users' texts."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, TypeAlias

from regrow.search.history import History
from regrow.search.space.scalars import plain
from regrow.show.figures import series
from regrow.show.views.names import middle
from regrow.tasks.output.traces import one_line

Figure: TypeAlias = Any
"""A figure of Plotly, which has no types, and is imported once a figure is drawn."""
COLOURS = {
    "done": "#2f7fc1",
    "stopped": "#e39b1e",
    "paused": "#9a6fb0",
    "failed": "#d1495b",
    "lost": "#d1495b",
    "preempted": "#b5763a",
    "running": "#1f9e77",
    "pending": "#9aa3ad",
    "best": "#d81b8c",
}
"""Colours by outcome of a trial or an attempt. After Okabe and Ito: blue, orange, red-violet and
green of different lightness, which people with red-green colour blindness can tell apart, and which
contrast with white and near-black.
"""
BEST = COLOURS["best"]
SCALE: list[tuple[float, str]] = [
    (0.0, "#f2c14e"),
    (0.35, "#7bc47f"),
    (0.7, "#2a7f9e"),
    (1.0, "#3b1f6b"),
]
"""Colours from the worst to the best value; lightness falls, so it also works in grey."""
SYMBOLS = {
    "done": "circle",
    "stopped": "circle-open",
    "paused": "diamond-open",
    "failed": "x",
    "lost": "x-open",
    "running": "triangle-up",
    "pending": "circle-dot",
    "best": "star",
}
NAME = 40
"""Cells of a name along an axis of a figure of the usual height."""
SMALLEST = 1e-280
"""Plotly draws no axis over less than 1e-305; this leaves room for neighbouring floats."""
LIMIT = 10_000
"""Characters of a text that are looked at."""
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


def template(*, dark: bool = False) -> dict[str, Any]:
    """Return a Plotly template. The dark one shows the page's background."""
    ink, faint, line = (
        ("#d6dbe1", "#2c333c", "#59636f") if dark else ("#24292f", "#e6e9ed", "#aab2bb")
    )
    paper = "rgba(0,0,0,0)" if dark else "#ffffff"
    axis = {
        "gridcolor": faint,
        "linecolor": line,
        "zeroline": False,
        "showline": True,
        "ticks": "outside",
        "tickcolor": line,
        "ticklen": 4,
        "automargin": True,
        "title": {"standoff": 10, "font": {"size": 13}},
        "tickfont": {"size": 12},
    }
    return {
        "layout": {
            "font": {"family": FONT, "size": 13, "color": ink},
            "paper_bgcolor": paper,
            "plot_bgcolor": paper,
            "margin": {"l": 64, "r": 24, "t": 24, "b": 52},
            "xaxis": axis,
            "yaxis": axis,
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 1.02,
                "yanchor": "bottom",
                "font": {"size": 12},
            },
            "hoverlabel": {"font": {"family": FONT, "size": 12}, "align": "left", "namelength": -1},
            "colorway": [
                COLOURS["done"],
                COLOURS["stopped"],
                COLOURS["running"],
                COLOURS["paused"],
                BEST,
                COLOURS["preempted"],
            ],
            "colorscale": {"sequential": [list(stop) for stop in SCALE]},
            "annotationdefaults": {
                "bgcolor": "rgba(22,26,31,0.75)" if dark else "rgba(255,255,255,0.75)"
            },
            "hovermode": "closest",
            "dragmode": "zoom",
        }
    }


def shade(u: float) -> str:
    """Return the colour of SCALE at `u`, from 0 for the worst to 1 for the best."""
    for (low, first), (high, second) in pairwise(SCALE):
        if u <= high:
            share = (u - low) / (high - low)
            parts = [(int(first[n : n + 2], 16), int(second[n : n + 2], 16)) for n in (1, 3, 5)]
            return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in parts)
    return SCALE[-1][1]


GREY = "#6b7785"
"""Colour of lines that must be visible on light and dark."""


def marker(outcome: str, size: int) -> dict[str, Any]:
    """Return the look of a trial's point by its outcome; "best" for the best trial."""
    return {"color": COLOURS[outcome], "symbol": SYMBOLS[outcome], "size": size}


def blank() -> Figure:
    from plotly.graph_objects import Figure

    return Figure()


def panels(rows: int, cols: int, **spacing: Any) -> Figure:
    from plotly.subplots import make_subplots

    return make_subplots(rows=rows, cols=cols, **spacing)


def add_points(
    figure: Figure,
    points: Sequence[tuple[Any, Any, Any]],
    marker_style: dict[str, Any],
    hover: str,
    **more: Any,
) -> None:
    """Add marks of (x, y, trial's number, which a page opens); `hover`: text on hovering."""
    x, y, numbers = (list(column) for column in zip(*points, strict=True))
    hover = f"{hover}<extra></extra>"
    figure.add_scatter(
        x=x,
        y=y,
        customdata=numbers,
        mode="markers",
        marker=marker_style,
        hovertemplate=hover,
        **more,
    )


def add_line(figure: Figure, x: Any, y: Any, line_style: dict[str, Any], **more: Any) -> None:
    """Add a line that tells nothing of itself."""
    figure.add_scatter(x=x, y=y, mode="lines", line=line_style, hoverinfo="skip", **more)


def part(drawn: int, whole: int, what: str) -> str:
    """Return a note such as "800 of 5,000 trials are drawn."; "" if the whole is drawn."""
    return f"{drawn:,} of {whole:,} {what}" if drawn < whole else ""


def finished(figure: Figure, *notes: str, height: int = 420, min_width: int = 0) -> Figure:
    """Apply our look to the figure; `height` in pixels.

    `notes` say what was left out, "" for nothing; below `min_width` pixels the figure is scrolled
    rather than squeezed. Both are kept in the figure's `layout.meta`.
    """
    meta = {"note": " ".join(filter(None, notes)), "min_width": min_width}
    for trace in figure.data:
        for axis in ("x", "y"):
            values = plain(getattr(trace, axis, None))
            if any(isinstance(one, float) and 0 < abs(one) < SMALLEST for one in values or ()):
                trace[axis] = [drawable(value) for value in values]
    figure.update_layout(template=_over_plotlys(), height=height, meta=meta)
    return figure


def drawn(figure: Figure) -> dict[str, Any]:
    """Return a finished figure for Plotly's script as {"figure", "note", "height", "min_width"},
    without the template, which all figures share.
    """
    figure.layout.template = None
    return {
        "figure": json.loads(figure.to_json()),
        "height": figure.layout.height,
        **figure.layout.meta,
    }


@cache
def _over_plotlys() -> Any:
    """Return our template over Plotly's, made once: 15 ms in each figure instead of 50."""
    return blank().update_layout(template=template()).layout.template


def objective_axis(
    history: History, values: Sequence[float], most: int = NAME
) -> tuple[dict[str, Any], str]:
    """Return an axis of the objective, logarithmic if better, and a note on outliers beyond it.

    `most`: cells of its name, as many as fit beside the figure.
    """
    log = series.logarithmic(values)
    limits, beyond = series.span(values, history.objective.mode, log=log)
    axis: dict[str, Any] = {
        "title": {"text": f"{safe(history.objective.name, most)} ({history.objective.mode})"}
    }
    if log:
        axis |= logarithmic(values)
    if limits is None:
        return axis, ""
    far = "1 value lies" if beyond == 1 else f"{beyond:,} values lie"
    return {
        **axis,
        "range": list(limits),
    }, f"{far} far beyond the axis; zoom the interactive figure out to see."


def logarithmic(values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis of positive values; with several powers of ten, a label each."""
    values = [drawable(value) for value in values]
    low, high = (math.floor(math.log10(end)) for end in (min(values), max(values)))
    inside = [n for n in range(low, high + 1) if min(values) <= 10.0**n <= max(values)]
    if len(inside) < 2:
        return {"type": "log", "nticks": 4, "tickformat": "~g"}
    ticks = inside[:: -(-len(inside) // 6)]
    return {
        "type": "log",
        "tickvals": [10.0**n for n in ticks],
        "ticktext": [series.short(10.0**n) for n in ticks],
    }


def drawable(value: Any) -> Any:
    """Return a number that Plotly's axes can hold, at least SMALLEST away from 0. Other values are
    returned as they are.
    """
    if isinstance(value, float) and 0 < abs(value) < SMALLEST:
        return math.copysign(SMALLEST, value)
    return value


def safe(text: object, most: int = 80) -> str:
    """Escape a user's text for Plotly's HTML, templates and formulas, cut in its middle to `most`
    cells. Control characters are escaped, too: no picture can be made of a figure that has one.
    """
    cut = middle(one_line(str(text)[:LIMIT]), most)
    return html.escape(cut, quote=False).replace("%{", "%&#123;").replace("$", "&#36;")
