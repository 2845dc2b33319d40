"""The history of an experiment: the fold of its events.

`History.apply` is the only way in; an event that the lifecycle forbids raises and changes nothing. What follows from
the history (starting, stopping, proposing) is decided in `planner.py`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from regrow.search.constraints import Constraint
from regrow.search.curve import Curve, Scale
from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
    Created,
    Decided,
    Dropped,
    Ended,
    Opened,
    Outcome,
    Proposed,
    Reported,
    Retired,
    Revived,
    Saved,
    Started,
)
from regrow.search.lifecycle import IllegalMove, Move, TrialState, move
from regrow.search.spec import Spec
from regrow.search.spec_parts import Metric

_MOVES: dict[Outcome, Move] = {"done": Move.DONE, "paused": Move.PAUSE, "stopped": Move.STOP}


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One run of a trial on one node. `outcome` is None while it holds the lease; `to_step` is the last step it reported."""

    number: int
    t_started: float
    t_began: float | None = None
    t_ended: float | None = None
    node: str | None = None
    node_id: str = ""
    task_run: str | None = None
    from_step: int = 0
    to_step: int = 0
    until: int | None = None
    avoid_spot: bool = False
    outcome: Outcome | None = None
    cause: str = ""
    message: str = ""
    trace: str = ""
    stop: str | None = None
    """Why the scheduler decided to stop it, None where it did not."""
    leave: str | None = None
    """Why the scheduler decided that the trial is to pause or to restart, None where it did not."""
    pauses: bool = False
    """Whether that was to pause."""
    width: int = 1
    """Slots' worth of resources that it has."""
    checkpoints: list[str] = field(default_factory=list)
    """Manifests that it may restore, newest first."""
    clones: int = 0
    """How many of these, the first ones, are another trial's."""
    superseded: int = 0
    """Steps that it did and that a later attempt had to do again."""
    wasted_s: float = 0.0
    """Seconds on its node that led to nothing: from its last step that still counts to its end."""
    saved: int = 0
    """The step of its last checkpoint, also if that was dropped since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a decision changed of a trial: from the step after `step` on it has `config`, and the weights that trial `source`
    had after `source_step` (None: its own, also where the source's could not be read).
    """

    step: int
    config: dict[str, Any]
    source: int | None = None
    source_step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """Another trial's checkpoints from which a trial is to go on, as its own of `step`; `manifests` newest first.

    `attempt` is the one in which that was decided; what it still saves are the weights that are to be replaced.
    """

    source: int
    step: int
    attempt: int
    manifests: list[str]


