"""Figures as PNG files, drawn by Plotly itself in a browser without a window (kaleido)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.tasks.errors import UserError
from regrow.tasks.traces import one_line

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

WIDTH = 1000
"""In pixels of a page; the pictures have twice as many each way."""


def write(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Writes each figure to NAME.png in `folder`, which is made where it is missing; what is there by that name is replaced.

    Raises UserError where kaleido is not installed, no Chrome or Chromium is there or starts, or a file cannot be written.
    """
    try:
        import kaleido
        from kaleido.errors import BrowserClosedError, BrowserFailedError, ChromeNotFoundError
    except ImportError:
        raise UserError("PNGs need kaleido, which is not installed: pip install 'regrow[png]'") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in figures:  # kaleido would say the same in ten lines, after it has drawn
            (folder / f"{name}.png").touch()
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    wanted: list[dict[str, Any]] = [
        {
            "fig": figure.to_dict(), "path": folder / f"{name}.png",
            "opts": {"format": "png", "scale": 2, "width": WIDTH, "height": figure.layout.height},
        }
        for name, figure in figures.items()
    ]
    try:
        # Without MathJax, which kaleido would fetch from the network.
        kaleido.write_fig_from_object_sync(wanted, cancel_on_error=True, kopts={"mathjax": False})
    except ChromeNotFoundError:
        hint = "install one (`plotly_get_chrome` does), or name one with BROWSER_PATH"
        raise UserError(f"PNGs need Chrome or Chromium, and none was found; {hint}") from None
    except (BrowserClosedError, BrowserFailedError, OSError) as error:
        raise UserError(f"the browser that draws PNGs did not start: {one_line(str(error))}") from None
    return [one["path"] for one in wanted]
