"""Small pictures as numbers for the templates, which draw them as SVG: spark lines, and curves of
several experiments on one pair of axes. They need no script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regrow.search.numbers import readable
from regrow.show.figures import parameters, series

WIDTH, HEIGHT = 120, 28
LEFT, RIGHT, TOP, BOTTOM = 64, 464, 12, 260
"""Edges of a chart's axes, in a picture of 480 by 300."""
POINTS = 400
"""Maximum points of a curve; more than pixels."""
HUES = 8
"""Number of colours of curves in the style sheet."""
LARGEST = 1e300
"""Larger values are drawn here, so that the difference of two values does not overflow a float."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnCurve:
    """A curve through points, None for no value: from each point's x on, its y, the last one until
    `end`; or `straight` from point to point, marked where it ends.
    """

    label: str
    points: Sequence[tuple[float, float | None]]
    end: float
    straight: bool = False


def spark(points: Sequence[tuple[float, float]], end: float) -> dict[str, Any] | None:
    """Place the course of a best value, from its first point to `end`; None if there is none."""
    if not points:
        return None
    first, last = points[0][0], max(end, points[-1][0])
    values = [y for _, y in points]
    log = series.logarithmic(values)
    low, high = _log(min(values), log), _log(max(values), log)

    def at(x: float, y: float) -> Point:
        across = (x - first) / (last - first) if last > first else 0.0
        up = (_log(y, log) - low) / (high - low) if high > low else 0.5
        return 2 + across * (WIDTH - 4), HEIGHT - 3 - up * (HEIGHT - 6)

    placed = [at(x, y) for x, y in (*points, (last, points[-1][1]))]
    x, y = placed[-1]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "path": _steps(placed),
        "x": f"{x:.1f}",
        "y": f"{y:.1f}",
    }


def chart(curves: Sequence[DrawnCurve], across: str, up: str) -> dict[str, Any] | None:
    """Place the curves on one pair of axes, coloured by position; None if none has a value.

    `across` and `up` name the axes.
    """
    values = [y for curve in curves for _, y in curve.points if y is not None]
    if not values:
        return None
    reach, log = float(max(1e-9, *(one.end for one in curves))), series.logarithmic(values)
    least, most = _log(min(values), log), _log(max(values), log)
    margin = 0.04 * (most - least) or 0.5
    low, high = least - margin, most + margin

    def at(x: float, y: float) -> Point:
        return (
            LEFT + (RIGHT - LEFT) * x / reach,
            TOP + (BOTTOM - TOP) * (1 - (_log(y, log) - low) / (high - low)),
        )

    columns, rows = parameters.ticks(0.0, reach), parameters.ticks(least, most)
    heights = [10.0**row for row in rows] if log else rows
    return {
        "width": 480,
        "height": 300,
        "left": LEFT,
        "right": RIGHT,
        "top": TOP,
        "bottom": BOTTOM,
        "across": across,
        "up": up,
        "columns": [
            (round(at(x, least)[0], 1), f"{x:,g}" if x < 1e15 else f"{x:.3g}") for x in columns
        ],
        "rows": [(round(at(0.0, y)[1], 1), _label(y, heights, log)) for y in heights],
        "lines": [
            {
                "label": curve.label,
                "hue": place % HUES,
                "dashed": place >= HUES,
                "path": " ".join(
                    (_lines if curve.straight else _steps)([at(x, y) for x, y in run])
                    for run in runs
                ),
                "mark": [f"{one:.1f}" for one in at(*runs[-1][-1])]
                if curve.straight and runs
                else None,
            }
            for place, curve in enumerate(curves)
            for runs in (_runs(curve),)
        ],
    }


def _log(value: float, log: bool) -> float:
    return math.log10(value) if log else min(max(value, -LARGEST), LARGEST)


def _label(value: float, among: Sequence[float], log: bool) -> str:
    """Format a tick with as many digits as are needed to tell the ticks apart."""
    if log:
        return readable(value, 3)
    step = among[1] - among[0] if len(among) > 1 else abs(value) or 1.0
    size = max(map(abs, among)) or 1.0
    digits = min(12, max(3, math.ceil(math.log10(size / step)) + 1))
    return f"{0.0 if abs(value) < step / 1000 else value:.{digits}g}"


def _runs(curve: DrawnCurve) -> list[list[Point]]:
    """Return the thinned-out parts of the curve that have values; the last one until its end."""
    points = series.sample(curve.points, POINTS)
    runs: list[list[Point]] = [[]]
    for x, y in (*points, (curve.end, points[-1][1] if points else None)):
        if y is not None:
            runs[-1].append((x, y))
        elif runs[-1]:
            if not curve.straight:
                runs[-1].append((x, runs[-1][-1][1]))
            runs.append([])
    return [run for run in runs if run]


def _lines(points: Sequence[Point]) -> str:
    """Return a path straight from point to point."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _steps(points: Sequence[Point]) -> str:
    """Return a path that goes across first, then up or down."""
    (x, y), *rest = points
    return f"M{x:.1f} {y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest)
