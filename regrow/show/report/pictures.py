"""Figures of lines and points as PNG, drawn by Matplotlib: for artifacts, and where no browser
can draw Plotly's.

What is drawn is the Plotly figure: its lines, points and axes. Only Matplotlib's objects and its
Agg canvas are used, not pyplot, so that threads share no state.
"""

from __future__ import annotations

import html
import io
import threading
from typing import TYPE_CHECKING, Any

from regrow.infra.log.rows import LogRows
from regrow.search.history import History
from regrow.show.figures import figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, LINE, FAINT = "#24292f", "#aab2bb", "#e6e9ed"
MARKERS = {
    "circle": "o",
    "circle-dot": ".",
    "diamond": "D",
    "star": "*",
    "triangle-up": "^",
    "x": "x",
}
"""Matplotlib's markers for Plotly's symbols, which may end in "-open"."""
PIXEL = 0.75
"""Points of Matplotlib for one of Plotly's pixels."""
_FONTS = threading.Lock()
"""All threads of a process share Matplotlib's FreeType faces, and laying out text changes them."""


def png(history: History, name: str) -> bytes | None:
    """Return a picture of 1,600 by 900 pixels; None if there is nothing to draw.

    `name`: a figure of lines and points on one pair of axes, made of the history alone. Raises
    KeyError for an unknown one.
    """
    described = figure(LogRows(history, tuple), name)
    if described is None:
        return None
    with _FONTS:
        file = io.BytesIO()
        _drawn(described, history.spec.name).savefig(file, format="png")
        return file.getvalue()


def _drawn(described: Any, title: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    made = Figure(figsize=(8, 4.5), dpi=200, facecolor="white", layout="constrained")
    FigureCanvasAgg(made)
    axes: Any = made.add_subplot()
    for trace in described.data:
        _trace(axes, trace)
    across, up = described.layout.xaxis, described.layout.yaxis
    if up.type == "log":
        axes.set_yscale("log")
    if across.range is not None:
        axes.set_xlim(across.range)
    if up.range is not None:
        axes.set_ylim([10.0**end for end in up.range] if up.type == "log" else up.range)
    axes.set_title(_plain(title), loc="left", fontsize=12, fontweight="bold", color=INK)
    axes.set_xlabel(_plain(across.title.text), color=INK)
    axes.set_ylabel(_plain(up.title.text), color=INK)
    if note := described.layout.meta["note"]:
        made.supxlabel(note, x=0.01, ha="left", fontsize=7, style="italic", color=INK)
    axes.grid(visible=True, color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))  # trials and steps
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LINE)
    shown = axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=5,
        frameon=False,
        fontsize=8.5,
        handletextpad=0.4,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
    for handle in shown.legend_handles:
        handle.set_alpha(1.0)
    return made


def _trace(axes: Any, trace: Any) -> None:
    symbol = trace.marker.symbol or ""
    axes.plot(
        trace.x,
        trace.y,
        color=trace.marker.color or trace.line.color,
        alpha=trace.opacity,
        label=None if trace.showlegend is False else _plain(trace.name),
        linestyle="-" if "lines" in trace.mode else "none",
        linewidth=PIXEL * (trace.line.width or 0.0),
        drawstyle="steps-post" if trace.line.shape == "hv" else "default",
        marker=MARKERS[symbol.removesuffix("-open")] if symbol else "",
        markersize=PIXEL * (trace.marker.size or 0.0),
        markerfacecolor="none" if symbol.endswith("-open") else None,
    )


def _plain(text: str) -> str:
    """Return what Plotly would show, with a dollar sign escaped: it would begin a formula."""
    return html.unescape(text).replace("$", r"\$")