@dataclass(slots=True, kw_only=True)
class Trial:
    """One configuration and what became of it."""

    number: int
    config: dict[str, Any]
    """The flat configuration that it has now."""
    proposed: dict[str, Any]
    """The one that it was proposed with."""
    proposal_state: dict[str, Any]
    curve: Curve
    """What it reported, superseded steps gone."""
    state: TrialState = TrialState.PENDING
    attempts: list[Attempt] = field(default_factory=list)
    checkpoints: dict[int, Saved] = field(default_factory=dict)
    """Those that are still kept, by step, oldest first."""
    ended_by: Counter[str] = field(default_factory=Counter)
    """Attempts that ended, by cause."""
    evictions: int = 0
    """Attempts whose node went away under them; the loss of a driver is none."""
    decided: int = 0
    """The last step at which a decision was taken."""
    held: bool = False
    """Paused, or about to be, by the scheduler, and to go on only if that promotes it."""
    changes: list[Change] = field(default_factory=list)
    clone: Clone | None = None
    """Set from the decision to clone until the trial has a checkpoint of its own from it."""
    replaced: list[str] = field(default_factory=list)
    """Manifests whose step has another checkpoint since, and that are not dropped yet."""
    stale: int = 0
    """Checkpoints before this step hold weights that a clone replaced."""
    revived: int = 0
    """How often it was tried again after it had failed."""

    @property
    def step(self) -> int:
        """The last step of the curve, 0 before the first."""
        return len(self.curve)

    @property
    def values(self) -> Sequence[float]:
        """The objective by step, that of step s at s - 1."""
        return self.curve.values

    @property
    def best(self) -> tuple[float, int] | None:
        """Best value of the objective at a step that meets the constraints, and its (first) step."""
        return self.curve.best

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that holds the lease."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.outcome is None else None

    def checkpoint_at(self, step: int) -> Saved | None:
        """The checkpoint of `step` if it is kept, else the newest one, None for none."""
        if step in self.checkpoints:
            return self.checkpoints[step]
        return self.checkpoints[max(self.checkpoints)] if self.checkpoints else None

    @property
    def failure(self) -> Attempt | None:
        """The last attempt, if it failed or was lost."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.outcome in ("failed", "lost") else None


def specification(created: Created, opened: Opened | None = None) -> Spec:
    """The specification of an experiment as a sitting has it; None: as it was created. Raises SpecError."""
    return Spec.recorded({**created.spec, **(opened.settings if opened is not None else {})}, where="log")


class History:
    """All that is known of an experiment. Reading is free; only `apply` changes it."""

    def __init__(self, called: str | None = None) -> None:
        self.called = called
        """The experiment's name, if it has another one than its log says: somebody renamed its folder."""
        self.id = ""
        self.trials: list[Trial] = []
        self.by_state: dict[TrialState, set[int]] = {state: set() for state in TrialState}
        self.total = 0
        self.slots = 0
        self.widest = 0
        """Slots that one attempt may have at most."""
        self.created: Created | None = None
        self.opened: Opened | None = None
        self.openings: list[Opened] = []
        """Those of drivers: one a sitting."""
        self.environment: dict[str, Any] = {}
        """What the driver of the last sitting found of its code and its machine; empty where none looked."""
        self.closing: Closing | None = None
        self.closed: Closed | None = None
        self.borrowed: dict[str, int] = {}
        """Manifest of each kept clone, and the trial whose attempts wrote its files."""
        self.held: set[int] = set()
        """Numbers of the trials that the scheduler paused, and that have left."""
        self.leaving: set[int] = set()
        """Numbers of those that it paused, and whose attempt has not ended yet."""
        self.occupied = 0
        """Slots that running attempts have, by their widths."""
        self._ends: dict[int, float | None] = {}
        """Of the trials that ended, in that order, the best value of all by then, since the plateau is counted as it is now."""
        self._plateau: tuple[float | None, int] | None = None, 0
        """The value from which the plateau is counted, and `since_best`; None: not known, for one of them was revived."""
        self.revivable: dict[int, None] = {}
        """Failed trials that the user wants to be tried again, by number; those first that are still to be buried."""
        self._cloning: set[int] = set()
        self.orphans: list[tuple[int, int]] = []
        """(trial, attempt) left open by a driver that is gone."""
        self.best: int | None = None
        """Number of the trial with the best value of the objective at a step that meets all constraints."""
        self.sittings = 0
        self.lost_steps = 0
        self.t_created = 0.0
        self._t_opened = 0.0
        self._t_last = 0.0
        self._t_cut = 0.0
        """When the sitting before this one was last heard of."""
        self._elapsed = 0.0
        self._spec: Spec | None = None
        self._objective: Metric | None = None
        self.limits: tuple[Constraint, ...] = ()
        """The specification's constraints, read once."""
        self._scale = Scale(objective="", most=False)

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def spec(self) -> Spec:
        """The specification, as the last sitting has it. Raises LookupError before the log's first event."""
        if self._spec is None:
            raise LookupError("the log is empty: the experiment was never created")
        return self._spec

    @property
    def name_in_log(self) -> str:
        """The experiment's name as its log has it."""
        return specification(self.created, self.opened).name if self.created is not None else ""

    @property
    def objective(self) -> Metric:
        """The specification's objective; kept here because the specification makes it anew each time (0.3 of a fold's time)."""
        if self._objective is None:
            raise LookupError("the log is empty: the experiment was never created")
        return self._objective

    def elapsed(self, now: float | None = None) -> float:
        """Seconds that the experiment ran, over all its sittings; `now` (seconds since the epoch) while one is under way."""
        last = self._t_last if now is None or self.closed else max(now, self._t_last)
        return self._elapsed + (last - self._t_opened)

    @property
    def t_last(self) -> float:
        """When it was last heard of, seconds since the epoch; 0 for an empty log."""
        return self._t_last

    @property
    def pinned(self) -> set[str]:
        """Checkpoints from which another trial is about to go on."""
        return {m for number in self._cloning if (clone := self.trials[number].clone) for m in clone.manifests}

    @property
    def front(self) -> list[int]:
        """The Pareto front: trials that no other one is better than in one metric and as good in all, by number.

        Compared by the metrics of their last steps, where these meet all constraints.
        """
        metrics = self.spec.metrics
        found: list[tuple[int, list[float]]] = []
        for trial in self.trials:
            row = trial.curve.metrics(trial.step)
            values = [v if m.mode == "min" else -v for m in metrics if (v := row.get(m.name)) is not None]
            if len(values) == len(metrics) and all(c.violation(row) <= 0 for c in self.limits):
                found.append((trial.number, values))
        return [
            number for number, ours in found
            if not any(theirs != ours and all(a <= b for a, b in zip(theirs, ours, strict=True)) for _, theirs in found)
        ]

    def path(self, number: int, until: int) -> list[dict[str, Any]]:
        """With which configuration each of the steps was done that led to a trial's weights at step `until`, in order.

        Through clones it leads into other trials, so there may be more or fewer of them than `until`.
        """
        own: list[dict[str, Any]] = []
        for change in reversed([c for c in self.trials[number].changes if c.step < until]):
            own = [change.config] * (until - change.step) + own
            until = change.step
            if change.source is not None and change.source_step is not None:
                return self.path(change.source, change.source_step) + own
        return [self.trials[number].proposed] * until + own

    @property
    def counts(self) -> dict[TrialState, int]:
        """Number of trials in each state."""
        return {state: len(numbers) for state, numbers in self.by_state.items()}

    @property
    def since_best(self) -> int:
        """Trials that ended since the best value last improved, as `stop: {plateau: ...}` counts it."""
        if self._plateau is None:
            self._plateau = None, 0
            for best in self._ends.values():
                self._plateau = self._counted(self._plateau, best)
        return self._plateau[1]

    @property
    def ended(self) -> int:
        """Number of the trials that ended for good."""
        return sum(len(self.by_state[state]) for state in TrialState if state.final)

    @property
    def running(self) -> set[int]:
        """Numbers of the trials whose attempt holds a lease."""
        return self.by_state[TrialState.RUNNING]

    def lease(self, trial: int, attempt: int) -> Attempt | None:
        """The attempt, if it holds its trial's lease."""
        if not 0 <= trial < len(self.trials):
            return None
        current = self.trials[trial].attempt
        return current if current is not None and current.number == attempt else None

    # ---- folding -------------------------------------------------------------------------------------------------

    def apply(self, event: AnyEvent) -> None:
        """Takes an event in. Raises IllegalMove, and changes nothing, for one that cannot follow."""
        handler = _HANDLERS[type(event)]
        handler(self, event)
        self._t_last = max(self._t_last, event.t)

    def _created(self, event: Created) -> None:
        if self._spec is not None:
            raise IllegalMove(-1, None, "be created twice")
        self.created = event
        self._spec = self._named(specification(event))
        self._objective = self._spec.objective
        self.limits = self._spec.limits
        watched = dict.fromkeys([*(m.name for m in self._spec.metrics), *(limit.metric for limit in self.limits)])
        self._scale = Scale(
            objective=self._objective.name, most=self._objective.mode == "max", limits=self.limits,
            others=tuple(name for name in watched if name != self._objective.name),
        )
        self.id, self.total, self.t_created = event.id, self._spec.total, event.t

    def _opened(self, event: Opened) -> None:
        self.slots, self.total = event.slots, event.trials
        self.widest = event.widest or event.slots
        if event.by == "driver":
            # The clock of another machine may be behind: a sitting never starts before the one before it ended.
            self._elapsed += self._t_last - self._t_opened if self.opened else 0.0
            self._t_cut = self._t_last
            self._t_opened = self._t_last = max(event.t, self._t_last)
            self.sittings += 1
            self.openings.append(event)
            self.closing = self.closed = None
            self.orphans = [(n, a.number) for n in sorted(self.running) if (a := self.trials[n].attempt)]
            if event.retry_failed:
                self.revivable = dict.fromkeys(sorted(self.running | self.by_state[TrialState.FAILED]))
        if event.settings != (self.opened.settings if self.opened is not None else {}):
            self._settle(event)
        self.opened = event
        self.environment = event.environment or self.environment

    def _named(self, spec: Spec) -> Spec:
        return spec if self.called in (None, spec.name) else spec.model_copy(update={"name": self.called})

    def _settle(self, event: Opened) -> None:
        """The specification is from here on as this sitting has it."""
        if self.created is None or self._spec is None:
            return
        tolerance = self._spec.stop.tolerance
        self._spec = self._named(specification(self.created, event))
        if self._spec.stop.tolerance != tolerance:  # what counts as better is another thing now
            self._ends, self._plateau = {}, (None, 0)

    def _proposed(self, event: Proposed) -> None:
        if event.trial != len(self.trials):
            raise IllegalMove(event.trial, None, "be proposed out of turn")
        self.trials.append(
            Trial(
                number=event.trial, config=event.config, proposed=event.config, proposal_state=event.state,
                curve=Curve(self._scale),
            )
        )
        self.by_state[TrialState.PENDING].add(event.trial)

    def _started(self, event: Started) -> None:
        trial = self._trial(event.trial, Move.START)
        if event.attempt != len(trial.attempts) + 1:
            raise IllegalMove(event.trial, trial.state, f"start attempt {event.attempt}")
        self._move(trial, Move.START)
        self._hold(trial, held=False)
        self.occupied += event.width
        trial.attempts.append(
            Attempt(
                number=event.attempt, t_started=event.t, until=event.until, avoid_spot=event.avoid_spot, width=event.width,
                checkpoints=event.checkpoints, clones=event.clones,
            )
        )

    def _began(self, event: Began) -> None:
        trial, attempt = self._holder(event.trial, event.attempt, Move.REPORT)
        if attempt.t_began is not None:
            raise IllegalMove(event.trial, trial.state, f"begin attempt {event.attempt} twice")
        if not 0 <= event.restored <= trial.step:
            raise IllegalMove(event.trial, trial.state, f"go on after step {event.restored}, which it never reached")
        attempt.t_began = max(attempt.t_started, event.t - event.ago)  # a clock that was set: not before it was started
        attempt.node, attempt.task_run = sys.intern(event.node), event.task_run
        attempt.node_id = sys.intern(event.node_id)
        attempt.from_step = attempt.to_step = event.restored
        before = trial.best
        for number, steps in trial.curve.rewind(event.restored):
            trial.attempts[number - 1].superseded += steps
            self.lost_steps += steps
        self._account(trial)
        for step in [s for s in trial.checkpoints if s > event.restored]:
            self._forget(trial, step)
        if trial.clone is not None and event.restored < trial.clone.step:
            self._cloned(trial)  # none of the other trial's checkpoints could be read
        if trial.best != before:
            self._find_best()

    def _reported(self, event: Reported) -> None:
        trial, attempt = self._worker(event.trial, event.attempt)
        last = trial.step
        if [row.step for row in event.rows] != list(range(last + 1, last + 1 + len(event.rows))):
            raise IllegalMove(event.trial, trial.state, f"report steps that do not follow {last}")
        name = self.objective.name
        values = [value for row in event.rows if (value := row.metrics.get(name)) is not None]
        if len(values) < len(event.rows):
            raise IllegalMove(event.trial, trial.state, f"report a step without {name}")
        if trial.curve.extend(attempt.number, event.rows, values):
            self._improve(trial)
        attempt.to_step = last + len(values)

    def _decided(self, event: Decided) -> None:
        trial, attempt = self._worker(event.trial, event.attempt)
        if event.step != attempt.until or event.step > trial.step:
            raise IllegalMove(event.trial, trial.state, f"be decided on at step {event.step}, where no decision is due")
        trial.decided, attempt.until = event.step, event.until
        attempt.stop = event.why if event.verdict == "stop" else None
        attempt.leave = event.why if event.verdict in ("pause", "restart") else None
        attempt.pauses = event.verdict == "pause"
        self._hold(trial, held=event.verdict == "pause")
        if event.config is not None or event.source is not None:
            trial.config = trial.config if event.config is None else event.config
            trial.changes.append(Change(step=event.step, config=trial.config, source=event.source))
        if event.source is not None:
            self._cloning.add(trial.number)
            trial.clone = Clone(source=event.source, step=event.step, attempt=event.attempt, manifests=list(event.manifests))

    def _retired(self, event: Retired) -> None:
        trial = self._trial(event.trial, "be given up")
        if event.trial not in self.held:
            raise IllegalMove(event.trial, trial.state, "be given up: the scheduler did not pause it")
        self._move(trial, Move.STOP)
        trial.attempts[-1].message = event.why  # the last word on why it does not go on
        self._finish(trial)

    def _revived(self, event: Revived) -> None:
        trial = self._trial(event.trial, Move.RETRY)
        move(trial.number, trial.state, Move.RETRY)
        stays = trial.attempts[-1].stop is not None
        self._move(trial, Move.STOP if stays else Move.PAUSE if trial.attempts[-1].pauses else Move.RETRY)
        self.revivable.pop(trial.number, None)
        trial.revived += 1
        trial.ended_by.clear()
        self._ends.pop(trial.number, None)
        self._plateau = None
        if trial.state is TrialState.PAUSED:
            trial.held = True
            self.held.add(trial.number)
        if stays:
            self._finish(trial)

    def _saved(self, event: Saved) -> None:
        trial, attempt = self._worker(event.trial, event.attempt)
        if not attempt.saved < event.step <= trial.step:
            raise IllegalMove(event.trial, trial.state, f"save a checkpoint at step {event.step}")
        if event.step in trial.checkpoints:
            trial.replaced.append(trial.checkpoints[event.step].manifest)
        trial.checkpoints[event.step] = event
        attempt.saved = event.step
        if event.source is not None:
            owner = trial.clone.source if trial.clone is not None else event.trial
            self._note_clone(trial, event.source)
            self.borrowed[event.manifest] = self.borrowed.get(event.source, owner)
        if trial.clone is not None and event.attempt > trial.clone.attempt:
            # Where no clone could be read it went on from its own weights: then these are not stale.
            trial.stale = trial.stale if event.source is None else trial.clone.step
            self._cloned(trial)

    def _dropped(self, event: Dropped) -> None:
        trial = self._trial(event.trial, "drop a checkpoint")
        if missing := set(event.manifests) - {c.manifest for c in trial.checkpoints.values()} - set(trial.replaced):
            raise IllegalMove(event.trial, trial.state, f"drop {min(missing)}, which it does not have")
        trial.replaced = [manifest for manifest in trial.replaced if manifest not in event.manifests]
        for step in [s for s, c in trial.checkpoints.items() if c.manifest in event.manifests]:
            self._forget(trial, step)

    def _ended(self, event: Ended) -> None:
        what = _MOVES.get(event.outcome, Move.FAIL)
        trial, attempt = self._holder(event.trial, event.attempt, what)
        if what is Move.FAIL and not event.cause:
            raise IllegalMove(event.trial, trial.state, f"have {event.outcome} without a cause")
        if event.outcome == "preempted" and event.cause != "preempted":
            raise IllegalMove(event.trial, trial.state, f"be preempted by {event.cause or 'nothing'!r}")
        if what is Move.FAIL and self.spec.retries.allows(event.cause, trial.ended_by[event.cause] + 1):
            what = Move.LOSE
        if attempt.stop is not None and what in (Move.PAUSE, Move.LOSE):
            # The decision to stop it stands, also where the attempt was gone before it heard of it.
            what = Move.STOP
        elif attempt.leave is not None and trial.held and what is Move.LOSE:
            what = Move.PAUSE  # so does the one that it pauses
        self._move(trial, what)
        self.occupied -= attempt.width
        if what is Move.PAUSE and attempt.leave is None:
            self._hold(trial, held=False)
        if trial.held:
            self.leaving.discard(trial.number)
            self.held.add(trial.number)
        trial.ended_by[event.cause] += 1
        trial.evictions += event.cause == "preempted" and event.by != "planner"
        attempt.outcome, attempt.cause, attempt.t_ended = event.outcome, event.cause, event.t
        if event.by == "planner":  # it ended with its driver, not when the next one came to bury it
            attempt.t_ended = max(self._t_cut, attempt.t_began or attempt.t_started)
        # The same for a thousand trials where one bug fails them all: kept once.
        attempt.message, attempt.trace = sys.intern(event.message), sys.intern(event.trace)
        if event.cause:
            self._account(trial)
        if trial.state.final:
            self._finish(trial)
        if trial.state is not TrialState.FAILED:
            self.revivable.pop(trial.number, None)
        if (event.trial, event.attempt) in self.orphans:
            self.orphans.remove((event.trial, event.attempt))

    def _hold(self, trial: Trial, *, held: bool) -> None:
        trial.held = held
        self.held.discard(trial.number)
        (self.leaving.add if held else self.leaving.discard)(trial.number)

    def _note_clone(self, trial: Trial, manifest: str) -> None:
        if trial.clone is not None and trial.changes:
            there = self.trials[trial.clone.source].checkpoints
            step = next((step for step, saved in there.items() if saved.manifest == manifest), None)
            trial.changes[-1] = replace(trial.changes[-1], source_step=step)

    def _cloned(self, trial: Trial) -> None:
        """It waits for no other trial's checkpoint any more."""
        trial.clone = None
        self._cloning.discard(trial.number)

    def _forget(self, trial: Trial, step: int) -> None:
        self.borrowed.pop(trial.checkpoints.pop(step).manifest, None)

    def _finish(self, trial: Trial) -> None:
        """It ended for good."""
        self._hold(trial, held=False)
        self._cloned(trial)
        best = self.trials[self.best].best if self.best is not None else None
        self._ends[trial.number] = None if best is None else best[0]
        if self._plateau is not None:
            self._plateau = self._counted(self._plateau, self._ends[trial.number])

    def _counted(self, plateau: tuple[float | None, int], best: float | None) -> tuple[float | None, int]:
        """The plateau after one more trial ended; `best`: the best value of all then."""
        start, since = plateau
        if best is not None and (start is None or self._better(best, self._by(start, self.spec.stop.tolerance))):
            return best, 0
        return start, since + 1

    def _by(self, value: float, tolerance: float) -> float:
        return value + tolerance if self.objective.mode == "max" else value - tolerance

    def _account(self, trial: Trial) -> None:
        """What the attempts that failed or were lost did for nothing, seen from what is left of the trial's curve."""
        last_row = {number: trial.curve.times[last - 1] for number, last in trial.curve.runs}
        for attempt in trial.attempts:
            if attempt.cause and attempt.t_began is not None and attempt.t_ended is not None:
                # Rows have the clock of their node: at most the whole attempt, at least nothing.
                useful_until = max(last_row.get(attempt.number, attempt.t_began), attempt.t_began)
                attempt.wasted_s = max(0.0, attempt.t_ended - useful_until)

    def _closing(self, event: Closing) -> None:
        self.closing = event

    def _closed(self, event: Closed) -> None:
        if self.running:
            raise IllegalMove(min(self.running), TrialState.RUNNING, "be left behind by a closed experiment")
        self.closed = event

    def _trial(self, number: int, what: str) -> Trial:
        if not 0 <= number < len(self.trials):
            raise IllegalMove(number, None, what)
        return self.trials[number]

    def _holder(self, number: int, attempt: int, what: Move) -> tuple[Trial, Attempt]:
        trial = self._trial(number, what)
        current = self.lease(number, attempt)
        if current is None:
            raise IllegalMove(number, trial.state, f"{what} by attempt {attempt}, which does not hold the lease")
        move(number, trial.state, what)
        return trial, current

    def _worker(self, number: int, attempt: int) -> tuple[Trial, Attempt]:
        trial, current = self._holder(number, attempt, Move.REPORT)
        if current.t_began is None:
            raise IllegalMove(number, trial.state, f"report by attempt {attempt}, which has not begun")
        return trial, current

    def _move(self, trial: Trial, what: Move) -> None:
        after = move(trial.number, trial.state, what)
        self.by_state[trial.state].discard(trial.number)
        trial.state = after
        self.by_state[after].add(trial.number)

    def _improve(self, trial: Trial) -> None:
        leader = self.trials[self.best].best if self.best is not None else None
        if (best := trial.best) is not None and (leader is None or self._better(best[0], leader[0])):
            self.best = trial.number

    def _better(self, a: float, b: float) -> bool:
        return self._scale.better(a, b)

    def _find_best(self) -> None:
        """Anew, after the best value was superseded; ties go to the lower number, as in the order of reports of one slot."""
        self.best = None
        leader: float | None = None
        for trial in self.trials:
            if trial.best is not None and (leader is None or self._better(trial.best[0], leader)):
                self.best, leader = trial.number, trial.best[0]


_HANDLERS: dict[type, Any] = {
    Created: History._created,
    Opened: History._opened,
    Proposed: History._proposed,
    Started: History._started,
    Began: History._began,
    Reported: History._reported,
    Decided: History._decided,
    Retired: History._retired,
    Revived: History._revived,
    Saved: History._saved,
    Dropped: History._dropped,
    Ended: History._ended,
    Closing: History._closing,
    Closed: History._closed,
}
