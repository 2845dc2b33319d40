"""Records at the end of a session in MLflow: report, figures, and the best model in the registry.

Written by the recorder or by `catch_up.py`. No failure here may make an experiment fail.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from functools import partial

from regrow.infra.log.rows import LogRows
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.trial_runs import PARENT, TrialRuns
from regrow.infra.mlflow.updates import RunUpdate, SinkRefused, SinkUnavailable, first_line
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.search.history import History
from regrow.search.planning import limits

REPORT_FILE = "report.html"
FIGURES = {"optimization_history": "Optimisation history", "learning_curves": "Learning curves"}
"""Figures that are kept as pictures, by their names in `regrow/show/figures`, with headings."""
REGISTER_TRIES = 3
_SLOW_TO_IMPORT = (
    "regrow.show.report.report",
    "regrow.show.report.pictures",
    "matplotlib.backends.backend_agg",
    "plotly.graph_objects",
    "plotly.subplots",
    "plotly.offline",
    "jinja2",
)
_FOR_IMPORTANCES = "optuna.importance"


class Rehearsal:
    """What the end of a session needs, done while trials still run, and how long it takes."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._modules = [*_SLOW_TO_IMPORT, _FOR_IMPORTANCES]
        self._loading = 0.0
        self._made: float | None = None
        """When the report was made last, seconds since the epoch."""

    def load(self, load: Callable[[], int | None]) -> tuple[int | None, float]:
        """Return what `load` returns, which loads MLflow, and its seconds."""
        began = time.monotonic()
        found = load()
        self._loading += time.monotonic() - began
        return found, self._loading

    def step(self, history: History) -> float | None:
        """Import the next of the modules (2 s of CPU all together; half of that for importances,
        once there are enough trials); then make the report if it is due. Return the seconds of all
        that by now, None if no report was made.
        """
        from regrow.show.figures.importances import enough

        began = time.monotonic()
        if self._modules and (self._modules[0] != _FOR_IMPORTANCES or enough(history)):
            module = self._modules.pop(0)
            try:
                importlib.import_module(module)
            except Exception as error:  # noqa: BLE001 - reported when the module is needed
                logging.getLogger(__name__).info("%s cannot be imported: %s", module, error)
            self._loading += time.monotonic() - began
            return None
        now = time.time()
        if not limits.rehearses(history, now, self._made):
            return None
        self._made = now
        try:
            made(history, self._places)
        except Exception as error:  # noqa: BLE001 - the end itself tells it; meanwhile the recorder has to follow
            logging.getLogger(__name__).info("the end could not be rehearsed: %s", error)
            return None
        return self._loading + time.monotonic() - began


def picture_file(name: str) -> str:
    """Return the name of a figure's file in MLflow."""
    return f"figures/{name}.png"


Made = tuple[dict[str, bytes], list[str]]
"""Files by name, and a line about each that could not be made."""


def say(
    sink: MlflowSink,
    runs: TrialRuns,
    places: Places,
    cursor: int,
    *,
    make: Callable[[History], Made] | None = None,
) -> list[str]:
    """Write the records of the session's end, then `cursor`, which marks the end of the session;
    return lines about failures.

    `make`: makes the files; None to make them in this process. Raises SinkUnavailable or
    SinkRefused if MLflow accepts nothing: then the end has to be written again.
    """
    history = runs.history
    files, failed = make(history) if make is not None else made(history, places)
    troubles = [*failed]
    parent = RunUpdate(
        key=PARENT,
        name=history.spec.name,
        start_ms=int(history.t_created * 1000),
        parent=True,
        artifacts=files,
    )
    for trouble in (_register(sink, runs, places), _end_left(sink, history)):
        troubles += [trouble] if trouble is not None else []
    sink.write([parent], cursor)
    return troubles


def made(history: History, places: Places) -> Made:
    """Make the report and the figures."""
    from regrow.show.report.pictures import png
    from regrow.show.report.report import html

    def report() -> bytes:
        store = places.store(history.spec.name)
        rows = LogRows.logged(history, store)
        rows.recall()
        return html(rows, places, alive=False, now=time.time(), notes=notes.read(store)).encode()

    wanted: dict[str, Callable[[], bytes | None]] = {REPORT_FILE: report}
    wanted |= {picture_file(name): partial(png, history, name) for name in FIGURES}
    files: dict[str, bytes] = {}
    troubles = []
    for name, make in wanted.items():
        try:
            data = make()
        except Exception as error:  # noqa: BLE001 - a failed drawing must not fail the session
            troubles.append(f"{name} could not be made for MLflow: {type(error).__name__}: {error}")
            continue
        if data is not None:
            files[name] = data
    return files, troubles


def figures(made: Made) -> dict[str, bytes]:
    """Return the figures of made files by their names, without those that are empty or failed."""
    return {name: file for name in FIGURES if (file := made[0].get(picture_file(name)))}


def _end_left(sink: MlflowSink, history: History) -> str | None:
    """End what killed attempts logged into; return what prevents it."""
    if not any(one.outcome == "lost" for trial in history.trials for one in trial.attempts):
        return None
    from regrow.infra.mlflow.in_trial_runs import end_left

    try:
        end_left(sink.target.tracking_uri, history.id)
    except Exception as error:  # noqa: BLE001 - MLflow has many errors, and all else is recorded
        return f"MLflow shows runs of killed attempts as running: {first_line(error)}"
    return None


def _register(sink: MlflowSink, runs: TrialRuns, places: Places) -> str | None:
    history = runs.history
    name = history.spec.register
    ended = history.closed is not None and history.closed.status in ("finished", "stopped")
    if name is None or not ended:  # an interrupted experiment will be continued
        return None
    from regrow.infra.mlflow.register import register_best

    reason = ""
    for _ in range(REGISTER_TRIES):
        try:
            return register_best(name, sink, runs, places.store(history.spec.name))
        except (SinkRefused, SinkUnavailable):
            raise
        except Exception as error:  # noqa: BLE001 - MLflow and its artifact store have many errors
            reason = first_line(error)
            time.sleep(1.0)  # another process may be writing the database file
    return f"The best model was not registered as {name!r} in MLflow: {reason}"
