"""Bringing MLflow up to date with a log after a recorder could not reach it; without Ray.

Writes what the recorder would have written, from the same cursor: doing both changes nothing.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from regrow.flows.recording import ending
from regrow.flows.recording.media import MediaArtifacts
from regrow.infra.log.log import Log
from regrow.infra.log.reading import first_event, fold, survey
from regrow.infra.log.rows import reports
from regrow.infra.machine.sqlite import file_of
from regrow.infra.mlflow import updates
from regrow.infra.mlflow.parent_run import NOTED_TAG
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.trial_runs import TrialRuns
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import runs, runs_here
from regrow.infra.state.places import Places
from regrow.search.events import Created
from regrow.search.history import specification
from regrow.tasks.errors import UserError

_SEGMENTS = 500
"""Segments that are folded between two writes: one transaction of some thousand rows."""


def is_recorded(places: Places, name: str) -> bool | None:
    """Return soon whether MLflow has the whole log and all notes; None: only it can tell."""
    file = file_of(places.mlflow_uri)
    if file is None or not file.is_file():
        return None
    store = places.known(name)
    created = first_event(store)
    query = (
        "select max(cast(c.value as integer)) from tags c join tags e on e.run_uuid = c.run_uuid"
        " where c.key = ? and e.key = ? and e.value = ?"
    )
    whose = updates.EXPERIMENT_TAG, created.id if isinstance(created, Created) else ""
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
            segments, noted = (
                database.execute(query, (tag, *whose)).fetchone()[0]
                for tag in (updates.CURSOR_TAG, NOTED_TAG)
            )
    except sqlite3.Error:
        return None
    last = max((number for number, _ in Log.read(store)), default=0)
    return segments is not None and segments >= last and (noted or 0) >= notes.read(store).count


def record_missing(
    places: Places,
    name: str,
    *,
    killed: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> int:
    """Write the part of the log that MLflow lacks; return the number of its segments, 0 if MLflow
    had everything.

    Raises SinkUnavailable or SinkRefused.

    Args:
        places: locations of state and services.
        name: name of the experiment.
        killed: whether the driver is dead. Then runs that are shown as running are ended, until the
            next session reports them running.
        announce: called with what could not be written of the report, the figures and the
            registered model.

    """
    store = places.known(name)
    found = survey(store)
    if found.created is None:
        return 0
    # may have been renamed
    spec = specification(found.created, found.opened).model_copy(update={"name": name})
    sink = MlflowSink(
        updates.Target(
            tracking_uri=places.mlflow_uri,
            experiment_name=spec.recorded_as,
            experiment_id=found.created.id,
            artifact_root=places.mlflow_artifacts,
        )
    )
    try:
        cursor, number, written, pending = sink.load() or 0, 0, 0, 0
        runs = TrialRuns(
            partial(reports, store), partial(places.address, name), MediaArtifacts(store)
        )
        for number, lines in Log.read(store):
            fold(store, partial(runs.apply, segment=number), [(number, lines)])
            if number <= cursor:
                runs.skip()
                continue
            written, pending = written + 1, pending + 1
            if pending == _SEGMENTS:
                sink.write(runs.drain(), number)
                pending = 0
        if written and runs.history.closed is not None:
            sink.write(runs.drain(), number - 1)
            for trouble in ending.say(sink, runs, places, number):
                announce(trouble)
        elif pending:
            sink.write(runs.drain(), number)
        if (noted := notes.read(store)).count:
            runs.noted(noted)
            sink.write([runs.parent()], max(number, cursor))
        if killed and not runs_here(places, name):
            sink.write(_killed(runs), max(number, cursor))
        return written
    finally:
        sink.close()


def _killed(runs: TrialRuns) -> list[updates.RunUpdate]:
    """Return updates that end the runs that are shown as running."""
    killed: dict[str, Any] = {"status": "KILLED", "end_ms": int(time.time() * 1000)}
    killed |= {"params": {}, "tags": {}, "metrics": ()}
    return [replace(one, **killed) for one in runs.current() if one.status == "RUNNING"]


def write_notes(places: Places, name: str) -> str | None:
    """Write new notes to MLflow; return a line for the user if MLflow is unreachable. During a
    session this is left to its recorder.
    """
    if runs(places, name):
        return None
    try:
        record_missing(places, name)
    except (updates.SinkRefused, updates.SinkUnavailable, UserError) as error:
        return (
            f"MLflow does not have it yet: {error} The next `{places.command('resume', name)}`"
            " records it."
        )
    return None
