"""A figure that draws itself wherever its HTML is put: a notebook, and what nbconvert makes of it. It asks no network.

Plotly's own renderers leave a notebook with data that only some front ends draw, or load the library from elsewhere.
"""

from __future__ import annotations

import base64
import gzip
import importlib
import uuid
from functools import cache
from typing import Any

import plotly.io
from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

_PAGE = """<div id="{place}" style="height:{height}px"></div>
<script>(async () => {{
  if (!window.Plotly) {{
    const packed = Uint8Array.from(atob("{script}"), (c) => c.charCodeAt(0));
    const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    // Without the page's module loader, which would take what it defines for one of its own.
    new Function("define", "module", "exports", text).call(window);
  }}
  const figure = {figure};
  window.Plotly.newPlot("{place}", figure.data, figure.layout, {{responsive: true}});
}})();</script>"""
_HEIGHT = 450


@cache
def packed_plotly() -> str:
    """Plotly's JavaScript: 4.8 MB, of which 2 MB are left so; the browser unpacks it in 30 ms."""
    # Level 9 takes twice the time, 0.25 s, for 1% less.
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 5, mtime=0)).decode()


def html(figure: Figure) -> str:
    """The figure with all that it needs, as a part of a page; 2 MB."""
    written = figure.to_json().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    height = figure.layout.height or _HEIGHT
    return _PAGE.format(place=f"regrow-{uuid.uuid4().hex}", height=int(height), script=packed_plotly(), figure=written)


class EmbeddedFigure(Figure):  # type: ignore[misc]  # Plotly is untyped
    """Plotly's figure, of which a notebook keeps the HTML beside Plotly's own data. Where a user chose another renderer, that
    draws it.
    """

    def _ipython_display_(self) -> None:
        if not str(plotly.io.renderers.default).startswith("plotly_mimetype"):
            super()._ipython_display_()
            return
        display = importlib.import_module("IPython.display").display  # is there where this is called, and nowhere else

        display(self._repr_mimebundle_(), raw=True)

    def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, Any]:
        own = {"application/vnd.plotly.v1+json": self.to_plotly_json()}
        return {**own, "text/html": html(self), "text/plain": "<Figure>"}
