"""Reads the results that trials reported from the log, in the form in which Ray Tune writes them.

`TuneReports` reads; `written_folder` writes `params.json`, `params.pkl`, `result.json` and
`progress.csv` of a trial into a folder of its own in the experiment's state. These are views: each
can be made again from the log, and nothing of ours reads them.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from regrow.infra.state.places import Places
from regrow.integrations.tune.session import ITERATION, PROCESS, TOTAL, UNREPORTED, nested
from regrow.records import TrialResult
from regrow.result import Result as Log
from regrow.search.events import Row
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Missing, Store, StoreError

PARAMS, PICKLED = "params.json", "params.pkl"
RESULTS, PROGRESS = "result.json", "progress.csv"
EAGER = 200
"""Number of trials up to which all folders are written when the experiment has ended; beyond, a
trial's when its `path` is asked for.
"""


class TuneReports:
    """The reports of all trials that count. One pass over the log at the first use."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._rows: dict[int, list[tuple[int, Row, dict[str, Any]]]] | None = None

    def of(self, trial: TrialResult, name: str) -> Iterator[dict[str, Any]]:
        """Yield each report of a trial: metrics, flat and with their types, and Tune's entries."""
        if self._rows is None:
            self._rows = {}
            for place, by, logged, values in self._log.reports():
                self._rows.setdefault(place, []).append((by, logged, values))
        before = since = 0.0
        attempt, process = 0, dict.fromkeys(PROCESS)
        for number, row, result in self._rows.get(trial.number, ()):
            if UNREPORTED in result:
                continue
            if number != attempt:
                attempt, since = number, before
                process = {name: result.pop(name, None) for name in PROCESS}
            total = result.get(TOTAL, before)
            ran = trial.attempts[attempt - 1]
            when = dt.datetime.fromtimestamp(row.t)  # noqa: DTZ006 - Tune writes local time
            result[ITERATION] = int(result.get(ITERATION, row.step))
            yield {
                **result,
                "done": False,
                "trial_id": name,
                "date": when.strftime("%Y-%m-%d_%H-%M-%S"),
                "timestamp": int(row.t),
                "time_this_iter_s": max(0.0, total - before),
                **process,
                "hostname": ran.node or "",
                "time_since_restore": max(0.0, total - since),
                "iterations_since_restore": row.step - ran.from_step,
            }
            before = total


def written_folder(
    log: Log, name: str, config: Mapping[str, Any], rows: list[dict[str, Any]]
) -> str:
    """Write a trial's folder `<state>/<experiment>/<trial>/`, as far as it changed, and return its
    path or URL. A state that cannot be written has none: its results are read all the same.
    """
    from ray import cloudpickle

    places = Places.at(log.state)
    store = places.store(log.name)
    lines = (f"{_json({**nested(row), 'config': config})}\n" for row in rows)
    with suppress(StoreError, UserError):
        _put(store, f"{name}/{PARAMS}", _json(config, indent=2, sort_keys=True).encode())
        _put(store, f"{name}/{PICKLED}", cloudpickle.dumps(dict(config)))
        _put(store, f"{name}/{RESULTS}", "".join(lines).encode())
        _put(store, f"{name}/{PROGRESS}", _csv(rows).encode())
    return places.address(log.name, name)


def _put(store: Store, key: str, data: bytes) -> None:
    try:
        if store.read(key) == data:
            return
        store.delete([key])
    except Missing:
        pass
    store.create(key, data)


def _csv(rows: list[dict[str, Any]]) -> str:
    """Return a table whose columns are those of the first report, as Tune's."""
    if not rows:
        return ""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), extrasaction="ignore")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def _json(value: Any, **how: Any) -> str:
    return json.dumps(_named(value), default=_plain, **how)


def _named(value: Any) -> Any:
    """Return a configuration whose keys are text, also deep inside."""
    if isinstance(value, Mapping):
        return {str(key): _named(inner) for key, inner in value.items()}
    return [_named(inner) for inner in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    """Return arrays as lists, NumPy's numbers as Python's, all else as text, as Tune does."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
