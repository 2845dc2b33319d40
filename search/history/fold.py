"""Events in, history out. `History.apply` is the only way to change a history. An event that the
lifecycle forbids raises and changes nothing.

So each handler first checks the event, against the tables in `lifecycle.py` and the rules written
here, and only then changes anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn, get_args

from regrow.search import events, lifecycle
from regrow.search.curve import Curve, Scale
from regrow.search.history.budget import exhausted, progress
from regrow.search.history.pace import Work
from regrow.search.history.records import (
    STUDY_STOPPED,
    Attempt,
    TrialRecord,
    event_lines,
    prices_of,
    specification,
)
from regrow.search.history.view import View
from regrow.search.lifecycle import AttemptMove, AttemptState, IllegalMove, Move, TrialState
from regrow.search.spec import Spec

HANDOVER_SECONDS = 120.0
"""Most seconds between two sessions of agents for which their machines count as waiting."""
HALTED = "the user stopped it"
"""Why a trial ended early, if not by a decision."""


class History(View):
    """The fold of an experiment's events. Reading has no side effects; only `apply` changes it."""

    def apply(self, event: events.AnyEvent) -> None:
        """Fold in an event. Raises IllegalMove, and changes nothing, if it is not allowed now."""
        if self._spec is None and not isinstance(event, events.Created):
            kind = type(event).__name__.lower()
            what = f"begin with a line of the kind {kind!r}: it was never created"
            raise IllegalMove(None, None, what)
        try:
            _HANDLERS[type(event)](self, event)
        except IllegalMove as error:
            if error.trial is not None and 0 <= error.trial < len(self.trials):
                error.story = event_lines(self.trials[error.trial], self.t_created)
            raise
        self.t_last = max(self.t_last, event.t)
        if self.work is not None and (number := getattr(event, "trial", None)) is not None:
            self.work.note(self.trials[number])

    def _created(self, event: events.Created) -> None:
        if self._spec is not None:
            raise IllegalMove(None, None, "be created twice")
        self._spec = self._named(specification(event))
        self.created = event
        self._setting, self._objective = self._spec.setting, self._spec.objective
        self.limits = self._spec.limits
        watched = dict.fromkeys(
            [*(m.name for m in self._spec.metrics), *(limit.metric for limit in self.limits)]
        )
        self._scale = Scale(
            objective=self._objective.name,
            most=self._objective.sign < 0,
            limits=self.limits,
            score=self._spec.score,
            step_metric=self._spec.clock,
            others=tuple(name for name in watched if name != self._objective.name),
        )
        self._plateau.tolerance = self._spec.stop.tolerance
        self.id, self.total, self.t_created = event.id, self._spec.total, event.t
        self._count()

    def _opened(self, event: events.Opened) -> None:
        if event.settings != (self.opened.settings if self.opened is not None else {}):
            self._settle(event)
        self.slots, self.total, self.spot_slots = event.slots, event.trials, 0
        self.widest = event.widest or event.slots
        if event.by == "driver":
            # another machine's clock may be behind: a session never begins before the last one ends
            self._before = 0.0 if self.opened is None else self.elapsed()
            self.cut = self.t_last
            self.spending.rest(self.t_last)
            if event.agent and event.t - self.t_last <= HANDOVER_SECONDS:
                self.spending.stayed(event.t)  # the other agents' machines wait for this leader
            self._t_opened = self.t_last = max(event.t, self.t_last)
            self.sessions += 1
            self.openings.append(event)
            self.agents.led(event.agent)
            self.closing = self.closed = None
            self.over = ""
            self.orphans = [
                (n, a.number) for n in sorted(self.running) if (a := self.trials[n].attempt)
            ]
            if event.retry_failed:
                failed = self.running | self.by_state[TrialState.FAILED]
                self.revivable = dict.fromkeys(
                    n for n in sorted(failed) if not self.trials[n].excluded
                )
        self.opened = event
        self.environment = event.environment or self.environment

    def _joined(self, event: events.Joined) -> None:
        self.agents.joined(event)

    def _left(self, event: events.Left) -> None:
        self.agents.left(event)

    def _capacity(self, event: events.Capacity) -> None:
        self.slots, self.widest, self.spot_slots = event.slots, event.widest, event.spot

    def _priced(self, event: events.Priced) -> None:
        self.spending.priced(event)

    def _metered(self, event: events.Metered) -> None:
        self.spending.metered(event.traffic, self.spec.store_prices, attempt=False)

    def _rehearsed(self, event: events.Rehearsed) -> None:
        self.pace.rehearsed(event)

    def _named(self, spec: Spec) -> Spec:
        if self.called in (None, spec.name):
            return spec
        return spec.model_copy(update={"name": self.called})

    def _settle(self, event: events.Opened) -> None:
        """Take over the settings of this session, which may differ from the last one's."""
        if self.created is None:
            return
        self._spec = self._named(specification(self.created, event))
        if self._spec.stop.tolerance != self._plateau.tolerance:
            self._plateau.restart(self._spec.stop.tolerance)
        self._count()

    def _count(self) -> None:
        """Count the steps of trials if a budget needs it."""
        if self.spec.budget_steps is None or self.work is not None:
            return
        self.work = Work.of(self.trials, self.spec.max_steps or 0)

    def _proposed(self, event: events.Proposed) -> None:
        if event.trial != len(self.trials):
            there = 0 <= event.trial < len(self.trials)
            state = self.trials[event.trial].state if there else None
            what = f"be proposed: the next one is trial {len(self.trials)}"
            raise IllegalMove(event.trial, state, what)
        trial = TrialRecord(
            number=event.trial,
            config=event.config,
            proposed=event.config,
            proposal_state=event.state,
            curve=Curve(self._scale),
        )
        trial.attributes = trial.first_attributes
        self.trials.append(trial)
        self.by_state[TrialState.PENDING].add(event.trial)
        self.answered = None

    def _started(self, event: events.Started) -> None:
        trial = self._trial(event.trial, Move.START)
        after = lifecycle.move(trial.number, trial.state, Move.START)
        if event.attempt != len(trial.attempts) + 1:
            what = f"start attempt {event.attempt}: it has had {len(trial.attempts)}"
            raise IllegalMove(event.trial, trial.state, what)
        attempt = Attempt(
            number=event.attempt,
            t_started=event.t,
            until=event.until,
            first=event.until,
            avoid_spot=event.avoid_spot,
            width=event.width,
            checkpoints=event.checkpoints,
            clones=event.clones,
            market=event.market,
            every_seconds=event.every_seconds,
        )
        trial.attempts.append(attempt)
        if event.config is not None:
            self._clones.changed(trial, trial.step, event.config)
        self._enter(trial, after)
        self.occupied += event.width

    def _waited(self, event: events.Waited) -> None:
        # only an attempt that has not begun may wait
        trial, attempt, _ = self._holder(event.trial, event.attempt, AttemptMove.BEGIN)
        attempt.waited = self.waiting[trial.number] = event.seconds

    def _began(self, event: events.Began) -> None:
        trial, attempt, after = self._holder(event.trial, event.attempt, AttemptMove.BEGIN)
        if not 0 <= event.restored <= trial.step:
            what = f"go on after step {event.restored}, which the trial never reached"
            self._refuse(trial, attempt, what)
        attempt.state = after
        if attempt.verdict is not None:  # the user stopped it before it began
            attempt.state = lifecycle.move_attempt(
                trial.number, attempt.number, after, AttemptMove.LEAVE
            )
        # the node's clock may have been set: an attempt never begins before it is started
        attempt.t_began = max(attempt.t_started, event.t - event.ago)
        self.pace.began(attempt)
        attempt.node, attempt.task_run = sys.intern(event.node), event.task_run
        attempt.node_id, attempt.node_type = sys.intern(event.node_id), sys.intern(event.node_type)
        attempt.market = sys.intern(event.market)
        self.found[event.market or "on-demand"] = event.t
        self.waiting.pop(trial.number, None)
        attempt.others, attempt.gpus = tuple(event.others), sys.intern(event.gpus)
        attempt.price, attempt.node_price = prices_of(
            event, attempt.width, self.spec.price_per_hour
        )
        self.spending.metered(event.traffic, self.spec.store_prices, attempt=True)
        attempt.from_step = attempt.to_step = event.restored
        if not event.restored:
            trial.attributes = trial.first_attributes
        before = trial.best
        for number, steps in trial.curve.rewind(event.restored):
            trial.attempts[number - 1].superseded += steps
            self.lost_steps += steps
        trial.account()
        for step in [s for s in trial.checkpoints if s > event.restored]:
            self._clones.forget(trial, step)
        self._clones.began(trial, event.restored)
        if trial.best != before:
            self._find_best()

    def _reported(self, event: events.Reported) -> None:
        trial, attempt, _ = self._holder(event.trial, event.attempt, AttemptMove.REPORT)
        last = trial.step
        if [row.step for row in event.rows] != list(range(last + 1, last + 1 + len(event.rows))):
            self._refuse(trial, attempt, f"report steps that do not follow {last}")
        name = self.objective.name
        values = [value for row in event.rows if (value := row.metrics.get(name)) is not None]
        if len(values) < len(event.rows):
            self._refuse(trial, attempt, f"report a step without {name}")
        if (beyond := trial.curve.beyond(event.rows)) is not None:
            self._refuse(trial, attempt, f"report {beyond} as a step")
        before = trial.curve.times[-1] if attempt.to_step > attempt.from_step else None
        self.pace.reported(attempt, before, event.rows)
        time = trial.curve.time
        if trial.curve.extend(attempt.number, event.rows, values):
            self._rank(trial)
        if self._scale.step_metric is not None and event.rows:
            self.pace.strides.append((trial.curve.time - time) / len(event.rows))
        attempt.to_step = last + len(values)

    def _asked(self, event: events.Asked) -> None:
        trial, attempt, _ = self._holder(event.trial, event.attempt, AttemptMove.REPORT)
        if event.name in trial.config or (trial.number, event.name) in self.asked:
            self._refuse(trial, attempt, f"ask for {event.name!r} twice")
        self.asked[trial.number, event.name] = event.distribution
        self.asked_first.setdefault(event.name, event.distribution)

    def _suggested(self, event: events.Suggested) -> None:
        trial = self._trial(event.trial, "be given a value")
        if self.asked.get((event.trial, event.name)) != event.distribution:
            what = f"be given a value of {event.name!r}, which nobody asked for"
            raise IllegalMove(event.trial, trial.state, what)
        del self.asked[event.trial, event.name]
        self.answers.pop((event.trial, event.name), None)
        trial.suggested[event.name] = event.distribution
        trial.config = trial.proposed = {**trial.proposed, event.name: event.value}

    def _proceeded(self, _: events.Proceeded) -> None:
        """Change nothing: which decisions wait is the planner's matter."""

    def _queued(self, event: events.Queued) -> None:
        self.queue.append(event)

    def _answered(self, event: events.Answered) -> None:
        number = event.about
        if number is not None and number == len(self.trials):
            if self.answered is not None:
                raise IllegalMove(None, None, "be answered twice for the next trial")
            self.answered = event
        elif number is not None:
            for name in event.values:
                if (number, name) not in self.asked:
                    what = f"be given a value of {name!r}, which nobody asked for"
                    raise IllegalMove(number, None, what)
            self.answers |= {(number, name): one for name, one in event.values.items()}
        self.over = self.over or event.over

    def _noted(self, event: events.Noted) -> None:
        trial, _, _ = self._holder(event.trial, event.attempt, AttemptMove.REPORT)
        trial.attributes = {**trial.attributes, **event.attributes}
        if STUDY_STOPPED in event.attributes:
            self.over = self.over or "stopped"

    def _decided(self, event: events.Decided) -> None:
        what = AttemptMove.GO_ON if event.verdict == "continue" else AttemptMove.LEAVE
        trial, attempt, after = self._holder(event.trial, event.attempt, what)
        if event.step != attempt.until or event.step > trial.curve.time:
            nowhere = f"be decided on at step {event.step}, where no decision is due"
            self._refuse(trial, attempt, nowhere)
        attempt.state = after
        trial.decided, attempt.until = event.step, event.until
        self.judged_from = event.judged_from
        self.first_decided = min(self.first_decided or event.step, event.step)
        if event.verdict != "continue":
            attempt.verdict, attempt.why = event.verdict, event.why
        self._index(trial)
        self._clones.decided(trial, event, trial.curve.reached(event.step))

    def _retired(self, event: events.Retired) -> None:
        trial = self._trial(event.trial, "be given up")
        if not trial.held or trial.state is not TrialState.PAUSED:
            what = "be given up: it does not wait for a promotion"
            raise IllegalMove(event.trial, trial.state, what)
        self._enter(trial, lifecycle.move(trial.number, trial.state, Move.STOP))
        trial.attempts[-1].message = event.why  # shown as the trial's reason
        self._finish(trial)

    def _revived(self, event: events.Revived) -> None:
        trial = self._trial(event.trial, Move.RETRY)
        lifecycle.move(trial.number, trial.state, Move.RETRY)
        self._enter(
            trial,
            lifecycle.move(
                trial.number, trial.state, lifecycle.REVIVAL[trial.attempts[-1].verdict]
            ),
        )
        self.revivable.pop(trial.number, None)
        trial.revived += 1
        trial.ended_by.clear()
        trial.evicted = ()
        self._plateau.revive(trial.number)
        if trial.state.final:
            self._finish(trial)

    def _excluded(self, event: events.Excluded) -> None:
        what = "be dropped" if event.excluded else "be kept"
        trial = self._trial(event.trial, what)
        if not trial.state.final:
            raise IllegalMove(event.trial, trial.state, f"{what}: it has not ended")
        if trial.excluded is event.excluded:
            raise IllegalMove(event.trial, trial.state, f"{what} twice")
        trial.excluded = event.excluded
        if event.excluded:
            self.revivable.pop(trial.number, None)
        self._find_best()

    def _halted(self, event: events.Halted) -> None:
        trial = self._trial(event.trial, "be stopped")
        if trial.state.final:
            raise IllegalMove(event.trial, trial.state, "be stopped: it has ended")
        if trial.attempt is None:
            self._enter(trial, lifecycle.move(trial.number, trial.state, Move.STOP))
            if trial.attempts:
                trial.attempts[-1].message = HALTED
            self._clones.over(trial)
            self._finish(trial)
        elif trial.attempt.verdict == "stop":
            self._refuse(trial, trial.attempt, "be stopped twice")
        else:
            attempt = trial.attempt
            attempt.state = lifecycle.move_attempt(
                trial.number, attempt.number, attempt.state, AttemptMove.LEAVE
            )
            attempt.verdict, attempt.why = "stop", HALTED
            self._index(trial)

    def _moved(self, event: events.Moved) -> None:
        trial, attempt, after = self._holder(event.trial, event.attempt, AttemptMove.LEAVE)
        if attempt.verdict is not None or after is not AttemptState.LEAVING:
            self._refuse(trial, attempt, "move to another machine: it does not run, or it ends")
        attempt.state, attempt.verdict, attempt.why = after, "restart", event.why
        self._index(trial)

    def _saved(self, event: events.Saved) -> None:
        trial, attempt, _ = self._holder(event.trial, event.attempt, AttemptMove.SAVE)
        if not attempt.saved < event.step <= trial.step:
            last = f"its last one is at {attempt.saved}"
            self._refuse(trial, attempt, f"save a checkpoint at step {event.step}: {last}")
        if event.step in trial.checkpoints:
            trial.replaced.append(trial.checkpoints[event.step].manifest)
        trial.checkpoints[event.step] = event
        attempt.saved = event.step
        self.pace.saved(attempt, event.seconds)
        self.spending.metered(event.traffic, self.spec.store_prices, attempt=True)
        self._clones.saved(trial, event)

    def _dropped(self, event: events.Dropped) -> None:
        trial = self._trial(event.trial, "drop a checkpoint")
        kept = {*trial.replaced, *(c.manifest for c in trial.checkpoints.values())}
        if missing := set(event.manifests) - kept:
            what = f"drop {min(missing)}, which it does not have"
            raise IllegalMove(event.trial, trial.state, what)
        trial.replaced = [one for one in trial.replaced if one not in event.manifests]
        for step in [s for s, c in trial.checkpoints.items() if c.manifest in event.manifests]:
            self._clones.forget(trial, step)

    def _ended(self, event: events.Ended) -> None:
        trial, attempt, after = self._holder(event.trial, event.attempt, AttemptMove.END)
        if event.cause not in lifecycle.CAUSES.get(event.outcome, (event.cause,)):
            by = f"by {event.cause!r}" if event.cause else "without a cause"
            self._refuse(trial, attempt, f"have ended as {event.outcome} {by}")
        used = trial.ended_by[event.cause] + 1
        furthest, evicted = progress(trial, attempt, event, closing=self.closing is not None)
        over = None
        if event.outcome in lifecycle.CAUSES:
            over = exhausted(self.spec, trial, attempt, event.cause, used=used, evicted=evicted)
        retries = event.outcome in lifecycle.CAUSES and over is None
        what = lifecycle.consequence(event.outcome, attempt.verdict, retries=retries)
        state = lifecycle.move(trial.number, trial.state, what)
        attempt.state = after
        self._enter(trial, state)
        if trial.curve.at_end and state is TrialState.DONE:
            self._rank(trial)
        self.occupied -= attempt.width
        trial.ended_by[event.cause], trial.furthest, trial.evicted = used, furthest, evicted
        trial.evictions += event.cause == "preempted" and event.by != "planner"
        attempt.outcome, attempt.cause, attempt.t_ended = event.outcome, event.cause, event.t
        # it ended with its driver, not when the next driver declared it lost
        if event.by == "planner" and event.outcome != "stopped":
            attempt.t_ended = max(self.cut, attempt.t_began or attempt.t_started)
        self.pace.ended(attempt)
        self.spending.metered(event.traffic, self.spec.store_prices, attempt=True)
        self.slot_seconds[attempt.price] += attempt.slot_seconds(event.t)
        if attempt.node_price is None:
            self.spending.apart[attempt.price] += attempt.slot_seconds(event.t)
        attempt.cost = attempt.cost_at(attempt.t_ended) if event.cost is None else event.cost
        attempt.narrower, attempt.usage = event.narrower, event.usage
        limited = self.closing is not None and bool(self.closing.limit)
        if attempt.withdrawn and not attempt.narrower and not limited:
            trial.unmet_market = attempt.market, event.t
        self.waiting.pop(trial.number, None)
        # One bug may fail a thousand trials with the same message: it is kept in memory once.
        failed = over and state is TrialState.FAILED
        message = f"{event.message}; {over}" if failed else event.message
        attempt.message, attempt.trace = sys.intern(message), sys.intern(event.trace)
        if event.cause:
            trial.account()
        if trial.state.final:
            self._finish(trial)
        if trial.state is not TrialState.FAILED:
            self.revivable.pop(trial.number, None)
        if (event.trial, event.attempt) in self.orphans:
            self.orphans.remove((event.trial, event.attempt))

    def _milestone(self, event: events.Milestone) -> None:
        self.milestones.append(event)

    def _closing(self, event: events.Closing) -> None:
        self.closing = event

    def _closed(self, event: events.Closed) -> None:
        if self.running:
            what = "be left behind by a closed experiment"
            raise IllegalMove(min(self.running), TrialState.RUNNING, what)
        self.closed, self._t_closed = event, max(event.t, self.t_last)
        self.spending.rest(event.t)

    # ---- what the handlers share

    def _trial(self, number: int, what: str) -> TrialRecord:
        if not 0 <= number < len(self.trials):
            raise IllegalMove(number, None, what)
        return self.trials[number]

    def _holder(
        self, number: int, attempt: int, what: AttemptMove
    ) -> tuple[TrialRecord, Attempt, AttemptState]:
        """Return trial, attempt and the attempt's state after `what`. Raises IllegalMove."""
        trial = self._trial(number, f"{what.value} by attempt {attempt}")
        current = self.lease(number, attempt)
        if current is None:
            if 1 <= attempt <= len(trial.attempts):
                lifecycle.move_attempt(number, attempt, AttemptState.ENDED, what)  # raises
            raise IllegalMove(number, None, what.value, attempt=attempt)
        return trial, current, lifecycle.move_attempt(number, attempt, current.state, what)

    def _refuse(self, trial: TrialRecord, attempt: Attempt, what: str) -> NoReturn:
        raise IllegalMove(trial.number, attempt.state, what, attempt=attempt.number)

    def _enter(self, trial: TrialRecord, state: TrialState) -> None:
        self.by_state[trial.state].discard(trial.number)
        trial.state = state
        self.by_state[state].add(trial.number)
        self._index(trial)

    def _index(self, trial: TrialRecord) -> None:
        (self.held.add if trial.held else self.held.discard)(trial.number)

    def _finish(self, trial: TrialRecord) -> None:
        """Account for a trial that has reached a final state."""
        self._clones.over(trial)
        best = self.leader.best if self.leader is not None else None
        self._plateau.end(trial.number, None if best is None else self.objective.sign * best[0])

    def _rank(self, trial: TrialRecord) -> None:
        """Update the leader after the value by which the trial counts has changed."""
        if self._scale.score == "last" and self.best == trial.number:
            self._find_best()  # the leader may have become worse
        else:
            self._improve(trial)

    def _improve(self, trial: TrialRecord) -> None:
        """Make a trial the leader if it is better."""
        leader = self.leader.best if self.leader is not None else None
        best = trial.best
        if best is not None and (leader is None or self._scale.better(best[0], leader[0])):
            self.best = trial.number

    def _find_best(self) -> None:
        """Find the leader after its best value was superseded. Ties go to the lower number."""
        self.best = None
        for trial in self.trials:
            self._improve(trial)


_HANDLERS: dict[type, Callable[[History, Any], None]] = {
    kind: getattr(History, f"_{kind.__name__.lower()}") for kind in get_args(events.AnyEvent)
}
"""By event, the method of its name."""
