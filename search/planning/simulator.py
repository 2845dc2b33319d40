"""A simulated experiment: the same planner, under a virtual clock, over an objective that is known
beforehand.

Hours of an experiment take seconds, and the same arguments give the same log, event by event. A
worker is a machine with one slot; an attempt occupies as many workers as it is wide. A trace says
when each machine is up. An attempt on a machine that goes down is lost, and continues elsewhere
from its last checkpoint, as in a real experiment.
"""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from regrow.search.endings import Endings
from regrow.search.events import (
    AnyEvent,
    Began,
    Cause,
    Created,
    Ended,
    Opened,
    Outcome,
    Reported,
    Row,
    Saved,
    Started,
    Waited,
)
from regrow.search.history import Attempt, History, TrialRecord
from regrow.search.history.records import specification
from regrow.search.planning.planner import Planner, seed_for
from regrow.search.planning.widths import SHRINK_SECONDS
from regrow.search.space.domains import Json
from regrow.search.spec import Spec


class Objective(Protocol):
    """The metrics that trials would report."""

    def at(
        self, config: Mapping[str, Json], step: int, seed: int
    ) -> tuple[Mapping[str, float], float]:
        """Return the metrics of a step (from 1), and its seconds. `seed` is the trial's."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionObjective:
    """`function(nested configuration, step)`, which returns metrics or the objective alone."""

    function: Callable[[dict[str, Json], int], Mapping[str, float] | float]
    spec: Spec
    seconds: float = 1.0
    """Duration of each step."""

    def at(
        self, config: Mapping[str, Json], step: int, seed: int
    ) -> tuple[Mapping[str, float], float]:
        """See Objective; the seed is not used."""
        found = self.function(self.spec.space.nest(config), step)
        return (
            found if isinstance(found, Mapping) else {self.spec.objective.name: float(found)}
        ), self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """When one machine is up.

    Attributes:
        changes: times at which it changes between up and down (seconds, ascending, the first 0).
        begins_up: whether it is up from time 0 on.

    """

    changes: tuple[float, ...] = (0.0,)
    begins_up: bool = True

    def up(self, t: float) -> bool:
        """Return whether the machine is up at time `t`."""
        return (bisect_right(self.changes, t) % 2 == 1) == self.begins_up

    def next_change(self, t: float) -> float | None:
        """Return the first time after `t` at which the state changes, None for never."""
        place = bisect_right(self.changes, t)
        return self.changes[place] if place < len(self.changes) else None


ALWAYS = Availability()


@dataclass(slots=True, kw_only=True)
class Running:
    """An attempt on its machines.

    Attributes:
        trial: number of the trial.
        attempt: number of the attempt.
        machines: numbers of its workers.
        step: the last step that it did.
        endings: the trial's stop conditions, None if it has none or the attempt has not begun.

    """

    trial: int
    attempt: int
    machines: tuple[int, ...]
    step: int = 0
    endings: Endings | None = None

    def at(self, t: float) -> dict[str, Any]:
        """Return the fields that each event of the attempt at time `t` has."""
        return {"t": t, "trial": self.trial, "attempt": self.attempt}


@dataclass(slots=True, kw_only=True)
class Simulation:
    """A running simulation. `events` is its log so far; `now` is virtual, in seconds."""

    spec: Spec
    objective: Objective
    workers: int
    availability: Sequence[Availability] = ()
    """By worker, reused in turn; empty: all machines are always up."""
    checkpoints: bool = True
    """Whether trials save checkpoints: without losses and pauses it only lengthens the log."""
    startup: float = 0.0
    """Seconds from the placement of an attempt to the beginning of its first step."""
    events: list[AnyEvent] = field(default_factory=list)
    planner: Planner = field(default_factory=Planner)
    now: float = 0.0
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _ticket: itertools.count[int] = field(default_factory=itertools.count)
    _free: list[int] = field(default_factory=list)
    _waiting: list[Started] = field(default_factory=list)
    _running: dict[int, Running] = field(default_factory=dict)

    @property
    def history(self) -> History:
        """The history that the events so far fold to."""
        return self.planner.history

    def open(self, events: Iterable[AnyEvent] = (), *, retry_failed: bool = False) -> Simulation:
        """Begin a session after the sessions of the log `events`; without events the experiment is
        created.

        Attempts open in the log are lost, and with `retry_failed` its failed trials are retried.
        """
        for event in events:
            self.planner.apply(event)
            self.events.append(event)
            self.now = max(self.now, event.t)
        if not self.events:
            spec, auto = self.spec.resolved.to_json(), self.spec.choice.why
            nobody = "00000000-0000-0000-0000-000000000000"
            distinct = not self.spec.duplicates
            self._write(Created(t=self.now, id=nobody, spec=spec, auto=auto, distinct=distinct))
        self._free = [n for n in range(self.workers) if self._machine(n).up(self.now)]
        for number in range(self.workers):
            self._watch(number)
        trials = max(self.spec.total, self.history.total)
        driver = f"session {self.history.sessions}"
        self.tell(
            Opened(
                t=self.now,
                by="driver",
                driver=driver,
                slots=self.workers,
                trials=trials,
                settings=self._settings(),
                retry_failed=retry_failed,
            )
        )
        return self

    def _settings(self) -> dict[str, Any]:
        """Return the keys that may change between sessions, where they differ from those at the
        creation.
        """
        created = self.history.created
        assert created is not None
        now, then = self.spec.settings(), specification(created).settings()
        return {key: value for key, value in now.items() if value != then[key]}

    def run(
        self, *, most_events: int | None = None, most_seconds: float | None = None
    ) -> Simulation:
        """Run until the experiment is closed, or the log has `most_events`, or `most_seconds` of
        virtual time are over.

        Raises RuntimeError if nothing can happen any more because no worker ever comes back.
        """
        while self.history.closed is None and (
            most_events is None or len(self.events) < most_events
        ):
            if not self._queue:
                there = sum(self._machine(number).up(self.now) for number in range(self.workers))
                what = f"nothing happens any more on {there} workers"
                if not there:
                    what = "every worker is gone for good"
                raise RuntimeError(f"{what}, and the experiment is not finished")
            if most_seconds is not None and self._queue[0][0] > most_seconds:
                break
            t, _, act = heapq.heappop(self._queue)
            self.now = max(self.now, t)
            act()
        return self

    def tell(self, event: AnyEvent) -> None:
        """Write an event, and every decision that follows from it."""
        self._write(event)
        while (decision := self.planner.next(self.now)) is not None:
            self._write(decision)
        self._place()
        if self.history.closing is not None and not self.history.closing.pauses:
            for running in list(self._running.values()):
                self._end(running, "stopped")

    @property
    def running(self) -> list[Running]:
        """The attempts on machines, by trial."""
        return [self._running[trial] for trial in sorted(self._running)]

    def fail(self, trial: int, message: str, *, cause: Cause = "error") -> None:
        """Let the trainable of a running trial raise an error."""
        running = self._running[trial]
        self._over(running, "failed", running.step, message, cause=cause)

    def _write(self, event: AnyEvent) -> None:
        self.planner.apply(event)
        self.events.append(event)
        if isinstance(event, Started):
            self._waiting.append(event)
            if event.width > self.spec.resources.widths[0] and self.spec.resources.grouped:
                self._at(self.now + SHRINK_SECONDS, partial(self._waited, event))
        elif isinstance(event, Ended) and (event.by, event.outcome) == ("planner", "paused"):
            self._waiting = [started for started in self._waiting if started.trial != event.trial]
            if (running := self._running.pop(event.trial, None)) is not None:
                self._free = sorted([*self._free, *running.machines])

    def _waited(self, started: Started) -> None:
        """Report that a group still waits for machines."""
        if started in self._waiting and self.history.closing is None:
            trial, attempt = started.trial, started.attempt
            self.tell(Waited(t=self.now, trial=trial, attempt=attempt, seconds=SHRINK_SECONDS))

    def _machine(self, number: int) -> Availability:
        return self.availability[number % len(self.availability)] if self.availability else ALWAYS

    def _at(self, t: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (t, next(self._ticket), act))

    # ---- machines

    def _watch(self, number: int) -> None:
        if (t := self._machine(number).next_change(self.now)) is not None:
            self._at(t, lambda: self._turns(number))

    def _turns(self, number: int) -> None:
        """Switch a machine between up and down."""
        self._watch(number)
        if self._machine(number).up(self.now):
            self._free.append(number)
            self._free.sort()
            self._place()
            return
        if number in self._free:
            self._free.remove(number)
        for running in list(self._running.values()):
            if number in running.machines:
                step = self.history.trials[running.trial].step
                self._over(
                    running, "lost", step, "the node was lost", cause="preempted", but=number
                )

    def _place(self) -> None:
        """Begin attempts that were started while there is room, in the order of their starts."""
        while self._waiting and self._waiting[0].width <= len(self._free):
            started = self._waiting.pop(0)
            machines, self._free = tuple(self._free[: started.width]), self._free[started.width :]
            trial = self.history.trials[started.trial]
            running = Running(trial=trial.number, attempt=started.attempt, machines=machines)
            self._running[started.trial] = running
            self._at(self.now + self.startup, partial(self._begin, running, started, trial))

    # ---- attempts

    def _alive(self, running: Running) -> bool:
        return self._running.get(running.trial) is running

    def _begin(self, running: Running, started: Started, trial: TrialRecord) -> None:
        if not self._alive(running):
            return
        lease = running.at(self.now)
        own = {c.manifest: step for step, c in trial.checkpoints.items()}
        source = started.checkpoints[0] if started.clones else None
        restored = max((own.get(m, 0) for m in started.checkpoints), default=0)
        if source is not None:
            restored = trial.step
        running.step = restored
        if self.spec.stop.trial.watches:
            running.endings = Endings(self.spec.ending, trial.values[:restored])
        self.tell(Began(**lease, node=f"worker-{running.machines[0]}", restored=restored))
        if self._alive(running) and source is not None:
            self.tell(
                Saved(**lease, step=restored, manifest=_manifest(running), size=1, source=source)
            )
        if self._alive(running):
            self._go_on(running)

    def _go_on(self, running: Running) -> None:
        """End the attempt, or begin its next step."""
        trial = self.history.trials[running.trial]
        attempt = self.history.lease(running.trial, running.attempt)
        if attempt is None:
            return
        if attempt.stop is not None:
            self._end(running, "stopped")
        elif attempt.leave is not None or self.history.closing is not None:
            if trial.clone is None:
                self._save(running, attempt)
            self._end(running, "paused")
        elif self._complete(running) or (running.endings is not None and running.endings.why):
            self._end(running, "done")
        else:
            step, seed = running.step + 1, seed_for(self.spec.seed, trial.number, "trial")
            metrics, seconds = self.objective.at(trial.config, step, seed)
            t = self.now + seconds / len(running.machines)
            self._at(t, partial(self._report, running, step, metrics))

    def _complete(self, running: Running) -> bool:
        """Return whether the attempt did all its steps, as the specification counts them."""
        curve = self.history.trials[running.trial].curve
        step = running.step if self.spec.clock is None else curve.time
        return step >= self.spec.most_steps

    def _report(self, running: Running, step: int, metrics: Mapping[str, float]) -> None:
        if not self._alive(running):
            return
        running.step = step
        if running.endings is not None:
            running.endings.tell(metrics[self.spec.objective.name])
        row = Row(step, self.now, dict(metrics))
        self.tell(Reported(**running.at(self.now), rows=[row]))
        if not self._alive(running):
            return
        attempt = self.history.lease(running.trial, running.attempt)
        if attempt is not None and self.checkpoints and attempt.leave is None:
            every = self.spec.checkpoint.every_steps or 1
            if step % every == 0 or self._complete(running):
                self._save(running, attempt)
        if self._alive(running):
            self._go_on(running)

    def _save(self, running: Running, attempt: Attempt) -> None:
        if attempt.saved < running.step:
            lease, manifest = running.at(self.now), _manifest(running)
            self.tell(Saved(**lease, step=running.step, manifest=manifest, size=1))

    def _end(self, running: Running, outcome: Outcome) -> None:
        if not self._alive(running):
            return
        why = running.endings.why if running.endings is not None and outcome == "done" else None
        self._over(running, outcome, running.step, why or "")

    def _over(
        self,
        running: Running,
        outcome: Outcome,
        step: int,
        message: str,
        *,
        cause: Cause = "",
        but: int | None = None,
    ) -> None:
        """End an attempt and free its machines, except for `but`, which went down."""
        del self._running[running.trial]
        self._free = sorted([*self._free, *(n for n in running.machines if n != but)])
        by: Literal["attempt", "driver"] = "attempt" if but is None else "driver"
        end = Ended(
            **running.at(self.now), outcome=outcome, cause=cause, step=step, message=message, by=by
        )
        self.tell(end)


def _manifest(running: Running) -> str:
    return f"manifests/{running.trial}/{running.attempt}/{running.step:010}.json"


def availability(counts: Sequence[int], gap_seconds: float, workers: int) -> list[Availability]:
    """Return the machines of a recorded trace: `counts[k]` are available from second k *
    gap_seconds on; the last count holds until the end.

    A trace with at most one machine describes that machine: worker n then begins n/workers of the
    way into it, and the trace is cyclic, so that not all workers are lost at once. Otherwise the
    first counts[k] workers are up.

    Raises ValueError for an empty trace, a count below 0 and a gap that is not a positive number.
    """
    if not counts:
        raise ValueError("the trace is empty")
    if min(counts) < 0:
        raise ValueError(f"there are {min(counts)} machines")
    if not 0 < gap_seconds < math.inf:
        raise ValueError(f"the gap is {gap_seconds:g} seconds")
    single = max(counts) <= 1
    machines = []
    for number in range(workers):
        shift = number * len(counts) // workers if single else 0
        states = [(c > 0 if single else c > number) for c in [*counts[shift:], *counts[:shift]]]
        changes = [n for n in range(1, len(states)) if states[n] != states[n - 1]]
        turns = [place * gap_seconds for place in changes]
        machines.append(Availability(changes=(0.0, *turns), begins_up=states[0]))
    return machines


def simulate(
    spec: Spec,
    objective: Objective,
    *,
    workers: int,
    availability: Sequence[Availability] = (),
    checkpoints: bool = True,
    startup: float = 0.0,
    most_seconds: float | None = None,
) -> Simulation:
    """Run a whole experiment under a virtual clock; see Simulation for the arguments."""
    run = Simulation(
        spec=spec,
        objective=objective,
        workers=workers,
        availability=availability,
        checkpoints=checkpoints,
        startup=startup,
    )
    return run.open().run(most_seconds=most_seconds)
