"""Figures of an experiment as JSON for Plotly's script, drawn when they are looked at and kept until the log has grown."""

from __future__ import annotations

import gzip
import json
import threading
from collections import OrderedDict
from functools import cache
from importlib.metadata import version
from typing import Any

from regrow.infra.figures import KINDS
from regrow.infra.figures.look import template
from regrow.infra.log.rows import Rows
from regrow.infra.report.report import WHOLE
from regrow.page.fold import Fold
from regrow.tasks.ports import Store

KEPT = 48
"""Figures in memory, of about 100 kB each."""


class Figures:
    """Draws, and remembers what was drawn last."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, str], tuple[object, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def drawn(self, name: str, kind: str, fold: Fold, store: Store) -> bytes:
        """A figure of the experiment `name`, whose fold nobody changes meanwhile: {"figure", "note", "height", "min_width"}, or
        {"nothing": why there is none}.
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
            found = {"figure": json.loads(made.to_json()), "note": meta["note"], "min_width": meta["min_width"], "height": height}
        data = json.dumps(found, separators=(",", ":"), allow_nan=False).encode()
        with self._lock:
            self._made[name, kind] = stand, data
            self._made.move_to_end((name, kind))
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return data


def kinds() -> list[dict[str, Any]]:
    """All figures, as the page announces them."""
    return [
        {"name": name, "title": kind.TITLE, "reading": kind.READING, "whole": name in WHOLE} for name, kind in KINDS.items()
    ]


def looks() -> bytes:
    """The templates for light and dark."""
    return json.dumps({"light": template(), "dark": template(dark=True)}, separators=(",", ":")).encode()


@cache
def plotly_script() -> bytes:
    """Plotly's script from the installed package, compressed: 4.8 MB, of which 1.5 MB are left."""
    from plotly.offline import get_plotlyjs

    return gzip.compress(get_plotlyjs().encode(), 5, mtime=0)


def plotly_version() -> str:
    """The version of the package that has the script."""
    return version("plotly")
