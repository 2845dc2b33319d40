"""Figures of an experiment as JSON for Plotly's script, drawn on request and cached until the log
has grown.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections import OrderedDict
from functools import cache
from importlib.metadata import version
from typing import Any

from regrow.apps.page.experiment_state import ExperimentState
from regrow.infra.log.rows import Rows
from regrow.show.figures import KINDS
from regrow.show.figures.look import template
from regrow.show.report.report import WHOLE
from regrow.tasks.ports.store import Store

KEPT = 48
"""Number of cached figures, of about 100 kB each."""


class Figures:
    """Draws figures, and caches the most recent ones."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, str], tuple[object, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def drawn(self, name: str, kind: str, fold: ExperimentState, store: Store) -> bytes:
        """Return a figure of the experiment `name` as {"figure", "note", "height", "min_width"}, or
        {"nothing": the reason}.

        The caller holds the fold's lock.
        """
        history = fold.history
        stand = (history.id, history.t_last, fold.board.spent, len(history.trials))
        with self._lock:
            known = self._made.get((name, kind))
        if known is not None and known[0] == stand:
            return known[1]
        rows = Rows.logged(history, store)
        rows.recall()
        made = KINDS[kind].figure(rows)
        found: dict[str, Any] = {"nothing": KINDS[kind].NOTHING}
        if made is not None:
            meta, height = made.layout.meta, made.layout.height
            made.layout.template = None
            found = {
                "figure": json.loads(made.to_json()),
                "note": meta["note"],
                "min_width": meta["min_width"],
                "height": height,
            }
        data = json.dumps(found, separators=(",", ":"), allow_nan=False).encode()
        with self._lock:
            self._made[name, kind] = stand, data
            self._made.move_to_end((name, kind))
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return data


def kinds() -> list[dict[str, Any]]:
    """Return all figures, as the page lists them."""
    return [
        {"name": name, "title": kind.TITLE, "reading": kind.READING, "whole": name in WHOLE}
        for name, kind in KINDS.items()
    ]


def looks() -> bytes:
    """Return the templates for light and dark."""
    return json.dumps(
        {"light": template(), "dark": template(dark=True)}, separators=(",", ":")
    ).encode()


@cache
def plotly_script() -> bytes:
    """Return Plotly's script from the installed package, compressed from 4.8 MB to 1.5 MB."""
    from plotly.offline import get_plotlyjs

    return gzip.compress(get_plotlyjs().encode(), 5, mtime=0)


def plotly_version() -> str:
    """Return the version of the package with the script."""
    return version("plotly")
