"""What is wrong with an experiment that was soaked: its state, its MLflow and its Prefect are
counted. No test lives here.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any
from uuid import UUID

from regrow.infra.log.reading import replay
from regrow.infra.log.rows import LogRows
from regrow.infra.state.places import Places
from regrow.search.events import Row
from regrow.search.history import History
from regrow.tasks.checkpoint.manifests import unseal


def check(
    name: str,
    state: str,
    environment: dict[str, str],
    *,
    trials: int,
    done: Sequence[Mapping[str, Any]],
) -> tuple[History, list[str]]:
    """The experiment's history, and what is wrong with it; nothing if that is empty.

    `environment` is that of its drivers. `done` has trial, attempt and time of every step that some
    process finished.
    """
    with _home(environment["HOME"]):
        places = Places.at(state)
        store = places.store(name)
        history, wrong = replay(store), []
        rows: dict[int, list[Row]] = {}
        for trial, _, some in LogRows.logged(history, store):
            rows.setdefault(trial.number, []).extend(some)
        mlflow, prefect = places.services / "mlflow.db", next(places.prefect_home.glob("*.db"))
    verified = subprocess.run(
        [sys.executable, "-m", "regrow", "verify", name, "--state", state],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=environment["HOME"],
    )
    if verified.returncode:
        wrong.append(f"verify: {verified.stdout}{verified.stderr}")
    if (
        len(history.trials) != trials
        or history.closed is None
        or history.closed.status != "finished"
    ):
        wrong.append(f"{len(history.trials)} of {trials} trials, closed: {history.closed}")
    for trial in history.trials:
        if not trial.state.final or trial.state.value == "failed":
            wrong.append(
                f"trial {trial.number} is {trial.state}: {trial.attempts[-1].message if trial.attempts else ''}"
            )
        if [row.step for row in rows.get(trial.number, [])] != list(range(1, trial.step + 1)):
            wrong.append(f"trial {trial.number}: steps have holes")
        wrong += [
            f"trial {trial.number}, step {row.step}: {row.metrics['score']} is not what a whole run gives"
            for row in rows.get(trial.number, [])
            if abs((row.metrics["score"] or 0.0) - row.step * trial.config["x"]) > 1e-9 * row.step
        ]
    ended = {t.number: t.attempts[-1].t_ended or 0.0 for t in history.trials}
    final = {t.number: len(t.attempts) for t in history.trials}
    repeated = {
        row["trial"]
        for row in done
        if row["attempt"] > final[row["trial"]]
        or (row["attempt"] == final[row["trial"]] and row["t"] > ended[row["trial"]] + 1.0)
    }
    wrong += [f"trial {number} was run again after its end" for number in sorted(repeated)]
    live = {c.manifest for t in history.trials for c in t.checkpoints.values()}
    blobs = {file.key for key in live for file in unseal(key, store.read(key)).files}
    if (orphans := set(store.list("manifests/")) ^ live) or (
        orphans := set(store.list("blobs/")) ^ blobs
    ):
        wrong.append(f"orphans in the bucket: {sorted(orphans)[:5]}")
    with closing(sqlite3.connect(mlflow)) as db:
        points = Counter(
            db.execute(
                "select t.value, m.step, m.value from metrics m join runs r using (run_uuid) join tags t using (run_uuid)"
                " where r.lifecycle_stage = 'active' and t.key = 'mlflow.runName' and m.key = 'score'"
            ).fetchall()
        )
        states = {
            s for (s,) in db.execute("select status from runs where lifecycle_stage = 'active'")
        }
    expected = Counter(
        (f"trial-{number:04d}", row.step, row.metrics["score"])
        for number, its in rows.items()
        for row in its
    )
    if points != expected:
        wrong.append(
            f"MLflow differs from the log: {list(((points - expected) + (expected - points)).items())[:5]}"
        )
    if states != {"FINISHED"}:
        wrong.append(f"MLflow has runs that are {states}")
    with closing(sqlite3.connect(prefect)) as db:
        flows = db.execute("select state_type from flow_run").fetchall()
        tasks = {
            str(UUID(key)): state
            for key, state in db.execute("select id, state_type from task_run").fetchall()
        }
    if flows != [("COMPLETED",)]:
        wrong.append(f"Prefect's flow runs: {flows}")
    # very short attempts may have shared the task run of another trial
    for trial in history.trials:
        last = next((a.task_run for a in reversed(trial.attempts) if a.task_run), None)
        if tasks.get(last or "") != "COMPLETED":
            wrong.append(
                f"Prefect: the task run of trial {trial.number} is {tasks.get(last or '')}"
            )
    return history, wrong


@contextmanager
def _home(folder: str) -> Iterator[None]:
    before = os.environ["HOME"]
    os.environ["HOME"] = folder
    try:
        yield
    finally:
        os.environ["HOME"] = before
