"""The last word of a session in MLflow: the report and the figures as artifacts, and the best model in the registry.

The recorder says it, or whoever brings MLflow up to the log later; nothing of it may keep an experiment from ending well.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from regrow.infra.log.rows import Rows
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.trial_runs import PARENT, Runs
from regrow.infra.mlflow.updates import RunUpdate, SinkRefused, SinkUnavailable
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.search.history import History
from regrow.tasks.addresses import redacted

REPORT_FILE = "report.html"
FIGURES = ("optimization_history", "learning_curves")
REGISTER_TRIES = 3
_SLOW_TO_IMPORT = (
    "regrow.infra.report.report", "regrow.infra.report.pictures", "matplotlib.backends.backend_agg", "plotly.graph_objects",
    "plotly.subplots", "plotly.offline", "optuna.importance", "sklearn.ensemble", "jinja2",
)


def warming_up() -> Iterator[None]:
    """Imports what the last word takes (2 s of CPU), a module at each step, while the experiment still runs."""
    for module in _SLOW_TO_IMPORT:
        yield
        try:
            importlib.import_module(module)
        except Exception as error:  # noqa: BLE001 - told when it is needed
            logging.getLogger(__name__).info("%s cannot be imported: %s", module, error)


def picture_file(name: str) -> str:
    """Under which name a figure is kept in MLflow."""
    return f"figures/{name}.png"


Draw = Callable[[History, str], bytes | None]
"""Draws a figure by its name, as `pictures.png` does."""


class Album:
    """The figures of a session that has ended, each drawn once for all who ask, from whichever thread."""

    def __init__(self) -> None:
        self._drawing = threading.Lock()
        self._drawn: dict[tuple[float, str], bytes | None] = {}

    def draw(self, history: History, name: str) -> bytes | None:
        """See `pictures.png`."""
        from regrow.infra.report.pictures import png

        if history.closed is None:
            return png(history, name)
        key = history.closed.t, name
        with self._drawing:
            if key not in self._drawn:
                self._drawn[key] = png(history, name)
            return self._drawn[key]


Made = tuple[dict[str, bytes], list[str]]
"""Files by their names, and a line about each that could not be made."""


def say(
    sink: MlflowSink, runs: Runs, places: Places, tracking_uri: str, cursor: int, *, make: Callable[[History], Made] | None = None
) -> list[str]:
    """Writes it, then `cursor`, which stands for the end of the session; returns lines about what did not work.

    `make`: who makes the files; None: they are made here.
    Raises SinkUnavailable or SinkRefused where MLflow does not take anything: then it is due again.
    """
    history = runs.history
    files, troubles = make(history) if make is not None else made(history, places)
    parent = RunUpdate(key=PARENT, name=history.spec.name, start_ms=int(history.t_created * 1000), parent=True, artifacts=files)
    if (trouble := _register(sink, runs, places, tracking_uri)) is not None:
        troubles.append(trouble)
    sink.write([parent], cursor)
    return troubles


def made(history: History, places: Places, draw: Draw | None = None) -> Made:
    """The report and the figures. `draw`: who draws these; None: they are drawn here."""
    from regrow.infra.report.pictures import png
    from regrow.infra.report.report import html

    def report() -> bytes:
        store = places.store(history.spec.name)
        rows = Rows.logged(history, store)
        rows.recall()
        return html(rows, places, alive=False, now=time.time(), notes=notes.read(store)).encode()

    wanted: dict[str, Callable[[], bytes | None]] = {REPORT_FILE: report}
    wanted |= {picture_file(name): partial(draw or png, history, name) for name in FIGURES}
    files: dict[str, bytes] = {}
    troubles = []
    for name, make in wanted.items():
        try:
            data = make()
        except Exception as error:  # noqa: BLE001 - a page that cannot be drawn is no reason to fail
            troubles.append(f"{name} could not be made for MLflow: {type(error).__name__}: {error}")
            continue
        if data is not None:
            files[name] = data
    return files, troubles


def _register(sink: MlflowSink, runs: Runs, places: Places, tracking_uri: str) -> str | None:
    history = runs.history
    name = history.spec.register
    if name is None or history.closed is None or history.closed.status not in ("finished", "stopped"):
        return None  # one that was interrupted goes on
    from regrow.infra.mlflow.register import register_best

    reason = ""
    for _ in range(REGISTER_TRIES):
        try:
            return register_best(name, history, sink, runs, store=places.store(history.spec.name), tracking_uri=tracking_uri)
        except (SinkRefused, SinkUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - MLflow's own are many, and so are those of the place of its artifacts
            reason = redacted(str(error)).strip().partition("\n")[0] or type(error).__name__
            time.sleep(1.0)  # a file that a page or another experiment is writing
    return f"The best model was not registered as {name!r} in MLflow: {reason}"
