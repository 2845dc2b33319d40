"""The recorder: a Ray actor that follows the experiment's log and writes to MLflow.

If MLflow is away, it retries from the cursor that MLflow holds: nothing is missed or doubled.
"""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from typing import Any

import ray

from regrow.flows.recording import ending
from regrow.flows.recording.media import MediaArtifacts
from regrow.infra.log.rows import reports
from regrow.infra.log.subscription import Subscription
from regrow.infra.mlflow.in_trial import Tracked
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.trial_runs import TrialRuns
from regrow.infra.mlflow.updates import SinkUnavailable, Target
from regrow.infra.ray.cluster import start_actor
from regrow.infra.ray.coordinator_log import CoordinatorLog
from regrow.infra.ray.notices import ignore_sigterm
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.search.events import Began, Created, Opened, decode
from regrow.search.history import History, specification
from regrow.tasks.errors import RegrowError
from regrow.tasks.process import background, garbage

GATHER_SECONDS = (0.5, 0.5)
"""Pace of the writes, which merge many small updates of a trial into one larger transaction."""
NEWS_SECONDS = 10.0
"""Seconds that the coordinator holds an answer back until there is news."""
RETRY_SECONDS = 5.0
"""Seconds between two tries while MLflow is unreachable."""
AWAITED_SECONDS = 20.0
"""Seconds that the recorder waits for files that the driver makes; then it makes them itself."""
ASK_SECONDS = 1.0
"""Seconds for which a worker that asks for its run occupies a thread; then it asks again."""
NOTES_SECONDS = (5.0, 30.0)
"""Seconds between two checks for people's notes: in a folder, in a bucket."""
THREADS = 32
"""Calls that the actor serves at a time."""


