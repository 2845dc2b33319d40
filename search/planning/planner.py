"""The planner: what to do next, given everything that happened.

`next` returns one decision as an event, or None; the caller writes it to the log, applies it, and asks again. Nothing
else decides anything in regrow. A decision depends only on the events applied before it and on `now`, which becomes
the event's own time: so a log can be replayed and each of its decisions recomputed (`verify.py`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from regrow.search import samplers
from regrow.search.chance import seed_for
from regrow.search.errors import SpecError
from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
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
from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import AttemptState, TrialState
from regrow.search.options import chosen
from regrow.search.planning.learning import by_experiment, first_configurations
from regrow.search.planning.market import following, why_withdrawn
from regrow.search.planning.results import Results
from regrow.search.planning.retention import surplus
from regrow.search.planning.scheduling import Scheduling, theirs
from regrow.search.planning.stopping import why_enough
from regrow.search.planning.suggesting import FIXED, QUEUED, next_queued, suggestion
from regrow.search.planning.widths import has_room, may_narrow, why_narrower, width_of
from regrow.search.samplers import Advised, Result, Sampler, Watching
from regrow.search.schedulers import SchedulerPort, Verdict, Widening

__all__ = ["HOPELESS", "Planner", "seed_for"]

HOPELESS = 5
"""So many trials that fail in a session in which no trial reports anything end it: the fault is not in one configuration."""


_SAVING = (Saved, Dropped)
_CLONING = (Saved, Began, Ended, Retired, Decided)
"""The events after which a trial may need other trials' checkpoints no more."""


