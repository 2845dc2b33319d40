"""Figures as PNG files, drawn by Plotly in a headless browser (kaleido)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.tasks.errors import UserError
from regrow.tasks.output.traces import one_line

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

WIDTH = 1000
"""Pixels of a page; the pictures have twice as many in each direction."""


def write(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Write each figure to NAME.png in `folder`, which is created if missing; existing files are
    replaced.

    Raises UserError if kaleido is not installed, if no Chrome or Chromium is found or starts, or if
    a file cannot be written.
    """
    try:
        import kaleido
        from kaleido.errors import (
            BrowserClosedError,
            BrowserFailedError,
            ChromeNotFoundError,
            JavascriptError,
            KaleidoError,
        )
    except ImportError:
        raise UserError(
            "PNGs need kaleido, which is not installed: pip install 'regrow[png]'"
        ) from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in figures:  # kaleido would report it only after drawing, in ten lines
            (folder / f"{name}.png").touch()
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    wanted: list[dict[str, Any]] = [
        {
            "fig": figure.to_dict(),
            "path": folder / f"{name}.png",
            "opts": {"format": "png", "scale": 2, "width": WIDTH, "height": figure.layout.height},
        }
        for name, figure in figures.items()
    ]
    try:
        # Without MathJax, which kaleido would download.
        kaleido.write_fig_from_object_sync(wanted, cancel_on_error=True, kopts={"mathjax": False})
    except ChromeNotFoundError:
        hint = "install one (`plotly_get_chrome` does), or name one with BROWSER_PATH"
        raise UserError(f"PNGs need Chrome or Chromium, and none was found; {hint}") from None
    except (BrowserClosedError, BrowserFailedError, OSError) as error:
        raise UserError(
            f"the browser that draws PNGs did not start: {one_line(str(error))}"
        ) from None
    except (JavascriptError, KaleidoError) as error:
        raise UserError(
            f"the browser could not draw the PNGs: {one_line(str(error))}; a report has the same"
            " figures: regrow report"
        ) from None
    return [one["path"] for one in wanted]