class Recorder:
    """Class of the actor. One thread follows and writes; `drained` waits for it."""

    def __init__(
        self,
        coordinator: str,
        places: Places,
        name: str,
        tracking_uri: str,
        artifact_root: str | None,
    ) -> None:
        """Start following. The last two are the driver's: this process may have other variables."""
        ignore_sigterm()
        garbage.collect_rarely()
        self._coordinator = ray.get_actor(coordinator)
        self._places, self._name = places, name
        self._uri, self._root = tracking_uri, artifact_root
        self._written = 0
        self._trouble: str | None = None
        self._given_up = False
        self._remarks: list[str] = []
        self._asked: set[tuple[int, int]] = set()
        self._tracked: dict[tuple[int, int], Tracked] = {}
        self._loaded = False
        self._awaited = False
        self._made: ending.Made | None = None
        """The final files, and whether the driver makes them."""
        self._changed = threading.Condition()
        self._looked = -math.inf
        self._hurry = threading.Event()
        """Set while a caller waits: nothing is gathered, and MLflow is loaded at once."""
        self._draining = False
        self._done = threading.Event()
        self._thread = background.start(self._run, name="recorder")

    def finish(self) -> bool:
        """Hurry, as the session ends. Return whether the caller has to make the final files and
        give them: after a short session, while this process still loads MLflow.
        """
        self._awaited = not self._loaded
        self._draining = True
        self._hurry.set()
        return self._awaited

    def give(self, made: ending.Made) -> None:
        """Use these final files."""
        with self._changed:
            self._made = made
            self._changed.notify_all()

    def drained(self, number: int, timeout: float) -> str | None:
        """Wait until segment `number`, the last one, is recorded, and stop following.

        Returns what prevents that after `timeout` seconds, None if nothing.
        """
        self._draining = True
        self._hurry.set()
        with self._changed:
            self._changed.wait_for(lambda: self._written >= number or self._given_up, timeout)
            if self._written < number:
                return self._trouble or "MLflow is slower than the experiment"
        self._done.set()
        self._thread.join()
        return None

    def pictures(self) -> dict[str, bytes]:
        """Return the figures among the final files; empty if there are none."""
        return {} if self._made is None else ending.figures(self._made)

    def remarks(self) -> list[str]:
        """Return lines about what was not recorded besides runs: artifacts, report, model."""
        with self._changed:
            return list(dict.fromkeys(self._remarks))

    def run_of(self, trial: int, attempt: int) -> tuple[Tracked | None, str | None]:
        """Return an attempt's MLflow run; None and why, if it is not there in ASK_SECONDS."""
        lease = trial, attempt
        with self._changed:
            if lease not in self._tracked and not self._given_up:
                self._asked.add(lease)
                self._hurry.set()
                self._changed.wait_for(
                    lambda: lease in self._tracked or self._given_up, ASK_SECONDS
                )
            return self._tracked.get(lease), self._trouble

    def _run(self) -> None:
        while not self._done.is_set():
            try:
                self._record()
            except SinkUnavailable as error:
                self._note(str(error))
                self._done.wait(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 - reported here, as nothing else sees what ends this thread
                # Release all waiting callers; the next recorder continues from MLflow's cursor.
                self._given_up = True
                known = isinstance(error, RegrowError)  # refused, or the coordinator is gone
                self._note(str(error) if known else f"{type(error).__name__}: {error}")
                return

    def _record(self) -> None:
        """Fold the log, and write what lies beyond the cursor, until `done` is set or it fails."""
        store = self._places.store(self._name)
        address = partial(self._places.address, self._name)
        runs = TrialRuns(partial(reports, store), address, MediaArtifacts(store))
        sink = self._opened()
        rehearsal = ending.Rehearsal(self._places)
        loaded, seconds = rehearsal.load(sink.load)
        self._coordinator.rehearsed.remote(seconds)
        cursor, self._loaded = loaded or 0, True
        log = CoordinatorLog(self._coordinator, NEWS_SECONDS)
        for batch in Subscription(log, GATHER_SECONDS, self._done, wake=self._hurry):
            if batch.last:
                return
            for number, lines in batch.segments:
                for line in lines:
                    runs.apply(decode(line), number)
                if number <= cursor:
                    runs.skip()
            if self._record_notes(runs) or (log.after > cursor and batch.segments):
                self._write(sink, runs, cursor, log.after)
            self._answer(sink, runs)
            if log.after > self._written:
                self._note(None, written=log.after)
            if not batch.more and not self._draining:
                # one module at a time, so that new reports do not wait long
                took = rehearsal.step(runs.history)
                if took is not None:
                    self._coordinator.rehearsed.remote(took)

    def _record_notes(self, runs: TrialRuns) -> bool:
        """Return whether there are new notes; asked from time to time, and at the end."""
        due = time.monotonic() - self._looked > NOTES_SECONDS[self._places.storage.metered]
        if not runs.history.trials or not (due or runs.history.closed is not None):
            return False
        self._looked = time.monotonic()
        try:
            return runs.noted(notes.read(self._places.store(self._name)))
        except RegrowError:  # the store is unreachable; retried at the next check
            return False

    def _opened(self) -> MlflowSink:
        """Wait until an attempt has begun, and return the sink: loading MLflow takes 2.5 s of CPU,
        which starting trials need first.
        """
        created: Created | None = None
        opened: Opened | None = None
        under_way = False
        log = CoordinatorLog(self._coordinator, NEWS_SECONDS)
        while created is None or log.more or not (under_way or self._hurry.is_set()):
            for _, lines in log.read():
                # Reports are skipped without decoding: they are most of a log.
                for event in (decode(line) for line in lines if b'"reported"' not in line[:64]):
                    match event:
                        case Created():
                            created = event
                        case Opened():
                            opened, under_way = event, False
                        case Began():
                            under_way = True
        return MlflowSink(
            Target(
                tracking_uri=self._uri,
                experiment_name=specification(created, opened).recorded_as,
                experiment_id=created.id,
                artifact_root=self._root,
            )
        )

    def _write(self, sink: MlflowSink, runs: TrialRuns, cursor: int, after: int) -> None:
        if runs.history.closed is None:
            sink.write(runs.drain(), max(cursor, after))
        else:
            sink.write(runs.drain(), max(cursor, self._written))
            self._note("the report is being made")
            self._remark(ending.say(sink, runs, self._places, after, make=self._make))
        self._remark(sink.troubles)
        sink.troubles.clear()

    def _make(self, history: History) -> ending.Made:
        """Return the final files: those that the driver makes, if it does so in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._made or not self._awaited, AWAITED_SECONDS)
        if self._made is None:
            self._made = ending.made(history, self._places)
        return self._made

    def _answer(self, sink: MlflowSink, runs: TrialRuns) -> None:
        """Answer the workers that wait for their trial's run."""
        with self._changed:
            for trial, attempt in list(self._asked):
                key = runs.key(trial, attempt)
                run_id = sink.run_id(key) if key is not None else None
                if run_id is not None:
                    self._asked.discard((trial, attempt))
                    self._tracked[trial, attempt] = Tracked(
                        run_id=run_id,
                        experiment_id=sink.mlflow_experiment_id,
                        experiment_name=sink.target.experiment_name,
                        id=runs.history.id,
                    )
                elif runs.is_over(trial, attempt):
                    self._asked.discard((trial, attempt))
            if not self._asked and not self._draining:
                self._hurry.clear()
            self._changed.notify_all()

    def _remark(self, lines: list[str]) -> None:
        with self._changed:
            self._remarks += lines

    def _note(self, trouble: str | None, *, written: int | None = None) -> None:
        with self._changed:
            self._trouble = trouble
            if written is not None:
                self._written = written
            self._changed.notify_all()


def start_recorder(coordinator: str, places: Places, name: str) -> Any:
    """Start the actor, which follows the coordinator of that name; Ray restarts it."""
    # If MLflow's records are a file, it is on this machine.
    where = (places, name, places.mlflow_uri, places.mlflow_artifacts)
    return start_actor(Recorder, coordinator, *where, waiting=THREADS)
