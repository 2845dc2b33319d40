"""Small SVG pictures drawn from numbers: spark lines, a bar of states, curves of several
experiments on one axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 120, 28
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 40
POINTS = 400
"""Maximum points of a curve; more than pixels."""
HUES = 8
"""Number of colours of curves in the style sheet."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A step curve: at each point's x the value becomes its y, None for no value; the last value
    extends to `end`.
    """

    label: str
    points: Sequence[tuple[float, float | None]]
    end: float


def spark(points: Sequence[tuple[float, float]], end: float) -> str:
    """Draw the course of a best value, from its first point to `end`; "" if there is none."""
    if not points:
        return ""
    first, last = points[0][0], max(end, points[-1][0])
    log = decades([y for _, y in points])
    low, high = _log(min(y for _, y in points), log), _log(max(y for _, y in points), log)

    def at(x: float, y: float) -> Point:
        across = (x - first) / (last - first) if last > first else 0.0
        up = (_log(y, log) - low) / (high - low) if high > low else 0.5
        return 2 + across * (WIDTH - 4), HEIGHT - 3 - up * (HEIGHT - 6)

    placed = [at(x, y) for x, y in (*points, (last, points[-1][1]))]
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return (
        f'<svg class="spark" {size} aria-hidden="true" focusable="false"><path'
        f' d="{_steps(placed)}"/><circle cx="{placed[-1][0]:.1f}" cy="{placed[-1][1]:.1f}"'
        ' r="2.2"/></svg>'
    )


def bar(parts: Sequence[tuple[str, int]]) -> str:
    """Draw the number of trials in each state, side by side; `parts` are (class, count)."""
    whole, at, drawn = sum(count for _, count in parts), 0.0, ""
    for name, count in parts:
        wide = 1000 * count / whole if whole else 0.0
        drawn += (
            f'<rect class="f-{escape(name)}" x="{at:.1f}" y="0" width="{max(wide, 3):.1f}"'
            ' height="10"/>'
        )
        at += wide
    size = 'viewBox="0 0 1000 10" preserveAspectRatio="none"'
    return f'<svg class="states" {size} aria-hidden="true" focusable="false">{drawn}</svg>'


def chart(
    curves: Sequence[Curve], across: str, up: str, *, width: int = 480, height: int = 300
) -> str:
    """Draw the curves on one pair of axes, coloured by position; "" if none has a value.

    `across` and `up` name the axes.
    """
    values = [y for curve in curves for _, y in curve.points if y is not None]
    if not values:
        return ""
    reach, log = max(curve.end for curve in curves), decades(values)
    bottom, top = _log(min(values), log), _log(max(values), log)
    xs, ys = ticks(0.0, reach), ticks(bottom, top)
    margin = 0.04 * (top - bottom) or 0.5
    low, high, far = bottom - margin, top + margin, max(reach, 1e-9)
    inner_w, inner_h = width - LEFT - RIGHT, height - TOP - BOTTOM

    def at(x: float, y: float) -> Point:
        return LEFT + inner_w * x / far, TOP + inner_h * (1 - (y - low) / (high - low))

    parts = [
        (
            f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(up)}'
            f' by {escape(across)}">'
        ),
        *(
            _tick(*at(x, low), f"{x:,g}" if x < 1e15 else f"{x:.3g}", "x", height)
            for x in xs
            if x <= far
        ),
        *(_tick(*at(0, y), f"{10**y:.3g}" if log else _label(y, ys), "y", width) for y in ys),
        (
            f'<text class="name" x="{LEFT + inner_w / 2:.0f}" y="{height - 4}"'
            f' text-anchor="middle">{escape(across)}</text>'
        ),
    ]
    for place, curve in enumerate(curves):
        path = " ".join(_steps([at(x, _log(y, log)) for x, y in run]) for run in _runs(curve))
        hue = place % HUES
        dash = ' stroke-dasharray="6 3"' if place >= HUES else ""
        parts.append(
            f'<path class="line h{hue}"'
            f' d="{path}"{dash}><title>{escape(curve.label)}</title></path>'
        )
    return "".join(parts) + "</svg>"


LARGEST = 1e300
"""Larger values are drawn here, so that the difference of two values does not overflow a float."""


def decades(values: Sequence[float]) -> bool:
    """Return whether a logarithmic scale is better: all values positive, the largest more than a
    hundred times the least.
    """
    return min(values) > 0 and max(values) > 100 * min(values)


def _log(value: float, log: bool) -> float:
    return math.log10(value) if log else min(max(value, -LARGEST), LARGEST)


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Return round numbers from about `low` to about `high`, at most `most` and at least one."""
    if not high > low:
        return [low]
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)] or [low]


def _label(value: float, among: Sequence[float]) -> str:
    """Format a tick with as many digits as are needed to tell the ticks apart."""
    step = among[1] - among[0] if len(among) > 1 else abs(value) or 1.0
    size = max(map(abs, among)) or 1.0
    digits = min(12, max(3, math.ceil(math.log10(size / step)) + 1))
    return f"{0.0 if abs(value) < step / 1000 else value:.{digits}g}"


def _tick(x: float, y: float, text: str, axis: str, far: int) -> str:
    if axis == "x":
        line = f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{far - BOTTOM}"/>'
        return f'{line}<text x="{x:.1f}" y="{far - BOTTOM + 16}" text-anchor="middle">{text}</text>'
    line = f'<line class="grid" x1="{LEFT}" x2="{far - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'


def _runs(curve: Curve) -> list[list[Point]]:
    """Return the parts of the curve that have values, thinned out; the last one extends
    to its end.
    """
    points = list(curve.points)
    if len(points) > POINTS:
        points = [points[round(n * (len(points) - 1) / (POINTS - 1))] for n in range(POINTS)]
    runs: list[list[Point]] = [[]]
    for x, y in (*points, (curve.end, points[-1][1] if points else None)):
        if y is not None:
            runs[-1].append((x, y))
        elif runs[-1]:
            runs[-1].append((x, runs[-1][-1][1]))
            runs.append([])
    return [run for run in runs if run]


def _steps(points: Sequence[Point]) -> str:
    """Return a path that goes across first, then up or down."""
    (x, y), *rest = points
    return f"M{x:.1f} {y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest)
