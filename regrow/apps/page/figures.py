"""Figures of an experiment as JSON for Plotly's script, cached until the log has grown."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict

from regrow.apps.page.experiment_state import ExperimentState
from regrow.infra.log.rows import LogRows
from regrow.show.figures import described
from regrow.show.figures.style import template
from regrow.tasks.ports.store import Store

KEPT = 48
"""Number of cached figures, of about 100 kB each."""


class FigureRoutes:
    """Draws figures, and caches the most recent ones."""

    def __init__(self) -> None:
        self._made: OrderedDict[tuple[str, str], tuple[object, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def drawn(self, name: str, kind: str, fold: ExperimentState, store: Store) -> bytes:
        """Return a figure of the experiment `name`, see `described`.

        The caller holds the fold's lock.
        """
        history = fold.history
        stand = (history.id, history.t_last, fold.board.spent, len(history.trials))
        with self._lock:
            known = self._made.get((name, kind))
        if known is not None and known[0] == stand:
            return known[1]
        rows = LogRows.logged(history, store)
        rows.recall()
        data = json.dumps(described(rows, kind), separators=(",", ":"), allow_nan=False).encode()
        with self._lock:
            self._made[name, kind] = stand, data
            self._made.move_to_end((name, kind))
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return data


def styles() -> bytes:
    """Return the templates for light and dark."""
    return json.dumps(
        {"light": template(), "dark": template(dark=True)}, separators=(",", ":")
    ).encode()
