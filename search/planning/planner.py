"""The planner: chooses the next action from everything that has happened so far.

`next` returns one decision as an event, or None. The caller writes the event to the log, applies
it, and asks again. No other part of regrow makes decisions. A decision depends only on the events
applied before it and on `now`, which becomes the event's own time. So a log can be replayed and
each of its decisions recomputed (`verify.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from regrow.search import samplers
from regrow.search.chance import seed_for
from regrow.search.errors import SpecError
from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
    Created,
    Decided,
    Dropped,
    Ended,
    Excluded,
    Halted,
    Hold,
    Milestone,
    Moved,
    Opened,
    Outcome,
    Proceeded,
    Proposed,
    Reported,
    Retired,
    Revived,
    Saved,
    Started,
    Status,
)
from regrow.search.history import History, TrialRecord, cost
from regrow.search.lifecycle import AttemptState, TrialState
from regrow.search.options import chosen
from regrow.search.planning import budget, forecast, limits, search_code
from regrow.search.planning.checkpoints import interval, surplus
from regrow.search.planning.learning import by_experiment, first_configurations
from regrow.search.planning.market import next_market, next_to_leave, why_withdrawn
from regrow.search.planning.results import Results
from regrow.search.planning.scheduling import Scheduling, naming_user_code
from regrow.search.planning.stopping import why_enough, why_failed
from regrow.search.planning.suggesting import expected, next_queued, suggestion
from regrow.search.planning.untried import Untried, applies
from regrow.search.planning.widths import has_room, may_narrow, why_narrower, width_of
from regrow.search.samplers.base import Advised, Proposal, Result, Sampler, Watching
from regrow.search.samplers.external import Wanted
from regrow.search.schedulers.ahead import Ahead, EndAware
from regrow.search.schedulers.base import SchedulerPort, Verdict, Widening
from regrow.search.space.smaller import smaller

__all__ = ["HOPELESS", "Planner", "seed_for"]

MOST_PASSED = 1_000
"""Most decisions that one report can trigger; further steps that it jumps over are skipped."""
HOPELESS = 5
"""A session ends after this many failed trials if none reported: it is not their values. Where
`stop.failures` is given, that holds instead.
"""


_OVER = {"finished": "the sampler has nothing left to try", "stopped": "the study was stopped"}
_SAVING = (Saved, Dropped)
_CLONING = (Saved, Began, Ended, Retired, Halted, Decided)
"""Events after which a trial may no longer need the checkpoints of other trials."""


class Planner:
    """The fold of a log, and the decisions that follow from it. It holds no state that the log does
    not determine.

    Only `apply` changes it. Parts that are built on first use (the sampler, a user's scheduler)
    depend only on the events so far, not on when they are built.
    """

    def __init__(self, called: str | None = None) -> None:
        self.history = History(called)
        self._sampler: Sampler | None = None
        self._scheduling = Scheduling(self.history)
        self._results = Results(self.history)
        self._due: list[int] = []
        """Trials whose attempt has reached the step of a decision, in that order."""
        self._untried: Untried | None = None
        """The configurations proposed so far; None if a configuration may be proposed twice."""
        self._with_surplus: set[int] = set()
        """Trials that may have surplus checkpoints. All others have none to drop."""
        self._passed: Counter[int] = Counter()
        """By trial, how many decisions its last report has triggered. A report can pass any number
        of decision steps where steps are counted by a metric.
        """
        self._failed_in_session = 0
        self._hold: Hold = ""
        self.held = False
        """Whether decisions wait until the end of a trial was dealt with."""
        self._reported_in_session = False
        self.wanted: Wanted | None = None
        """What the last `next` needs of an external sampler; None for nothing."""

    def apply(self, event: AnyEvent) -> None:
        """Fold in an event. Raises IllegalMove, and changes nothing, if it is not allowed."""
        grown = self._with_surplus_after(event)
        self.history.apply(event)
        if grown:
            self._with_surplus = grown | {
                one for one in self._with_surplus - grown if self._surplus(one)
            }
        self._scheduling.apply(event)
        self._results.apply(event)
        match event:
            case Created(distinct=True) if applies(self.history.spec):
                self._untried = Untried(self.history.spec)
            case Proposed() if self._untried is not None:
                self._untried.note(event.config)
            case Reported():
                self._reported_in_session = True
                self._passed.pop(event.trial, None)
                self._note_due(event.trial)
            case Began():
                self._note_due(event.trial)
            case Opened(by="driver"):
                self._failed_in_session, self._reported_in_session = 0, False
            case Decided():
                self._due.remove(event.trial)
                self._passed[event.trial] += 1
                self._note_due(event.trial)
            case Excluded():
                self._sampler = None  # a new one gets the results without this trial's
            case Halted() if event.trial in self._due:
                self._due.remove(event.trial)
            case Ended():
                if event.trial in self._due:
                    self._due.remove(event.trial)
                self._failed_in_session += self._has_failed(event.trial)
            case _:
                pass
        self._hold_after(event)

    def _has_failed(self, number: int) -> bool:
        """Return whether a trial has failed by an exception that its study does not catch."""
        trial = self.history.trials[number]
        return trial.state is TrialState.FAILED and not expected(trial)

    def _hold_after(self, event: AnyEvent) -> None:
        """Have decisions wait, or go on, after an event; see Hold."""
        match event:
            case Opened():
                self._hold, self.held = event.hold, False
            case Proceeded():
                self._hold, self.held = "" if event.for_good else self._hold, False
            case Closing():
                self.held = False
            case Ended() if self._hold and self.history.closing is None:
                final = self.history.trials[event.trial].state.final
                ends = self._hold == "ends" and final
                self.held = self.held or ends or self._has_failed(event.trial)
            case _:
                pass

    def next(self, now: float) -> AnyEvent | None:
        """Return the next decision at `now` (seconds since the epoch), None for none."""
        history, self.wanted = self.history, None
        if history.opened is None or history.closed is not None or self.held:
            return None
        with naming_user_code(history.spec):
            return (
                self._suggest(now)
                or self._declare_lost(now)
                or self._withdraw(now)
                or self._revive(now)
                or self._decide(now)
                or self._retain(now)
                or self._milestone(now)
                or self._move(now)
                or self._advance(
                    now, complete=len(history.trials) >= history.total or bool(history.over)
                )
            )

    def _advance(self, now: float, *, complete: bool) -> AnyEvent | None:
        """Retire or start a trial, or end the session. `complete`: all were proposed."""
        if self.history.closing is not None:
            return self._close(now, complete=complete)
        return (
            self._retire(now, complete=complete)
            or self._close(now, complete=complete)
            or self._start(now, complete=complete)
        )

    # ---- the kinds of decision, most urgent first

    def _suggest(self, now: float) -> AnyEvent | None:
        """Suggest a value that a define-by-run trial waits for."""
        if not self.history.asked:
            return None
        found = suggestion(self.history, self._results, self._sampling, now)
        if isinstance(found, Wanted):
            self.wanted = found
            return None
        return found

    def _declare_lost(self, now: float) -> AnyEvent | None:
        """End an attempt whose driver is gone as lost. It counts against `retries: {preempted:
        ...}`, which is unlimited by default, and not as an eviction.
        """
        for number, attempt in self.history.orphans:
            trial = self.history.trials[number]
            return Ended(
                t=now,
                trial=number,
                attempt=attempt,
                outcome="lost",
                cause="preempted",
                step=trial.step,
                message="the driver was lost",
                by="planner",
                cost=trial.attempts[-1].recorded_cost(self.history.cut),
            )
        return None

    def _withdraw(self, now: float) -> AnyEvent | None:
        """Withdraw an attempt that has waited too long for a machine, or has not begun as a limit
        of money or time ends the session: no work is lost. After too many failures, also one that
        runs.
        """
        closing = self.history.closing
        if closing is not None and (why := why_failed(self.history.spec.stop, self.history)):
            for number in sorted(self.history.running):
                return self._withdrawn(now, self.history.trials[number], why, outcome="stopped")
        if closing is not None and closing.limit:
            for number in sorted(self.history.running):
                trial = self.history.trials[number]
                if trial.attempts[-1].t_began is None:
                    return self._withdrawn(now, trial, f"it had not begun: {closing.why}")
        for number, waited in self.history.waiting.items():
            trial = self.history.trials[number]
            attempt = trial.attempts[-1]
            narrower = may_narrow(self.history, attempt) and self.history.closing is None
            why = why_withdrawn(self.history, attempt.market, waited, now)
            if narrower:
                why = why_narrower(self.history, attempt, waited)
            if why is not None:
                return self._withdrawn(now, trial, why, narrower=narrower)
        return None

    def _withdrawn(
        self,
        now: float,
        trial: TrialRecord,
        why: str,
        *,
        narrower: bool = False,
        outcome: Outcome = "paused",
    ) -> Ended:
        return Ended(
            t=now,
            trial=trial.number,
            attempt=trial.attempts[-1].number,
            outcome=outcome,
            step=trial.step,
            message=why,
            by="planner",
            narrower=narrower,
            cost=trial.attempts[-1].recorded_cost(now) if outcome == "stopped" else None,
        )

    def _revive(self, now: float) -> AnyEvent | None:
        """Retry a failed trial at the user's request."""
        for number in self.history.revivable:
            if dropped := self._begin_anew(now, self.history.trials[number]):
                return dropped
            return Revived(t=now, trial=number, why="the user wants it tried again")
        return None

    def _begin_anew(self, now: float, trial: TrialRecord) -> Dropped | None:
        """Drop the checkpoints of a failed trial that is to begin anew; None if it has none."""
        pinned = self.history.pinned
        kept = [manifest for manifest in trial.usable if manifest not in pinned]
        if not kept or not self.history.spec.retries.anew or trial.state is not TrialState.FAILED:
            return None
        return Dropped(t=now, trial=trial.number, manifests=kept)

    def _decide(self, now: float) -> AnyEvent | None:
        for number in self._due:
            trial = self.history.trials[number]
            attempt = trial.attempt
            if attempt is None or attempt.until is None:
                continue
            verdict = self._scheduler.decide(number, trial.curve.until(attempt.until))
            if self.history.spec.own_scheduler:
                verdict = search_code.verdict(verdict, self._schedule)
            verdict = self._within_budget(trial, attempt.until, verdict)
            until, time = verdict.until, trial.curve.time
            if self._passed[number] >= MOST_PASSED and until is not None and until <= time:
                until = self._next_decision(number, time)
                verdict = replace(verdict, until=until)
            if until is not None and until <= attempt.until:
                decides = f"decides on trial {number} at step {attempt.until}"
                problem = f"{decides} to decide again at step {until}"
                name = chosen(self.history.spec.schedule)
                raise SpecError("schedule", name, problem, "`until` is a later step")
            return self._decided(now, trial, attempt.number, attempt.until, verdict)
        return None

    def _next_decision(self, trial: int, after: int) -> int | None:
        """Return the step of the next decision after `after`. Raises SpecError for no step."""
        step = self._scheduler.first(trial, after)
        if self.history.spec.own_scheduler:
            return search_code.whole(step, self._schedule, "as the step of the next decision")
        return step

    def _within_budget(self, trial: TrialRecord, step: int, verdict: Verdict) -> Verdict:
        """Return the verdict; "pause" if the rest of the budget is for better trials."""
        if self.history.work is None or verdict.action not in ("continue", "restart"):
            return verdict
        until = verdict.until
        if verdict.action == "restart":
            until = self._next_decision(trial.number, step)
        if budget.may_continue(self.history, trial, until):
            return verdict
        why = "the rest of the budget is for better trials"
        return Verdict(action="pause", why=f"{verdict.why}; {why}".removeprefix("; "))

    def _decided(
        self, now: float, trial: TrialRecord, attempt: int, step: int, verdict: Verdict
    ) -> Decided:
        """Return the verdict as an event; "continue" if the source has no checkpoint."""
        manifests: list[str] = []
        if self.history.spec.own_scheduler:
            verdict = self._checked(verdict)
        if verdict.source is not None:
            manifests = self.history.trials[verdict.source].usable
            if not manifests:
                until = self._next_decision(trial.number, step)
                verdict = Verdict(until=until, why=f"{verdict.why}, which has no checkpoint")
        return Decided(
            t=now,
            trial=trial.number,
            attempt=attempt,
            step=step,
            verdict=verdict.action,
            until=verdict.until,
            why=verdict.why,
            source=verdict.source,
            manifests=manifests,
            config=None if verdict.config is None else dict(verdict.config),
            judged_from=verdict.judged_from,
        )

    def _checked(self, verdict: Verdict) -> Verdict:
        """Return a verdict of the user's scheduler with its configuration in values of the space.
        Raises SpecError if it cannot be carried out.
        """
        name = chosen(self.history.spec.schedule)
        if verdict.source is not None and not 0 <= verdict.source < len(self.history.trials):
            problem = f"names trial {verdict.source} as a source, and there is none"
            raise SpecError("schedule", name, problem)
        if verdict.config is not None:
            key = f"schedule: {name} decided"
            config = search_code.configuration(self.history.spec.space, verdict.config, key)
            verdict = replace(verdict, config=config)
        return verdict

    def _retain(self, now: float) -> AnyEvent | None:
        for number in sorted(self._with_surplus):
            if manifests := self._surplus(number):
                return Dropped(t=now, trial=number, manifests=manifests)
        return None

    def _milestone(self, now: float) -> Milestone | None:
        """Record that a part of a limit is used, with what is expected by then."""
        history = self.history
        due = limits.milestone(history, now)
        if due is None or history.closing is not None:
            return None
        limit, percent = due
        seen = forecast.of(history, now)
        return Milestone(
            t=now,
            limit=limit,
            percent=percent,
            spent=cost.of(history, now).total,
            ends=None if seen is None else seen.ends,
            between=None if seen is None else seen.interval,
            cost=None if seen is None else seen.money,
        )

    def _move(self, now: float) -> Moved | None:
        """Let an attempt leave an on-demand machine for a spot machine, with time to spare."""
        found = next_to_leave(self.history, now)
        if found is None:
            return None
        trial, why = found
        return Moved(t=now, trial=trial.number, attempt=trial.attempts[-1].number, why=why)

    def _retire(self, now: float, *, complete: bool) -> AnyEvent | None:
        """Stop a paused trial that will never be promoted."""
        history = self.history
        if not history.held:
            return None
        paused = history.by_state[TrialState.PAUSED]
        found = self._scheduler.surplus(complete=complete)
        if found is not None and found[0] in history.held and found[0] in paused:
            why = found[1]
            if history.spec.own_scheduler:
                why = search_code.reason(why, self._schedule)
            return Retired(t=now, trial=history.trials[found[0]].number, why=why)
        others = (TrialState.RUNNING, TrialState.PENDING, TrialState.LOST)
        idle = not any(history.by_state[state] for state in others)
        if not (complete and idle and history.held == paused):
            return None
        if self._scheduler.promote(complete=True) is not None:
            return None
        why = "nothing is left that could promote it"
        return Retired(t=now, trial=min(history.held), why=why)

    def _close(self, now: float, *, complete: bool) -> AnyEvent | None:
        history = self.history
        if history.closing is not None:
            return Closed(t=now, status=history.closing.status) if not history.running else None
        if (why := why_failed(history.spec.stop, history)) is not None:
            return Closing(t=now, status="failed", why=why, by="planner")
        if (why := why_enough(history.spec.stop, history, now)) is not None:
            return Closing(t=now, status="finished", why=why, by="planner")
        if (reason := limits.why_not_kept(history)) is not None:
            return _closing_by(now, reason, status="failed")
        if (reason := limits.over(history, now)) is not None:
            return _closing_by(now, reason)
        hopeless = (
            self._failed_in_session >= min(HOPELESS, history.total)
            and not self._reported_in_session
        )
        if hopeless and history.spec.stop.failures is None:
            why = f"{self._failed_in_session} trials failed and none reported anything"
            return Closing(t=now, status="failed", why=why, by="planner")
        if complete and all(not history.by_state[s] for s in TrialState if not s.final):
            good = history.by_state[TrialState.DONE] or history.by_state[TrialState.STOPPED]
            status: Status = "finished" if good else "failed"
            cells = None if self._untried is None else self._untried.all_tried
            if history.over and len(history.trials) < history.total:
                why = _OVER[history.over]
                return Closing(t=now, status=history.over, why=why, by="planner")
            if cells and len(history.trials) < history.total:
                why = f"all {cells} configurations of the space were tried"
                return Closing(t=now, status=status, why=why, by="planner")
            return Closed(t=now, status=status)
        return None

    def _start(self, now: float, *, complete: bool) -> AnyEvent | None:
        history = self.history
        if not has_room(history):
            return None
        refused = None
        for number in self._startable(now, complete=complete):
            if number in history.running:
                return None  # its own slot is about to be free; no other trial may take its turn
            trial = history.trials[number]
            until = self._next_decision(number, trial.decided)
            refused = limits.why_not(history, trial, until, now)
            if refused is None:
                return self._started(now, trial)
        if refused is None and not complete:
            for_best = isinstance(self._scheduler, EndAware)
            refused = limits.why_no_new(history, now, self._first_of_next, for_best=for_best)
        if refused is not None:
            failed = history.trials and history.ended == len(history.by_state[TrialState.FAILED])
            used_up = refused.limit == "budget" and not history.held
            status: Status = "failed" if failed and used_up else "finished"
            return None if history.running else _closing_by(now, refused, status)
        if complete:
            return None
        if (proposed := self._propose(now, len(history.trials))) is not None:
            return proposed
        if samplers.is_external(history.spec.search):
            self.wanted = self.wanted or Wanted(trial=len(history.trials))
            return None
        # If the sampler has nothing left to try, no further trial will be proposed.
        return self._advance(now, complete=True)

    def _startable(self, now: float, *, complete: bool) -> Iterator[int]:
        """Yield the trials that may start, the most urgent first: the one that is ready, and the
        paused one that the scheduler continues.
        """
        if (number := self._next_waiting()) is not None:
            yield number
        if not self.history.held:
            return
        late = complete or limits.is_late(self.history, now, self._first_of_next)
        number = self._scheduler.promote(complete=late)
        if number is None and self.history.work is not None and late:
            number = self._best_held()
        if number is not None and number not in self.history.held:
            problem = f"promotes trial {number}, which is not paused"
            hint = "promote a trial that is paused"
            raise SpecError("schedule", chosen(self.history.spec.schedule), problem, hint)
        if number is not None:
            yield number

    def _best_held(self) -> int | None:
        """Return the best paused trial to finish with what is left of a budget of steps, once
        nothing runs; None for none.
        """
        held = self.history.held
        if self.history.running:
            return None
        return min(held, key=lambda n: budget.rank(self.history, self.history.trials[n]))

    def _next_waiting(self) -> int | None:
        """Return the lowest-numbered trial that is ready to run unpromoted, None for none."""
        history = self.history
        ready = (history.by_state[TrialState.PENDING], history.by_state[TrialState.LOST])
        numbers = [min(some) for some in ready if some]
        paused = history.by_state[TrialState.PAUSED]
        # otherwise no paused trial is free to run, and the sets need not be compared
        if len(paused) > len(history.held) - len(history.held & history.running):
            numbers.append(min(paused - history.held))
        return min(numbers, default=None)

    def _started(self, now: float, trial: TrialRecord) -> Started:
        history, scheduler = self.history, self._scheduler
        wanted = scheduler.width(trial.number) if isinstance(scheduler, Widening) else None
        if history.spec.own_scheduler:
            wanted = search_code.whole(wanted, self._schedule, "as a trial's width")
        others = trial.clone.manifests if trial.clone is not None else []
        config = None
        if trial.attempts and trial.attempts[-1].cause == "oom":
            config = smaller(trial.config, history.spec.on_oom, history.spec.space)
        seldom_spot = history.spec.market is None and trial.evictions > 0
        return Started(
            t=now,
            trial=trial.number,
            attempt=len(trial.attempts) + 1,
            until=self._next_decision(trial.number, trial.decided),
            checkpoints=[*others, *trial.usable],
            avoid_spot=seldom_spot and trial.evictions >= history.spec.retries.spot,
            market=next_market(history, trial, now),
            clones=len(others),
            width=width_of(history, trial, wanted),
            config=config,
            every_seconds=interval(history) if history.spec.checkpoint.every == "auto" else None,
        )

    def _propose(self, now: float, number: int) -> Proposed | None:
        """Propose a new trial, None if nothing is left to propose."""
        found = self._proposal(number)
        if found is None:
            return None
        return Proposed(t=now, trial=number, config=dict(found.config), state=dict(found.state))

    def _proposal(self, number: int) -> Proposal | None:
        """Return a repeat of the previous trial, one of the user's points, what did well on other
        tasks, or a proposal of the sampler.
        """
        spec = self.history.spec
        group, repeat = divmod(number, spec.repeats)
        if repeat:
            first = self.history.trials[number - repeat]
            return Proposal(config=first.proposed, state=first.proposal_state)
        points = [point for point in spec.points if point.metrics is None]
        if group < len(points):
            point = spec.space.point(points[group].config, f"points.{group}", rounded=False)
            return Proposal(config=point)
        learnt = self._first_configurations
        if (place := group - len(points)) < len(learnt):
            return Proposal(config=learnt[place])
        if self._untried is not None and self._untried.all_tried:
            return None
        if samplers.is_external(spec.search):
            answered = self.history.answered
            if answered is None:
                return None
            proposal: Proposal | None = Proposal(config=answered.values, state=answered.state)
        else:
            proposal = self._sampling.ask(group, seed_for(spec.seed, group))
        if proposal is not None and spec.own_sampler:
            proposal = search_code.proposal(spec.space, proposal, chosen(spec.search))
        if proposal is not None and self._untried is not None:
            proposal = self._untried.instead(proposal, self._sampling, group, spec.seed)
        if proposal is not None and (queued := next_queued(self.history)) is not None:
            return Proposal(config=proposal.config, state={**proposal.state, **queued})
        return proposal

    # ---- what the decisions are based on

    @property
    def _scheduler(self) -> SchedulerPort:
        return self._scheduling.scheduler

    @property
    def _schedule(self) -> str:
        """The name of the scheduler, for messages."""
        return chosen(self.history.spec.schedule)

    @property
    def _first_of_next(self) -> int | None:
        """The step of the first decision on the trial that is proposed next; None for none before
        its end, as far as the scheduler knows.
        """
        scheduler = self._scheduler
        if self.history.work is None or not isinstance(scheduler, Ahead):
            return None
        return scheduler.first_of_next(len(self.history.trials))

    @property
    def _others(self) -> list[list[Result]]:
        """Results of earlier experiments on other tasks, one list for each."""
        return by_experiment(self.history.created) if self.history.created is not None else []

    @cached_property
    def _first_configurations(self) -> list[dict[str, Any]]:
        """Configurations to try first, chosen from the experiments on other tasks."""
        others, history = self._others, self.history
        return first_configurations(history.spec, others, history.setting) if others else []

    @property
    def _sampling(self) -> Sampler:
        """The sampler, up to date with all results. Built at the first proposal, so that reading a
        log does not import a sampler's library.
        """
        if self._sampler is None:
            self._sampler = samplers.make(self.history.spec.search, self.history.setting)
            if isinstance(self._sampler, Advised):
                self._sampler.advise(self._others)
        own = self.history.spec.own_sampler
        for result in self._results.untold:
            self._sampler.tell(search_code.given(result) if own else result)
        self._results.untold.clear()
        if isinstance(self._sampler, Watching):
            running = self._results.running()
            self._sampler.watch([search_code.given(one) for one in running] if own else running)
        return self._sampler

    def _note_due(self, number: int) -> None:
        trial = self.history.trials[number]
        attempt = trial.attempt
        if attempt is None or attempt.until is None or number in self._due:
            return
        if attempt.state is AttemptState.RUNNING and trial.curve.time >= attempt.until:
            self._due.append(number)

    def _surplus(self, number: int) -> list[str]:
        history = self.history
        return surplus(
            history.trials[number], history.spec.checkpoint, history.objective.sign, history.pinned
        )

    def _with_surplus_after(self, event: AnyEvent) -> set[int]:
        """Return the trials that may have surplus checkpoints after this event."""
        grown: set[int] = {event.trial} if isinstance(event, _SAVING) else set()
        if isinstance(event, _CLONING) and 0 <= event.trial < len(self.history.trials):
            clone = self.history.trials[event.trial].clone
            if clone is not None:
                # retention may drop its checkpoints once the cloning trial no longer needs them
                grown.add(clone.source)
        return grown


def _closing_by(now: float, reason: limits.Reason, status: Status = "finished") -> Closing:
    """Return the end of a session by a limit."""
    return Closing(t=now, status=status, why=reason.why, by="planner", limit=reason.limit)
