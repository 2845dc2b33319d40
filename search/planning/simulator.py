"""A simulated experiment: the same planner, under a virtual clock, over an objective that is known
beforehand.

Hours of an experiment take seconds, and the same arguments give the same log, event by event. A
worker is a machine with one slot; an attempt occupies as many slots as it is wide. A trace says
when each machine is up. An attempt on a machine that goes down is lost, without a notice, and
continues elsewhere from its last checkpoint, as in a real experiment. What machines cost and when
they are started and stopped: see `machines.py`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from regrow.search.endings import Endings
from regrow.search.events import (
    AnyEvent,
    Began,
    Cause,
    Closing,
    Created,
    Ended,
    Opened,
    Outcome,
    Priced,
    Reported,
    Row,
    Saved,
    Started,
    Waited,
)
from regrow.search.history import Attempt, History, TrialRecord
from regrow.search.history.records import specification
from regrow.search.planning import limits, market
from regrow.search.planning.machines import ALWAYS, Availability, Fleet, Machine, availability
from regrow.search.planning.market import WITHDRAW_SECONDS, waiting_long
from regrow.search.planning.planner import Planner, seed_for
from regrow.search.planning.widths import SHRINK_SECONDS
from regrow.search.space.domains import Json
from regrow.search.spec import Spec

__all__ = [
    "ALWAYS",
    "Availability",
    "FunctionObjective",
    "Machine",
    "Objective",
    "Running",
    "Simulation",
    "availability",
    "simulate",
]

MOST_SAVES = 2
"""Checkpoints of an attempt that are under way at a time; training waits with one more."""


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


@dataclass(slots=True, kw_only=True)
class Running:
    """An attempt on its machines.

    Attributes:
        trial: number of the trial.
        attempt: number of the attempt.
        machines: by its slots, the numbers of their machines.
        step: the last step that it did.
        endings: the trial's stop conditions, None if it has none or the attempt has not begun.
        saves: the checkpoints under way, one after the other: step, time of the call.
        called: when the last checkpoint was called for, at first when the attempt began.
        then: what happens once one of `saves` is durable; None: nothing waits for it.

    """

    trial: int
    attempt: int
    machines: tuple[int, ...]
    step: int = 0
    endings: Endings | None = None
    saves: deque[tuple[int, float]] = field(default_factory=deque)
    called: float = 0.0
    then: Callable[[], None] | None = None

    def at(self, t: float) -> dict[str, Any]:
        """Return the fields that each event of the attempt at time `t` has."""
        return {"t": t, "trial": self.trial, "attempt": self.attempt}


@dataclass(slots=True, kw_only=True)
class Simulation:
    """A running simulation. `events` is its log so far; `now` is virtual, in seconds."""

    spec: Spec
    objective: Objective
    workers: int = 1
    availability: Sequence[Availability] = ()
    """By worker, reused in turn; empty: all machines are always up."""
    machines: Sequence[Machine] = ()
    """The machines; empty: `workers` permanent ones of one slot, with `availability`."""
    slots: int | None = None
    """Slots of attempts at a time, whatever is up; None: those of all machines."""
    checkpoints: bool = True
    """Whether trials save checkpoints: without losses and pauses it only lengthens the log."""
    startup: float = 0.0
    """Seconds from the placement of an attempt to the beginning of its first step."""
    save: float = 0.0
    """Seconds of a checkpoint, during which training continues; 0: durable at once, unmeasured."""
    restore: float = 0.0
    """Seconds from the placement to the first step, beyond `startup`, to load a checkpoint."""
    events: list[AnyEvent] = field(default_factory=list)
    planner: Planner = field(default_factory=Planner)
    now: float = 0.0
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _ticket: itertools.count[int] = field(default_factory=itertools.count)
    _fleet: Fleet = field(init=False)
    _looks_at: float | None = None
    """When the planner is asked next because money or time may be over."""
    _waiting: list[Started] = field(default_factory=list)
    _running: dict[int, Running] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = self.availability or (ALWAYS,)
        own = [Machine(availability=found[n % len(found)]) for n in range(self.workers)]
        self._fleet = Fleet(machines=self.machines or own)

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
        for number, machine in enumerate(self._fleet.machines):
            if machine.permanent and machine.availability.up(self.now):
                self._fleet.finish_boot(number)
            self._watch(number)
        created = self.history.created
        assert created is not None
        trials = max(self.spec.total, self.history.total)
        driver = f"session {self.history.sessions}"
        self.record(
            Opened(
                t=self.now,
                by="driver",
                driver=driver,
                slots=self._fleet.slots if self.slots is None else self.slots,
                trials=trials,
                settings=self.spec.settings_since(specification(created)),
                retry_failed=retry_failed,
            )
        )
        return self

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
                there = self._fleet.there(self.now)
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

    def record(self, event: AnyEvent) -> None:
        """Write an event, and every decision that follows from it."""
        self._write(event)
        self._decide()

    @property
    def running(self) -> list[Running]:
        """The attempts on machines, by trial."""
        return [self._running[trial] for trial in sorted(self._running)]

    def fail(self, trial: int, message: str, *, cause: Cause = "error") -> None:
        """Let the trainable of a running trial raise an error."""
        running = self._running[trial]
        self._over(running, "failed", running.step, message, cause=cause)

    def _decide(self) -> None:
        """Write every decision that is due, and give attempts their machines."""
        while (decision := self.planner.next(self.now)) is not None:
            self._write(decision)
        self._place()
        self._plan_at_limits()

    def _write(self, event: AnyEvent) -> None:
        self.planner.apply(event)
        self.events.append(event)
        if isinstance(event, Started):
            self._waiting.append(event)
            waits, resources = market.patience(self.history), self.history.spec.resources
            if event.width > resources.widths[0] and resources.grouped:
                self._at(self.now + SHRINK_SECONDS, self._report_waits)
            if waits is not None:
                self._at(self.now + waits, self._report_waits)
        elif isinstance(event, Ended) and event.by == "planner":
            over = event.trial, event.attempt
            self._waiting = [one for one in self._waiting if (one.trial, one.attempt) != over]
            there = self._running.get(event.trial)
            if there is not None and there.attempt == event.attempt:  # it was on its way
                self._leave_machines(there)
        elif isinstance(event, Closing):
            for since in {started.t for started in self._waiting}:
                self._at(max(self.now, since + WITHDRAW_SECONDS), self._report_waits)

    def _report_waits(self) -> None:
        """Report the attempts that have waited long for their machines."""
        since = {(one.trial, one.attempt): one.t for one in self._waiting}

        def waits(trial: int, attempt: int) -> float:
            return round(self.now - since.get((trial, attempt), math.inf), 3)

        for trial, attempt, seconds in waiting_long(self.history, waits):
            if self.history.lease(trial, attempt) is not None:
                self.record(Waited(t=self.now, trial=trial, attempt=attempt, seconds=seconds))

    def _plan_at_limits(self) -> None:
        """See to it that the planner is asked when money or time is over, or trials have to change
        to on-demand machines, to a second.
        """
        if self.history.closed is not None:
            return
        moments = [limits.due(self.history, self.now)]
        if self.history.waiting and self.history.closing is None:
            change = market.change_due(self.history, self.now)
            moments.append(change if change is not None and change > self.now else None)
        if (due := min((t for t in moments if t is not None), default=None)) is None:
            self._looks_at = None
            return
        t = max(math.ceil(due), math.floor(self.now) + 1)
        if t != self._looks_at:
            self._looks_at = t
            self._at(t, partial(self._check_due, t))

    def _check_due(self, t: float) -> None:
        if t != self._looks_at:
            return  # it is due at another time by now
        self._looks_at = None
        if limits.overdue(self.history, self.now):
            message = "money or time was over before it had saved"
            for started in list(self._waiting):
                running = Running(trial=started.trial, attempt=started.attempt, machines=())
                self._running[started.trial] = running
            self._waiting = []
            for running in list(self._running.values()):
                step = self.history.trials[running.trial].step
                self._over(running, "lost", step, message, cause="preempted", by="driver")
        self._decide()

    def _at(self, t: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (t, next(self._ticket), act))

    # ---- machines

    def _watch(self, number: int) -> None:
        if (t := self._fleet.machines[number].availability.next_change(self.now)) is not None:
            self._at(t, lambda: self._turns(number))

    def _turns(self, number: int) -> None:
        """Switch a machine between available and not."""
        self._watch(number)
        machine = self._fleet.machines[number]
        if machine.availability.up(self.now):
            if machine.permanent:
                self._fleet.finish_boot(number)
            self._place()
            return
        self._fleet.stop(number)
        for running in list(self._running.values()):
            if number in running.machines and self._alive(running):
                step = self.history.trials[running.trial].step
                why = "the node was lost"
                self._over(running, "lost", step, why, cause="preempted", by="driver")
        self._pay()

    def _place(self) -> None:
        """Begin attempts that were started while there is room, in the order of their starts among
        those that want the same kind of machine; start machines for those that wait.
        """
        full: set[tuple[str, bool]] = set()
        waiting: list[Started] = []
        for started in self._waiting:
            kind = started.market, started.avoid_spot
            machines = None if kind in full else self._fleet.occupy(started)
            if machines is None:
                full.add(kind)
                waiting.append(started)
                continue
            trial = self.history.trials[started.trial]
            running = Running(trial=trial.number, attempt=started.attempt, machines=machines)
            self._running[started.trial] = running
            self._at(self.now + self.startup, partial(self._arrive, running, started, trial))
        self._waiting = waiting
        for number in self._fleet.wanted(waiting, self.now):
            self._fleet.start(number)
            use, boot = self._fleet.uses(number), self._fleet.machines[number].boot
            self._at(self.now + boot, partial(self._booted, number, use))
        self._pay()

    def _booted(self, number: int, use: int) -> None:
        """Let a machine take attempts, unless it was lost since it was started."""
        if self._fleet.uses(number) == use:
            self._fleet.finish_boot(number)
            self._idle_from_now(number)
            self._place()

    def _idle_from_now(self, number: int) -> None:
        """Stop a machine after its idle time, unless it is used before."""
        if self._fleet.is_idle(number):
            use, idle = self._fleet.uses(number), self._fleet.machines[number].idle
            self._at(self.now + idle, partial(self._idle, number, use))

    def _idle(self, number: int, use: int) -> None:
        if self._fleet.uses(number) == use:
            self._fleet.stop(number)
            self._pay()

    def _pay(self) -> None:
        """Report what the machines cost, if that has changed."""
        known, price = self.history.spending, self._fleet.price()
        changed = (known.per_hour, known.nodes) != (price.per_hour, price.nodes)
        if self._fleet.priced and changed and self.history.closed is None:
            self.record(Priced(t=self.now, per_hour=price.per_hour, nodes=price.nodes))

    # ---- attempts

    def _alive(self, running: Running) -> bool:
        return self._running.get(running.trial) is running

    def _arrive(self, running: Running, started: Started, trial: TrialRecord) -> None:
        """Begin an attempt, after it has loaded its checkpoint."""
        if self._alive(running):
            loads = self.restore if started.checkpoints else 0.0
            self._at(self.now + loads, partial(self._begin, running, started, trial, loads))

    def _begin(self, running: Running, started: Started, trial: TrialRecord, loaded: float) -> None:
        if not self._alive(running):
            return
        lease = running.at(self.now)
        own = {c.manifest: step for step, c in trial.checkpoints.items()}
        source = started.checkpoints[0] if started.clones else None
        restored = max((own.get(m, 0) for m in started.checkpoints), default=0)
        if source is not None:
            restored = trial.step
        running.step, running.called = restored, self.now
        if self.spec.stop.trial.watches:
            running.endings = Endings(self.spec.ending, trial.values[:restored])
        place, *others = self._fleet.places(running.machines)
        self.record(
            Began(
                **lease,
                node=place.node,
                node_id=place.node_id,
                market=place.market,
                price=place.price,
                share=place.share,
                others=others if place.node_id else [],
                restored=restored,
                ago=loaded,
            )
        )
        if self._alive(running) and source is not None:
            self.record(
                Saved(
                    **lease,
                    step=restored,
                    manifest=_manifest(running, restored),
                    size=1,
                    source=source,
                )
            )
        if self._alive(running):
            self._next_step(running)

    def _next_step(self, running: Running) -> None:
        """End the attempt, or begin its next step."""
        trial = self.history.trials[running.trial]
        attempt = self.history.lease(running.trial, running.attempt)
        if attempt is None:
            return
        if attempt.stop is not None:
            self._end(running, "stopped")
        elif attempt.leave is not None:
            self._leave(running, attempt, "paused", save=trial.clone is None)
        elif self._complete(running) or (running.endings is not None and running.endings.why):
            self._leave(running, attempt, "done", save=False)
        elif (closing := self.history.closing) is not None and closing.pauses:
            self._leave(running, attempt, "paused", save=self.checkpoints)
        elif closing is not None:
            self._end(running, "stopped")
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
            running.endings.add(metrics[self.spec.objective.name])
        row = Row(step, self.now, dict(metrics))
        self.record(Reported(**running.at(self.now), rows=[row]))
        if not self._alive(running):
            return
        attempt = self.history.lease(running.trial, running.attempt)
        if (
            attempt is not None
            and self.checkpoints
            and attempt.leave is None
            and self._due(running)
        ):
            if len(running.saves) == MOST_SAVES:
                running.then = partial(self._save_and_go_on, running, attempt)
                return
            self._save_and_go_on(running, attempt)
        else:
            self._next_step(running)

    def _save_and_go_on(self, running: Running, attempt: Attempt) -> None:
        self._save(running, attempt)
        if self._alive(running):
            self._next_step(running)

    def _due(self, running: Running) -> bool:
        """Return whether a checkpoint is due at the step that was just reported."""
        checkpoint = self.spec.checkpoint
        if self._complete(running):
            return True
        attempt = self.history.trials[running.trial].attempts[-1]
        every = checkpoint.every_seconds or attempt.every_seconds
        if every is not None:
            return self.now - running.called >= every
        return running.step % (checkpoint.every_steps or 1) == 0

    def _save(self, running: Running, attempt: Attempt) -> None:
        """Save a checkpoint of the attempt's step, if there is none."""
        steps = [attempt.saved, *(step for step, _ in running.saves)]
        if steps[-1] >= running.step:
            return
        running.called = self.now
        running.saves.append((running.step, self.now))
        if not self.save:
            self._saved(running)
        elif len(running.saves) == 1:
            self._at(self.now + self.save, partial(self._saved, running))

    def _saved(self, running: Running) -> None:
        """Report that the oldest checkpoint under way is durable."""
        if not self._alive(running):
            return
        step, called = running.saves.popleft()
        if running.saves:
            self._at(self.now + self.save, partial(self._saved, running))
        self.record(
            Saved(
                **running.at(self.now),
                step=step,
                manifest=_manifest(running, step),
                size=1,
                seconds=self.now - called if self.save else None,
            )
        )
        then, running.then = running.then, None
        if self._alive(running) and then is not None:
            then()

    def _leave(self, running: Running, attempt: Attempt, outcome: Outcome, *, save: bool) -> None:
        """End an attempt once its checkpoints are durable."""
        if save:
            self._save(running, attempt)
        if not self._alive(running):
            return
        if not running.saves:
            self._end(running, outcome)
        else:
            running.then = partial(self._leave, running, attempt, outcome, save=False)

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
        by: Literal["attempt", "driver"] = "attempt",
    ) -> None:
        """End an attempt and free its machines, except for those that went down."""
        self._leave_machines(running)
        self.record(
            Ended(
                **running.at(self.now),
                outcome=outcome,
                cause=cause,
                step=step,
                message=message,
                by=by,
                cost=self.history.trials[running.trial].attempts[-1].recorded_cost(self.now),
            )
        )

    def _leave_machines(self, running: Running) -> None:
        del self._running[running.trial]
        for number in self._fleet.give(running.machines):
            self._idle_from_now(number)


def _manifest(running: Running, step: int) -> str:
    return f"manifests/{running.trial}/{running.attempt}/{step:010}.json"


def simulate(
    spec: Spec,
    objective: Objective,
    *,
    workers: int = 1,
    availability: Sequence[Availability] = (),
    machines: Sequence[Machine] = (),
    slots: int | None = None,
    checkpoints: bool = True,
    startup: float = 0.0,
    save: float = 0.0,
    restore: float = 0.0,
    most_seconds: float | None = None,
) -> Simulation:
    """Run a whole experiment under a virtual clock; see Simulation for the arguments."""
    run = Simulation(
        spec=spec,
        objective=objective,
        workers=workers,
        availability=availability,
        machines=machines,
        slots=slots,
        checkpoints=checkpoints,
        startup=startup,
        save=save,
        restore=restore,
    )
    return run.open().run(most_seconds=most_seconds)
