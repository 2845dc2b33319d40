"""The recorder: a Ray actor that follows the experiment's log and writes MLflow, off the critical path.

MLflow may be away: then it tries again from the cursor that MLflow itself holds, so nothing is missed or doubled.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import ray

from regrow.infra.mlflow_runs import Runs
from regrow.infra.mlflow_sink import MlflowSink, SinkRefused, SinkUnavailable
from regrow.search.events import Began, Created, Opened, decode

GATHER_SECONDS = 0.5
"""Between two writes: many small updates of one trial become one, and a transaction is worth its while."""
RETRY_SECONDS = 5.0
"""Until the next try while MLflow is away."""


class Recorder:
    """The actor's class. One thread follows and writes; `drained` waits for it."""

    def __init__(self, coordinator: str, tracking_uri: str, experiment_name: str, artifact_root: str | None) -> None:
        self._coordinator = ray.get_actor(coordinator)
        self._target = (tracking_uri, experiment_name, artifact_root)
        self._written = 0
        self._trouble: str | None = None
        self._given_up = False
        self._changed = threading.Condition()
        self._hurry = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="regrow-recorder", daemon=True)
        self._thread.start()

    def drained(self, number: int, timeout: float) -> str | None:
        """Waits until segment `number`, the last one, is recorded, and ends the following.

        Returns what is in the way after `timeout` seconds, None if nothing.
        """
        self._hurry.set()
        with self._changed:
            self._changed.wait_for(lambda: self._written >= number or self._given_up, timeout)
            if self._written < number:
                return self._trouble or "MLflow is slower than the experiment"
        self._done.set()
        self._thread.join()
        return None

    def _run(self) -> None:
        while not self._done.is_set():
            try:
                self._record()
            except SinkUnavailable as error:
                self._note(str(error))
                time.sleep(RETRY_SECONDS)
            except SinkRefused as error:
                self._give_up(str(error))
                return
            except ray.exceptions.RayError as error:
                self._give_up(f"the coordinator is gone: {error}")
                return
            except Exception as error:  # noqa: BLE001 - nobody else sees what ends this thread
                self._give_up(f"{type(error).__name__}: {error}")
                return

    def _record(self) -> None:
        """Folds the log from its start, writes what lies beyond the cursor, and goes on until something fails."""
        uri, name, root = self._target
        runs, after = Runs(), 0
        segments = self._follow(after)
        # Loading MLflow takes 2.5 s of CPU, which the first trials of a sitting need more.
        while not (self._hurry.is_set() or self._done.is_set() or _is_under_way(segments)):
            segments += self._follow(segments[-1][0] if segments else 0)
        created = next(event for _, lines in segments for event in map(decode, lines) if isinstance(event, Created))
        sink = MlflowSink(tracking_uri=uri, experiment_name=name, experiment_id=created.id, artifact_root=root)
        cursor = sink.load().cursor or 0
        while not self._done.is_set():
            for number, lines in segments:
                for line in lines:
                    runs.apply(decode(line))
                if number <= cursor:
                    runs.skip()
                after = number
            if after > cursor and segments:
                sink.write(runs.take(), after)
                self._note(None, written=after)
            elif after > self._written:
                self._note(None, written=after)
            self._hurry.wait(GATHER_SECONDS)
            segments = self._follow(after)

    def _follow(self, after: int) -> list[tuple[int, list[bytes]]]:
        found: list[tuple[int, list[bytes]]] = ray.get(self._coordinator.follow.remote(after, 10.0))
        return found

    def _give_up(self, trouble: str) -> None:
        """Nobody need wait for this recorder any more; the next one goes on from MLflow's cursor."""
        self._given_up = True
        self._note(trouble)

    def _note(self, trouble: str | None, *, written: int | None = None) -> None:
        with self._changed:
            self._trouble = trouble
            if written is not None:
                self._written = written
            self._changed.notify_all()


def _is_under_way(segments: list[tuple[int, list[bytes]]]) -> bool:
    """Whether an attempt has begun since the log was last opened."""
    for _, lines in reversed(segments):
        for event in map(decode, reversed(lines)):
            if isinstance(event, Began | Opened):
                return isinstance(event, Began)
    return False


def start_recorder(coordinator: str, tracking_uri: str, experiment_name: str, artifact_root: str | None) -> Any:
    """Starts the actor, to follow the coordinator of that name; it comes back by itself when it is killed."""
    actor: Any = ray.remote(Recorder)
    return actor.options(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=4).remote(
        coordinator, tracking_uri, experiment_name, artifact_root
    )