class Planner:
    """The fold of a log, and the decisions that follow from it. Holds no state that the log does not determine.

    Only `apply` changes it. What a question puts together for the first time (the sampler, a user's own scheduler) is what the
    events so far make of it, whenever that is done.
    """

    def __init__(self, called: str | None = None) -> None:
        self.history = History(called)
        self._sampler: Sampler | None = None
        self._scheduling = Scheduling(self.history)
        self._results = Results(self.history)
        self._due: list[int] = []
        """Trials whose attempt reached the step of a decision, in that order."""
        self._grown: set[int] = set()
        """Trials whose checkpoints may be more than retention keeps; the others' are not."""
        self._failed_now = 0
        self._reported_now = False

    def apply(self, event: AnyEvent) -> None:
        """Takes an event in. Raises IllegalMove, and changes nothing, for one that cannot follow."""
        grown = self._grown_by(event)
        self.history.apply(event)
        if grown:
            self._grown = {number for number in self._grown - grown if self._surplus(number)} | grown
        self._scheduling.apply(event)
        self._results.apply(event)
        match event:
            case Reported():
                self._reported_now = True
                self._note_due(event.trial)
            case Began():
                self._note_due(event.trial)
            case Opened(by="driver"):
                self._failed_now, self._reported_now = 0, False
            case Decided():
                self._due.remove(event.trial)
                self._note_due(event.trial)
            case Ended():
                if event.trial in self._due:
                    self._due.remove(event.trial)
                self._failed_now += self.history.trials[event.trial].state is TrialState.FAILED
            case _:
                pass

    def next(self, now: float) -> AnyEvent | None:
        """The next decision, as the event to be written at time `now` (seconds since the epoch); None for none."""
        history = self.history
        if history.opened is None or history.closed is not None:
            return None
        with theirs(history.spec):
            return (
                self._suggest(now)
                or self._declare_lost(now)
                or self._withdraw(now)
                or self._revive(now)
                or self._decide(now)
                or self._retain(now)
                or self._advance(now, complete=len(history.trials) >= history.total)
            )

    def _advance(self, now: float, *, complete: bool) -> AnyEvent | None:
        """Trials are given up or begin, or the session ends. `complete`: every trial that there will be has been proposed."""
        if self.history.closing is not None:
            return self._close(now, complete=complete)
        return self._retire(now, complete=complete) or self._close(now, complete=complete) or self._start(now, complete=complete)

    # ---- the kinds of decision, most urgent first ------------------------------------------------------------------

    def _suggest(self, now: float) -> AnyEvent | None:
        """Values that trials wait for."""
        return suggestion(self.history, self._results, self._sampling, now) if self.history.asked else None

    def _declare_lost(self, now: float) -> AnyEvent | None:
        """Attempts whose driver is gone are lost; that is nobody's fault and costs no retry of the trial's own."""
        for number, attempt in self.history.orphans:
            trial = self.history.trials[number]
            return Ended(
                t=now, trial=number, attempt=attempt, outcome="lost", cause="preempted", step=trial.step,
                message="the driver was lost", by="planner", cost=trial.attempts[-1].told_cost(self.history.cut),
            )
        return None

    def _withdraw(self, now: float) -> AnyEvent | None:
        """Attempts that have not begun and are to wait for a machine no longer: nothing is lost with them."""
        for number, waited in self.history.waiting.items():
            trial = self.history.trials[number]
            attempt = trial.attempts[-1]
            narrower = may_narrow(self.history, attempt) and self.history.closing is None
            why = why_narrower(self.history, attempt, waited) if narrower else why_withdrawn(self.history, attempt.market, waited)
            if why is not None:
                return Ended(
                    t=now, trial=number, attempt=attempt.number, outcome="paused", step=trial.step, message=why, by="planner",
                    narrower=narrower,
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
            verdict = self._scheduler.decide(number, trial.curve.until(attempt.until))
            if verdict.until is not None and verdict.until <= attempt.until:
                problem = f"decides on trial {number} at step {attempt.until} to decide again at step {verdict.until}"
                raise SpecError("schedule", chosen(self.history.spec.schedule), problem, "`until` is a later step")
            return self._decided(now, trial, attempt.number, attempt.until, verdict)
        return None

    def _decided(self, now: float, trial: TrialRecord, attempt: int, step: int, verdict: Verdict) -> Decided:
        """The verdict as an event; without a checkpoint to go on from there is no clone."""
        manifests: list[str] = []
        if self.history.spec.own_scheduler:
            self._check_verdict(verdict)
        if verdict.source is not None:
            source = self.history.trials[verdict.source]
            manifests = [c.manifest for s, c in sorted(source.checkpoints.items(), reverse=True) if s >= source.stale]
            if not manifests:
                why = f"{verdict.why}, which has no checkpoint"
                following = self._scheduler.first(trial.number, step)
                return Decided(
                    t=now, trial=trial.number, attempt=attempt, step=step, verdict="continue", until=following, why=why
                )
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
        found = ((number, manifests) for number in sorted(self._grown) if (manifests := self._surplus(number)))
        return next((Dropped(t=now, trial=number, manifests=manifests) for number, manifests in found), None)

    def _retire(self, now: float, *, complete: bool) -> AnyEvent | None:
        """Paused trials that will never be promoted."""
        history = self.history
        if not history.held:
            return None
        paused = history.by_state[TrialState.PAUSED]
        found = self._scheduler.surplus(complete=complete)
        if found is not None and found[0] in history.held and found[0] in paused:
            return Retired(t=now, trial=found[0], why=found[1])
        idle = not any(history.by_state[s] for s in (TrialState.RUNNING, TrialState.PENDING, TrialState.LOST))
        if complete and idle and history.held == paused and self._scheduler.promote(complete=True) is None:
            return Retired(t=now, trial=min(history.held), why="nothing is left that could promote it")
        return None

    def _close(self, now: float, *, complete: bool) -> AnyEvent | None:
        history = self.history
        if history.closing is not None:
            return Closed(t=now, status=history.closing.status) if not history.running else None
        if (why := why_enough(history.spec.stop, history, now)) is not None:
            return Closing(t=now, status="finished", why=why, by="planner")
        if self._failed_now >= min(HOPELESS, history.total) and not self._reported_now:
            why = f"{self._failed_now} trials failed and none reported anything"
            return Closing(t=now, status="failed", why=why, by="planner")
        if complete and all(not history.by_state[s] for s in TrialState if not s.final):
            good = history.by_state[TrialState.DONE] or history.by_state[TrialState.STOPPED]
            return Closed(t=now, status="finished" if good else "failed")
        return None

    def _start(self, now: float, *, complete: bool) -> AnyEvent | None:
        history = self.history
        if not has_room(history):
            return None
        number = self._next_waiting()
        if number is None and history.held:
            number = self._scheduler.promote(complete=complete)
            if number is not None and number not in history.held:
                problem = f"promotes trial {number}, which is not paused"
                raise SpecError("schedule", chosen(history.spec.schedule), problem, "promote what it was told to have paused")
            if number in history.running:
                return None  # its slot is about to be free; nobody else takes its turn
        if number is not None:
            return self._started(now, history.trials[number])
        if complete:
            return None
        # Where the sampler has nothing left to try, no other trial will come.
        return self._propose(now, len(history.trials)) or self._advance(now, complete=True)

    def _next_waiting(self) -> int | None:
        """The first of the trials that need nobody's leave to go on."""
        history = self.history
        numbers = [min(history.by_state[s]) for s in (TrialState.PENDING, TrialState.LOST) if history.by_state[s]]
        paused = history.by_state[TrialState.PAUSED]
        if len(paused) > len(history.held) - len(history.held & history.running):  # else there are none: without a look at each
            numbers.append(min(paused - history.held))
        return min(numbers, default=None)

    def _started(self, now: float, trial: TrialRecord) -> Started:
        history, scheduler = self.history, self._scheduler
        wanted = scheduler.width(trial.number) if isinstance(scheduler, Widening) else None
        others = trial.clone.manifests if trial.clone is not None else []
        own = [c.manifest for step, c in sorted(trial.checkpoints.items(), reverse=True) if step >= trial.stale]
        return Started(
            t=now, trial=trial.number, attempt=len(trial.attempts) + 1,
            until=scheduler.first(trial.number, trial.decided), checkpoints=[*others, *own],
            avoid_spot=history.spec.market is None and trial.evictions >= history.spec.retries.spot and trial.evictions > 0,
            market=following(history, trial, now),
            clones=len(others),
            width=width_of(history, trial, wanted),
        )

    def _propose(self, now: float, number: int) -> Proposed | None:
        """A new trial: a repeat of the one before, a point of the user's, or what the sampler proposes; None for nothing left."""
        spec = self.history.spec
        group, repeat = divmod(number, spec.repeats)
        if repeat:
            first = self.history.trials[number - repeat]
            return Proposed(t=now, trial=number, config=dict(first.proposed), state=dict(first.proposal_state))
        points = [point for point in spec.points if point.metrics is None]
        if group < len(points):
            return Proposed(t=now, trial=number, config=spec.space.point(points[group].config, f"points.{group}"))
        learnt = self._first_configurations
        if (place := group - len(points)) < len(learnt):
            return Proposed(t=now, trial=number, config=dict(learnt[place]))
        proposal = self._sampling.ask(group, seed_for(spec.seed, group))
        if proposal is not None and spec.own_sampler:
            spec.space.point(proposal.config, f"search: {chosen(spec.search)} proposed")
            _check_plain((proposal.config, proposal.state), "search", chosen(spec.search))
        if proposal is None:
            return None
        if (queued := next_queued(self.history)) is not None:
            place, fixed = queued
            return Proposed(t=now, trial=number, config={}, state={**proposal.state, FIXED: dict(fixed), QUEUED: place})
        return Proposed(t=now, trial=number, config=dict(proposal.config), state=dict(proposal.state))

    # ---- what they stand on ----------------------------------------------------------------------------------------

    @property
    def _scheduler(self) -> SchedulerPort:
        return self._scheduling.scheduler

    @property
    def _others(self) -> list[list[Result]]:
        """The results of experiments on other tasks."""
        return by_experiment(self.history.created) if self.history.created is not None else []

    @cached_property
    def _first_configurations(self) -> list[dict[str, Any]]:
        """What these say is to be tried first."""
        others = self._others
        return first_configurations(self.history.spec, others) if others else []

    @property
    def _sampling(self) -> Sampler:
        """Built at the first proposal, so that reading a log needs no sampler's library."""
        if self._sampler is None:
            self._sampler = samplers.make(self.history.spec.search, self.history.spec.setting)
            if isinstance(self._sampler, Advised):
                self._sampler.advise(self._others)
        for result in self._results.untold:
            self._sampler.tell(result)
        self._results.untold.clear()
        if isinstance(self._sampler, Watching):
            self._sampler.watch(self._results.running())
        return self._sampler

    def _note_due(self, number: int) -> None:
        trial = self.history.trials[number]
        attempt = trial.attempt
        if attempt is None or attempt.until is None or attempt.state is not AttemptState.RUNNING or number in self._due:
            return
        if trial.curve.time >= attempt.until:
            self._due.append(number)

    def _surplus(self, number: int) -> list[str]:
        history = self.history
        return surplus(history.trials[number], history.spec.checkpoint, history.objective.sign, history.pinned)

    def _grown_by(self, event: AnyEvent) -> set[int]:
        """The trials of which retention may keep fewer checkpoints than they have once this event, not applied yet, is."""
        grown: set[int] = {event.trial} if isinstance(event, _SAVING) else set()
        if isinstance(event, _CLONING) and 0 <= event.trial < len(self.history.trials):
            clone = self.history.trials[event.trial].clone
            if clone is not None:
                grown.add(clone.source)  # its checkpoints may not be needed any more, as the other one waited for them
        return grown


def _check_plain(value: object, key: str, name: str) -> None:
    """Raises SpecError if what a user's own class returned cannot be written to the log."""
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecError(key, name, f"returned what is not plain JSON: {error}", "return Python's own numbers and text") from None
