"""An experiment in memory: the real planner over a list of events, with virtual attempts in place
of workers.

Time is counted in events, chance comes from a seed: the same arguments give the same log. No test
lives here.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from regrow.search.events import (
    AnyEvent,
    Began,
    Cause,
    Closing,
    Created,
    Decided,
    Ended,
    Opened,
    Outcome,
    Proposed,
    Reported,
    Row,
    Saved,
    Started,
)
from regrow.search.planning.planner import Planner

MAX_STEPS = 9
SPEC: dict[str, Any] = {
    "name": "simulated",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "space": {"x": {"uniform": [0.0, 1.0]}},
    "search": "random",
    "schedule": {"asha": {"grace_period": 1, "reduction_factor": 3}},
    "trials": 6,
    "max_steps": MAX_STEPS,
}


def score(config: dict[str, Any], step: int) -> float:
    """A curve that rises with noise and depends on nothing but its arguments."""
    noise = hashlib.sha256(f"{config}:{step}".encode()).digest()[0] / 2560
    return round(float(config["x"]) * step / (step + 1) + noise, 6)


def created(**changes: Any) -> Created:
    """The first event of an experiment like SPEC, but for `changes`."""
    return Created(t=0.0, id="00000000-0000-0000-0000-000000000001", spec={**SPEC, **changes})


def opened(
    t: float, *, slots: int = 2, trials: int = 6, by: Any = "driver", driver: str = "d"
) -> Opened:
    """A writer takes over."""
    return Opened(t=t, by=by, driver=driver, slots=slots, trials=trials)


@dataclass(slots=True)
class Worker:
    """A virtual attempt: where it stands and what it reported and saved."""

    trial: int
    attempt: int
    checkpoints: list[str]
    step: int | None = None
    saved: int = 0


@dataclass(slots=True)
class Simulation:
    """Runs until the experiment is closed. `lose`: the chance that an action of an attempt is its
    loss.
    """

    events: list[AnyEvent] = field(default_factory=list)
    slots: int = 2
    trials: int = 6
    seed: int = 0
    lose: float = 0.0
    steady: bool = False
    """Attempts report one row at a time and save at every step."""
    fails: frozenset[int] = frozenset()
    """Trials whose trainable raises at its first step."""
    planner: Planner = field(default_factory=Planner)
    workers: list[Worker] = field(default_factory=list)
    most_running: int = 0

    def open(self, **changes: Any) -> Simulation:
        """Replays the events there are and begins a session; creates the experiment where there are
        none.
        """
        for event in self.events:
            self.planner.apply(event)
        if not self.events:
            self._write(created(**changes))
        self.tell(opened(self.now, slots=self.slots, trials=self.trials))
        return self

    @property
    def now(self) -> float:
        """The time of the next event."""
        return float(len(self.events))

    def tell(self, event: AnyEvent) -> None:
        """An observation and all decisions that follow."""
        self._write(event)
        while (decision := self.planner.next(self.now)) is not None:
            assert decision.t == self.now
            self._write(decision)

    def run(self, *, interrupt_after: int | None = None) -> Simulation:
        """Until closed; the user interrupts once there are `interrupt_after` events."""
        chance = random.Random(f"{self.seed}:{len(self.events)}")
        while self.planner.history.closed is None:
            if (
                interrupt_after is not None
                and len(self.events) >= interrupt_after
                and self.planner.history.closing is None
            ):
                self.tell(Closing(t=self.now, status="interrupted", why="by the user", by="user"))
                continue
            assert self.workers, "no attempt runs, and the experiment is not closed"
            self.act(self.workers[0] if self.steady else chance.choice(self.workers), chance)
        return self

    def _write(self, event: AnyEvent) -> None:
        self.planner.apply(event)
        self.events.append(event)
        running = self.planner.history.running
        self.most_running = max(self.most_running, len(running))
        if isinstance(event, Started):
            self.workers.append(Worker(event.trial, event.attempt, list(event.checkpoints)))

    def act(self, worker: Worker, chance: random.Random) -> None:
        """One thing that the attempt does."""
        history = self.planner.history
        trial = history.trials[worker.trial]
        lease = history.lease(worker.trial, worker.attempt)
        assert lease is not None
        if chance.random() < self.lose:
            return self._end(worker, "lost", chance.choice(("preempted", "infrastructure")))
        if worker.step is None:
            at = {c.manifest: step for step, c in trial.checkpoints.items()}
            # A newer checkpoint is damaged now and then.
            usable = [m for m in worker.checkpoints if self.steady or chance.random() > self.lose]
            worker.step = at[usable[0]] if usable else 0
            return self.tell(
                Began(
                    t=self.now,
                    trial=worker.trial,
                    attempt=worker.attempt,
                    node="n",
                    restored=worker.step,
                )
            )
        if worker.trial in self.fails:
            return self._end(worker, "failed", "error")
        if lease.stop is not None:
            return self._end(worker, "stopped")
        if worker.step == MAX_STEPS:
            return self._end(worker, "done")
        if history.closing is not None:
            if (
                history.closing.by == "user"
                and worker.saved < worker.step
                and chance.random() < 0.7
            ):
                return self._save(worker)
            return self._end(worker, "paused" if history.closing.by == "user" else "stopped")
        if worker.saved < worker.step and (self.steady or chance.random() < 0.5):
            return self._save(worker)
        room = (lease.until or MAX_STEPS) - worker.step
        count = 1 if self.steady else chance.randint(1, room)
        steps = range(worker.step + 1, worker.step + count + 1)
        worker.step += count
        rows = [Row(step, self.now, {"score": score(trial.config, step)}) for step in steps]
        return self.tell(
            Reported(t=self.now, trial=worker.trial, attempt=worker.attempt, rows=rows)
        )

    def _save(self, worker: Worker) -> None:
        assert worker.step is not None
        worker.saved = worker.step
        manifest = f"manifests/{worker.trial}/{worker.attempt}/{worker.step}"
        self.tell(
            Saved(
                t=self.now,
                trial=worker.trial,
                attempt=worker.attempt,
                step=worker.step,
                manifest=manifest,
                size=1,
            )
        )

    def _end(self, worker: Worker, outcome: Outcome, cause: Cause = "") -> None:
        self.workers.remove(worker)
        by: Any = "driver" if outcome == "lost" else "attempt"
        self.tell(
            Ended(
                t=self.now,
                trial=worker.trial,
                attempt=worker.attempt,
                outcome=outcome,
                cause=cause,
                step=worker.step or 0,
                by=by,
            )
        )


def resumed(events: Iterable[AnyEvent], **changes: Any) -> Simulation:
    """A new driver on a log, run to its end."""
    return Simulation(events=list(events), **changes).open().run()


def decisions(events: Iterable[AnyEvent]) -> list[tuple[object, ...]]:
    """What was proposed and what the scheduler decided, without times and attempts."""
    found: list[tuple[object, ...]] = []
    for event in events:
        match event:
            case Proposed():
                found.append(("proposed", event.trial, event.config))
            case Decided():
                found.append(
                    ("decided", event.trial, event.step, event.verdict, event.until, event.why)
                )
            case _:
                pass
    return found
