"""`regrow resume` of a long log: how the log is made, and how long the command takes to its first
new trial.

The log is what the planner itself decides over 10,000 trials of 27 steps under ASHA, with made-up
reports and a made-up clock; MLflow holds the same, as it would after a real run. Made once, in
seconds, and copied for each measurement.
"""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.overhead_sides import Sandbox, Session, Work, parts, write_spec
from regrow.flows.coordinator.ledger import COMPACT_EVERY
from regrow.infra.log.log import Log
from regrow.infra.log.reading import read_events
from regrow.infra.mlflow.sink import MlflowSink
from regrow.infra.mlflow.trial_runs import TrialRuns
from regrow.infra.mlflow.updates import Target
from regrow.infra.state.places import Places
from regrow.search import samplers
from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
    Created,
    Ended,
    Opened,
    Reported,
    Row,
    Started,
    encode,
)
from regrow.search.planning.planner import Planner
from regrow.search.spec import Spec
from tests.memory_store import MemoryStore

MAX_STEPS = 27
STARTED = 1_700_000_000.0
NEW_TRIALS = 4
ID = "0b9e3f4e-51f2-4c55-8a0e-0c9d6a7a3f10"


Services = Callable[[Sandbox, Path], AbstractContextManager[None]]


class Simulation:
    """An experiment without workers: attempts report at once, and what comes of it is written to a
    log in memory.
    """

    def __init__(self, spec: Spec, *, compact: bool) -> None:
        self.store = MemoryStore()
        self.log = Log.open(self.store)
        self._planner = Planner()
        self._compact = compact
        self._lines: list[bytes] = []
        self._now = STARTED
        self._segments = 0
        self.events: list[AnyEvent] = []
        self._take(Created(t=self._now, id=ID, spec=spec.to_json()))
        # Configurations at random whatever the specification says, because 10,000 of TPE's own
        # would take minutes. A resume never looks at how a configuration came about.
        self._planner._sampler = samplers.make("random", spec.setting)  # noqa: SLF001
        opened = Opened(
            t=self._now, by="driver", driver=socket.gethostname(), slots=2, trials=spec.total
        )
        self._take(opened)
        self.log.claim(self._lines)
        self._lines = []

    def run(self, trials: int) -> None:
        """Until `trials` of them have ended; then the experiment is interrupted."""
        history = self._planner.history
        while True:
            starts = self._decide()
            self._commit()
            ended = sum(len(numbers) for state, numbers in history.by_state.items() if state.final)
            if ended + len(history.running) >= trials and history.closing is None:
                self._take(
                    Closing(
                        t=self._now,
                        status="interrupted",
                        why="the benchmark's log ends here",
                        by="user",
                    )
                )
            if history.closed is not None:
                return
            for number in sorted(history.running):
                self._advance(number, starts)

    def _advance(self, number: int, starts: set[int]) -> None:
        """An attempt's next message: it began, did the steps up to its next decision, and perhaps
        ended.
        """
        trial = self._planner.history.trials[number]
        attempt = trial.attempt
        assert attempt is not None
        lease: dict[str, Any] = {"trial": number, "attempt": attempt.number}
        if number in starts:
            self._take(Began(t=self._tick(), **lease, node="node", task_run=f"task-run-{number}"))
        if attempt.stop is None and trial.step < MAX_STEPS:
            value = trial.config["x"]
            until = min(attempt.until or MAX_STEPS, MAX_STEPS)
            rows = [
                Row(step, self._tick(), {"score": value * (1 - 0.5**step)})
                for step in range(trial.step + 1, until + 1)
            ]
            self._take(Reported(t=self._now, **lease, rows=rows))
        elif attempt.stop is not None or trial.step >= MAX_STEPS:
            outcome: Any = "stopped" if attempt.stop is not None else "done"
            self._take(
                Ended(
                    t=self._tick(),
                    **lease,
                    outcome=outcome,
                    step=trial.step,
                    message=attempt.stop or "",
                )
            )

    def _decide(self) -> set[int]:
        starts = set()
        while (decision := self._planner.next(self._now)) is not None:
            self._take(decision)
            if isinstance(decision, Started):
                starts.add(decision.trial)
            if isinstance(decision, Closed):
                break
        return starts

    def _take(self, event: AnyEvent) -> None:
        self._planner.apply(event)
        self.events.append(event)
        self._lines.append(encode(event))

    def _commit(self) -> None:
        if self._lines:
            self.log.append(self._lines)
            self._lines = []
            self._segments += 1
            if self._compact and self._segments % COMPACT_EVERY == 0:
                self.log.compact()

    def _tick(self) -> float:
        self._now += 0.01
        return self._now


def make_state(folder: Path, trials: int, *, search: str, compact: bool) -> Path:
    """A state root with an interrupted experiment: `trials` trials have ended, and four are still
    to do.
    """
    root = folder / f"made-{search}-{'compacted' if compact else 'raw'}"
    root.mkdir()
    schedule = {"asha": {"grace_period": 1, "reduction_factor": 3}}
    written = write_spec(
        folder,
        Work(trials=trials + NEW_TRIALS, reports=MAX_STEPS),
        schedule=schedule,
        search=search,
    )
    simulation = Simulation(Spec.parse({**written, "working_dir": str(folder)}), compact=compact)
    simulation.run(trials)
    for key in simulation.store.list("log/"):
        path = root / "bench" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simulation.store.read(key))
    _record(root, simulation)
    return root


def resume(box: Sandbox, made: Path, services: Services) -> Session:
    """`regrow resume` on a copy of a state that was made, while `services` of the copy are up."""
    state = box.folder / "state"
    shutil.rmtree(state, ignore_errors=True)
    shutil.copytree(made, state)
    box.sweep()
    with services(box, state):
        command = [
            sys.executable,
            "-m",
            "regrow",
            "resume",
            "bench",
            "--quiet",
            "--state",
            str(state),
        ]
        session = box.time(command, work_in=made.parent)
    events = read_events(Places.at(str(state)).store("bench"))
    done = sum(isinstance(event, Ended) for event in events)
    assert isinstance(events[-1], Closed), events[-1]
    assert events[-1].status == "finished", events[-1]
    found = parts(events, session) | {"trials ended": float(done)}
    return replace(session, parts=found)


def replay_parts(made: Path) -> dict[str, float]:
    """Seconds, in this process, for what a resume must do with the log alone."""
    store = Places.at(str(made)).store("bench")
    found: dict[str, float] = {}
    start = time.perf_counter()
    events = read_events(store)
    found["read and decode s"] = time.perf_counter() - start
    start = time.perf_counter()
    planner = Planner()
    for event in events:
        planner.apply(event)
    found["fold s"] = time.perf_counter() - start
    opened = Opened(
        t=time.time(), by="driver", driver="here", slots=2, trials=planner.history.total
    )
    planner.apply(opened)
    start = time.perf_counter()
    assert planner.next(time.time()) is not None
    found["first proposal s"] = time.perf_counter() - start
    return found | {"events": float(len(events)), "objects": float(len(store.list("log/")))}


def _record(root: Path, simulation: Simulation) -> None:
    """MLflow as the recorder would have left it."""
    places = Places.at(str(root)).writable()
    runs = TrialRuns(
        lambda _: (event for event in simulation.events if isinstance(event, Reported))
    )
    for event in simulation.events:
        runs.apply(event)
    sink = MlflowSink(
        Target(
            tracking_uri=places.mlflow_uri,
            experiment_name="bench",
            experiment_id=ID,
            artifact_root=places.mlflow_artifacts,
        )
    )
    sink.load()
    sink.write(runs.drain(), simulation.log.last)
    sink.close()
