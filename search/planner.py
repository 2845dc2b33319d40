"""The planner: what to do next, given everything that happened.

`next` returns one decision as an event, or None; the caller writes it to the log, applies it, and asks again. Nothing
else decides anything in regrow. A decision depends only on the events applied before it and on `now`, which becomes
the event's own time: so a log can be replayed and each of its decisions recomputed (`verify.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from regrow.search import samplers, schedulers
from regrow.search.errors import SearchCodeError, SpecError
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
    Proposed,
    Reported,
    Retired,
    Revived,
    Saved,
    Started,
)
from regrow.search.history import History, Trial
from regrow.search.lifecycle import IllegalMove, TrialState
from regrow.search.options import chosen
from regrow.search.results import Results
from regrow.search.samplers import Sampler
from regrow.search.schedulers import FINAL, Candidate, Scheduler, Verdict
from regrow.search.spec_parts import Stop

HOPELESS = 5
"""So many trials that fail in a sitting in which no trial reports anything end it: the fault is not in one configuration."""


def seed_for(seed: int, number: int, purpose: str = "proposal") -> int:
    """A 32-bit seed for trial `number`: a stable hash, the same on every machine and in every version of Python."""
    digest = hashlib.sha256(f"{purpose}:{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


class Planner:
    """The fold of a log, and the decisions that follow from it. Holds no state that the log does not determine."""

    def __init__(self, called: str | None = None) -> None:
        self.history = History(called)
        self._sampler: Sampler | None = None
        self._scheduler: Scheduler | None = None
        self._results = Results(self.history)
        self._unfolded: list[Callable[[Scheduler], None]] = []
        """What a user's own scheduler is to be told once it is needed."""
        self._exhausted = False
        self._due: list[int] = []
        """Trials whose attempt reached the step of a decision, in that order."""
        self._grown: set[int] = set()
        """Trials whose checkpoints may be more than retention keeps; the others' are not."""
        self._failed_now = 0
        self._reported_now = False

    def apply(self, event: AnyEvent) -> None:
        """Takes an event in. Raises IllegalMove, and changes nothing, for one that cannot follow."""
        cloned = self._clone_of(event)
        self.history.apply(event)
        if cloned is not None:
            self._grown.add(cloned)  # its checkpoints may not be needed any more
        match event:
            case Created():
                if not self.history.spec.own_scheduler:
                    _ = self._scheduling
                self._results.begin(event)
            case Opened():
                self._fold(lambda scheduler: scheduler.opened(event.slots, event.widest or event.slots))
                if event.by == "driver":
                    self._failed_now, self._reported_now = 0, False
            case Proposed():
                trial = self.history.trials[event.trial]
                self._results.add(trial)
                candidate = Candidate(trial=event.trial, config=event.config, state=event.state)
                self._fold(lambda scheduler: scheduler.added(candidate))
            case Started():
                self._fold(lambda scheduler: scheduler.started(event.trial))
            case Began() | Reported():
                self._reported_now = self._reported_now or isinstance(event, Reported)
                self._note_due(event.trial)
            case Decided():
                self._due.remove(event.trial)
                self._note_due(event.trial)
                self._tell_scheduler(event)
            case Retired():
                self._fold(lambda scheduler: scheduler.dropped(event.trial))
                self._finished(self.history.trials[event.trial])
            case Revived():
                trial = self.history.trials[event.trial]
                self._results.revived(trial)
                held = trial.held
                self._fold(lambda scheduler: scheduler.revived(event.trial, held=held))
                if trial.state.final:
                    self._finished(trial)
            case Saved() | Dropped():
                self._grown.add(event.trial)
            case Ended():
                if event.trial in self._due:
                    self._due.remove(event.trial)
                trial = self.history.trials[event.trial]
                if trial.held:
                    self._results.add(trial)
                if trial.state.final:
                    self._finished(trial)
                    self._failed_now += trial.state is TrialState.FAILED
            case _:
                pass

    def next(self, now: float) -> AnyEvent | None:
        """The next decision, as the event to be written at time `now` (seconds since the epoch); None for none."""
        history = self.history
        if history.opened is None or history.closed is not None:
            return None
        with self._theirs():
            return self._decision(now)

    def _decision(self, now: float) -> AnyEvent | None:
        history = self.history
        return (
            self._bury(now)
            or self._revive(now)
            or self._decide(now)
            or self._retain(now)
            or (self._retire(now) if history.closing is None else None)
            or self._close(now)
            or (self._start(now) if history.closing is None else None)
        )

    @contextmanager
    def _theirs(self) -> Iterator[None]:
        """Names the user's own sampler or scheduler as what raised."""
        try:
            yield
        except (SpecError, IllegalMove):
            raise
        except Exception as error:
            spec = self.history.spec
            own = [chosen(spec.search)] * spec.own_sampler + [chosen(spec.schedule)] * spec.own_scheduler
            if not own:
                raise
            told = f"{' or '.join(own)} raised {type(error).__name__}: {error}; mend it, then resume"
            raise SearchCodeError(told) from error

    # ---- the kinds of decision, most urgent first ------------------------------------------------------------------

    def _bury(self, now: float) -> AnyEvent | None:
        """Attempts whose driver is gone are lost; that is nobody's fault and costs no retry of the trial's own."""
        for number, attempt in self.history.orphans:
            step = self.history.trials[number].step
            return Ended(
                t=now, trial=number, attempt=attempt, outcome="lost", cause="preempted", step=step,
                message="the driver was lost", by="planner",
            )
        return None

    def _revive(self, now: float) -> AnyEvent | None:
        """Failed trials of which the user, who mended what was wrong, wants further attempts."""
        number = next(iter(self.history.revivable), None)
        return None if number is None else Revived(t=now, trial=number, why="the user wants it tried again")

    def _decide(self, now: float) -> AnyEvent | None:
        for number in self._due:
            trial = self.history.trials[number]
            attempt = trial.attempt
            if attempt is None or attempt.until is None:
                continue
            verdict = self._scheduling.decide(number, _until(trial, attempt.until))
            if verdict.until is not None and verdict.until <= attempt.until:
                problem = f"decides on trial {number} at step {attempt.until} to decide again at step {verdict.until}"
                raise SpecError("schedule", chosen(self.history.spec.schedule), problem, "`until` is a later step")
            return self._decided(now, trial, attempt.number, attempt.until, verdict)
        return None

    def _decided(self, now: float, trial: Trial, attempt: int, step: int, verdict: Verdict) -> Decided:
        """The verdict as an event; without a checkpoint to go on from there is no clone."""
        manifests: list[str] = []
        if self.history.spec.own_scheduler:
            self._check_verdict(verdict)
        if verdict.source is not None:
            source = self.history.trials[verdict.source]
            manifests = [c.manifest for s, c in sorted(source.checkpoints.items(), reverse=True) if s >= source.stale]
            if not manifests:
                why = f"{verdict.why}, which has no checkpoint"
                until = self._scheduling.first(trial.number, step)
                return Decided(t=now, trial=trial.number, attempt=attempt, step=step, verdict="continue", until=until, why=why)
        return Decided(
            t=now, trial=trial.number, attempt=attempt, step=step, verdict=verdict.action, until=verdict.until,
            why=verdict.why, source=verdict.source, manifests=manifests,
            config=None if verdict.config is None else dict(verdict.config),
        )

    def _check_verdict(self, verdict: Verdict) -> None:
        """Raises SpecError for one of a user's own scheduler that cannot be carried out."""
        name = chosen(self.history.spec.schedule)
        if verdict.source is not None and not 0 <= verdict.source < len(self.history.trials):
            raise SpecError("schedule", name, f"names trial {verdict.source} as a source, and there is none")
        if verdict.config is not None:
            self.history.spec.space.point(verdict.config, f"schedule: {name} decided")
            _check_plain(verdict.config, "schedule", name)

    def _retain(self, now: float) -> AnyEvent | None:
        for number in sorted(self._grown):
            trial = self.history.trials[number]
            kept, pinned = self._kept(trial), self.history.pinned
            old = [*trial.replaced, *(c.manifest for step, c in trial.checkpoints.items() if step not in kept)]
            if surplus := [manifest for manifest in old if manifest not in pinned]:
                return Dropped(t=now, trial=number, manifests=surplus)
            self._grown.discard(number)
        return None

    def _retire(self, now: float) -> AnyEvent | None:
        """Paused trials that will never be promoted."""
        history = self.history
        if not history.held:
            return None
        complete = self._complete
        if (found := self._scheduling.surplus(complete=complete)) is not None and found[0] in history.held:
            return Retired(t=now, trial=found[0], why=found[1])
        idle = not any(history.by_state[s] for s in (TrialState.RUNNING, TrialState.PENDING, TrialState.LOST))
        all_held = len(history.held) == len(history.by_state[TrialState.PAUSED])
        if complete and idle and all_held and self._scheduling.promote(complete=True) is None:
            return Retired(t=now, trial=min(history.held), why="nothing is left that could promote it")
        return None

    def _close(self, now: float) -> AnyEvent | None:
        history = self.history
        if history.closing is not None:
            return Closed(t=now, status=history.closing.status) if not history.running else None
        if (why := self._stop(history.spec.stop, now)) is not None:
            return Closing(t=now, status="finished", why=why, by="planner")
        if self._failed_now >= min(HOPELESS, history.total) and not self._reported_now:
            why = f"{self._failed_now} trials failed and none reported anything"
            return Closing(t=now, status="failed", why=why, by="planner")
        if self._complete and all(not history.by_state[s] for s in TrialState if not s.final):
            good = history.by_state[TrialState.DONE] or history.by_state[TrialState.STOPPED]
            return Closed(t=now, status="finished" if good else "failed")
        return None

    def _stop(self, stop: Stop, now: float) -> str | None:
        """Why a condition holds, None if none does."""
        history = self.history
        best = history.trials[history.best].best if history.best is not None else None
        if stop.target is not None and best is not None:
            sign = -1.0 if history.objective.mode == "max" else 1.0
            if sign * best[0] <= sign * stop.target:
                return f"the target {stop.target:g} was reached"
        if stop.hours is not None and history.elapsed(now) >= stop.hours * 3600:
            return f"{stop.hours:g} hours are over"
        if stop.plateau is not None and stop.plateau.trials is not None and history.since_best >= stop.plateau.trials:
            return f"{history.since_best} trials ended without a better value"
        if stop.trials is not None and history.ended >= stop.trials:
            return f"{history.ended} trials have ended"
        if stop.all:
            each = [self._stop(inner, now) for inner in stop.all]
            if all(why is not None for why in each):
                return " and ".join(str(why) for why in each)
        return None

    def _start(self, now: float) -> AnyEvent | None:
        history = self.history
        if history.occupied >= history.slots:
            return None
        number = self._next_waiting()
        if number is None and (history.held or history.leaving):
            number = self._scheduling.promote(complete=self._complete)
            if number in history.leaving:
                return None  # its slot is about to be free; nobody else takes its turn
            if number is not None and number not in history.held:
                problem = f"promotes trial {number}, which is not paused"
                raise SpecError("schedule", chosen(history.spec.schedule), problem, "promote what it was told to have paused")
        if number is not None:
            return self._started(now, history.trials[number])
        number = len(history.trials)
        if self._complete:
            return None
        return self._propose(now, number)

    def _next_waiting(self) -> int | None:
        """The first of the trials that need nobody's leave to go on."""
        history = self.history
        numbers = [min(history.by_state[s]) for s in (TrialState.PENDING, TrialState.LOST) if history.by_state[s]]
        if len(history.by_state[TrialState.PAUSED]) > len(history.held):
            numbers.append(min(history.by_state[TrialState.PAUSED] - history.held))
        return min(numbers, default=None)

    def _started(self, now: float, trial: Trial) -> Started:
        history = self.history
        others = trial.clone.manifests if trial.clone is not None else []
        own = [c.manifest for step, c in sorted(trial.checkpoints.items(), reverse=True) if step >= trial.stale]
        return Started(
            t=now, trial=trial.number, attempt=len(trial.attempts) + 1,
            until=self._scheduling.first(trial.number, trial.decided), checkpoints=[*others, *own],
            avoid_spot=trial.evictions >= history.spec.retries.spot and trial.evictions > 0,
            clones=len(others),
            width=max(1, min(self._scheduling.width(trial.number), history.slots - history.occupied, history.widest)),
        )

    def _propose(self, now: float, number: int) -> AnyEvent | None:
        """A new trial: a repeat of the one before, a point of the user's, or what the sampler proposes."""
        spec = self.history.spec
        group, repeat = divmod(number, spec.repeats)
        if repeat:
            first = self.history.trials[number - repeat]
            return Proposed(t=now, trial=number, config=dict(first.proposed), state=dict(first.proposal_state))
        points = [point for point in spec.points if point.metrics is None]
        if group < len(points):
            return Proposed(t=now, trial=number, config=spec.space.point(points[group].config, f"points.{group}"))
        proposal = self._sampling.ask(group, seed_for(spec.seed, group))
        if proposal is not None and spec.own_sampler:
            spec.space.point(proposal.config, f"search: {chosen(spec.search)} proposed")
            _check_plain((proposal.config, proposal.state), "search", chosen(spec.search))
        if proposal is None:
            self._exhausted = True
            return self._retire(now) or self._close(now) or self._start(now)
        return Proposed(t=now, trial=number, config=dict(proposal.config), state=dict(proposal.state))

    @property
    def _complete(self) -> bool:
        """Whether every trial that there will be has been proposed."""
        return self._exhausted or len(self.history.trials) >= self.history.total

    def _note_due(self, number: int) -> None:
        trial = self.history.trials[number]
        attempt = trial.attempt
        if attempt and attempt.until is not None and trial.step >= attempt.until and number not in self._due:
            self._due.append(number)

    # ---- what they stand on ----------------------------------------------------------------------------------------

    @property
    def _scheduling(self) -> Scheduler:
        """A user's own is built at the first decision, so that reading a log imports nothing of theirs."""
        if self._scheduler is None:
            self._scheduler = schedulers.make(self.history.spec.schedule, self.history.spec.setting)
            for fold in self._unfolded:
                fold(self._scheduler)
            self._unfolded.clear()
        return self._scheduler

    def _fold(self, what: Callable[[Scheduler], None]) -> None:
        if self._scheduler is None:
            self._unfolded.append(what)
        else:
            with self._theirs():
                what(self._scheduler)

    @property
    def _sampling(self) -> Sampler:
        """Built at the first proposal, so that reading a log needs no sampler's library."""
        if self._sampler is None:
            self._sampler = samplers.make(self.history.spec.search, self.history.spec.setting)
        for result in self._results.untold:
            self._sampler.tell(result)
        self._results.untold.clear()
        return self._sampler

    def _kept(self, trial: Trial) -> set[int]:
        """Steps of the checkpoints that retention keeps: the last ones, and the best by the objective at their step, those
        that meet the constraints first.
        """
        policy, spec = self.history.spec.checkpoint, self.history.spec
        steps = sorted(step for step in trial.checkpoints if step >= trial.stale)
        sign = -1.0 if spec.objective.mode == "max" else 1.0
        broken = {s for s in trial.checkpoints if not trial.curve.feasible(s)}
        by_value = sorted(trial.checkpoints, key=lambda s: (s in broken, sign * trial.values[s - 1], s))
        return set(steps[-policy.keep_last :]) | set(by_value[: policy.keep_best])

    def _clone_of(self, event: AnyEvent) -> int | None:
        """The trial whose checkpoints this event may release, as another one waited for them."""
        if isinstance(event, Saved | Began | Ended | Retired | Decided) and 0 <= event.trial < len(self.history.trials):
            clone = self.history.trials[event.trial].clone
            return clone.source if clone is not None else None
        return None

    def _tell_scheduler(self, event: Decided) -> None:
        values = _until(self.history.trials[event.trial], event.step)
        if self._scheduler is None:
            values = values[:]  # as they are now: it is told later
        verdict = Verdict(
            action=event.verdict, until=event.until, why=event.why, source=event.source, config=event.config
        )
        self._fold(lambda scheduler: scheduler.tell(event.trial, values, verdict))

    def _finished(self, trial: Trial) -> None:
        self._results.add(trial)
        how = FINAL[trial.state]
        self._fold(lambda scheduler: scheduler.ended(trial.number, how))


def _check_plain(value: object, key: str, name: str) -> None:
    """Raises SpecError if what a user's own class returned cannot be written to the log."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecError(key, name, f"returned what is not plain JSON: {error}", "return Python's own numbers and text") from None


def _until(trial: Trial, step: int) -> Sequence[float]:
    """The objective up to a step, without copying it where that is the last one."""
    return trial.values if len(trial.values) == step else trial.values[:step]
