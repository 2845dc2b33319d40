"""MLflow after a recorder died anywhere: what is there is what would be there, each point once.

The real fold and the real sink, into sqlite; what `flows/recording/recorder.py` does around them
(cursor, skip, take, write) is done here without its thread. One MLflow experiment for each cut, all
in one database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.log.log import Log
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.trial_runs import TrialRuns
from regrow.infra.mlflow.updates import Target
from regrow.search.events import Created, Reported, decode
from tests.faults import tally
from tests.faults.checks import WATCHED, watch
from tests.faults.scenarios import PLANS, SEED, whole
from tests.faults.session import Session
from tests.faults.world import Process, Transition, World
from tests.memory_store import MemoryStore

NAME = "short trials in a row"
PHASES = ("before MLflow write", "between MLflow write and cursor", "after MLflow write")
Batch = list[tuple[int, list[bytes]]]


class Died(Exception):
    """The recorder's process is gone."""


def batches() -> list[Batch]:
    """The log of an experiment in which a worker died and a curve was cut back; two segments are
    recorded at a time.
    """
    late = next(
        t for t in whole(NAME).tape if t.what == "message" and t.when == "before" and t.number > 50
    )

    def kill(here: Transition, process: Process) -> None:
        if here.number == late.number:
            process.killed = True

    world = World(MemoryStore(), on=kill, watch=watch, keep_states=False)
    with Session(world, PLANS[NAME], seed=SEED, **WATCHED) as session:
        session.open().run().finish()
    segments = list(Log.read(world.store))
    return [segments[at : at + 2] for at in range(0, len(segments), 2)]


def reports(log: list[Batch], after: int) -> Iterator[Reported]:
    """What was reported in the segments after a number."""
    for number, lines in chain.from_iterable(log):
        if number > after:
            yield from (event for event in map(decode, lines) if isinstance(event, Reported))


def record(uri: str, name: str, log: list[Batch], die: tuple[int, str] | None = None) -> None:
    """One life of a recorder: from MLflow's cursor to the end of the log, or to its death at a
    batch and a phase.
    """
    created = decode(log[0][0][1][0])
    assert isinstance(created, Created)
    runs = TrialRuns(partial(reports, log))
    with closing(
        MlflowSink(
            Target(tracking_uri=uri, experiment_name=name, experiment_id=f"{created.id}-{name}")
        )
    ) as sink:
        cursor = sink.load() or 0
        before = cursor
        for place, batch in enumerate(log):
            for number, lines in batch:
                for line in lines:
                    runs.apply(decode(line), number)
                if number <= cursor:
                    runs.skip()
            last = batch[-1][0]
            if last <= cursor:
                continue
            if die == (place, PHASES[0]):
                raise Died
            if die == (place, PHASES[1]):
                sink.write(runs.drain(), before)
                raise Died
            sink.write(runs.drain(), last)
            before = last
            if die == (place, PHASES[2]):
                raise Died


def held(database: Path, name: str) -> dict[str, tuple[Any, ...]]:
    """What MLflow holds of an experiment, by our key: status, stage, parameters, points, tags."""
    found: dict[str, tuple[Any, ...]] = {}
    with closing(sqlite3.connect(database)) as db:
        runs = db.execute(
            "select r.run_uuid, r.status, r.lifecycle_stage from runs r join experiments e using (experiment_id) where e.name = ?",
            (name,),
        ).fetchall()
        for run, status, stage in runs:
            tags = dict(db.execute("select key, value from tags where run_uuid = ?", (run,)))
            points = db.execute(
                "select key, step, value from metrics where run_uuid = ? order by key, step", (run,)
            ).fetchall()
            params = dict(db.execute("select key, value from params where run_uuid = ?", (run,)))
            ours = {
                k: v
                for k, v in tags.items()
                if k not in ("mlflow.parentRunId", "regrow.experiment_id")
            }
            assert tags["regrow.key"] not in found, "one run for each key"
            assert len(points) == len({(k, s) for k, s, _ in points}), "one point for each step"
            found[tags["regrow.key"]] = status, stage, params, points, ours
    return found


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"


def test_mlflow_holds_the_same_after_the_recorder_died_anywhere(database: Path) -> None:
    uri, log = f"sqlite:///{database}", batches()
    record(uri, "whole", log)
    expected = held(database, "whole")
    assert any(run[1] == "deleted" for run in expected.values()), "a curve was cut back"
    for place in range(len(log)):
        for phase in PHASES:
            name = f"cut at {place} {phase}"
            tally.cut("recorder", NAME, place, phase)
            with pytest.raises(Died):
                record(uri, name, log, die=(place, phase))
            record(uri, name, log)
            assert held(database, name) == expected, name
