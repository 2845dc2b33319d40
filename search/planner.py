"""The planner: what to do next, given everything that happened.

`next` returns one decision as an event, or None; the caller writes it to the log, applies it, and asks again. Nothing
else decides anything in regrow. A decision depends only on the events applied before it and on `now`, which becomes
the event's own time: so a log can be replayed and each of its decisions recomputed (`verify.py`).
"""

from __future__ import annotations

import hashlib

from regrow.search import samplers, schedulers
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
    Saved,
    Started,
)
from regrow.search.history import History, Trial
from regrow.search.lifecycle import TrialState
from regrow.search.samplers import Result, Sampler
from regrow.search.schedulers import Scheduler

HOPELESS = 5
"""So many trials that fail in a sitting in which no trial reports anything end it: the fault is not in one configuration."""

_TOLD: dict[TrialState, samplers.Status] = {
    TrialState.DONE: "done", TrialState.STOPPED: "stopped", TrialState.FAILED: "failed",
}
_WAITING = (TrialState.PENDING, TrialState.LOST, TrialState.PAUSED)


def seed_for(seed: int, number: int, purpose: str = "proposal") -> int:
    """A 32-bit seed for trial `number`: a stable hash, the same on every machine and in every version of Python."""
    digest = hashlib.sha256(f"{purpose}:{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


class Planner:
    """The fold of a log, and the decisions that follow from it. Holds no state that the log does not determine."""

    def __init__(self) -> None:
        self.history = History()
        self._sampler: Sampler | None = None
        self._scheduler: Scheduler | None = None
        self._untold: list[Result] = []
        self._exhausted = False
        self._due: list[int] = []
        """Trials whose attempt reached the step of a decision, in that order."""
        self._grown: list[int] = []
        """Trials with a new checkpoint since their retention was last looked at."""
        self._failed_now = 0
        self._reported_now = False

    def apply(self, event: AnyEvent) -> None:
        """Takes an event in. Raises IllegalMove, and changes nothing, for one that cannot follow."""
        self.history.apply(event)
        match event:
            case Created():
                spec = self.history.spec
                self._scheduler = schedulers.make(spec.schedule, spec.objective.mode, spec.max_steps)
            case Opened(by="driver"):
                self._failed_now, self._reported_now = 0, False
            case Proposed():
                self._untold.append(self._result(self.history.trials[event.trial]))
            case Began() | Reported():
                self._reported_now = self._reported_now or isinstance(event, Reported)
                self._note_due(event.trial)
            case Decided():
                self._due.remove(event.trial)
                self._note_due(event.trial)
                value = self._value_at(self.history.trials[event.trial], event.step)
                self._scheduling.tell(event.trial, event.step, value)
            case Saved():
                self._grown.append(event.trial)
            case Dropped() if event.trial in self._grown:
                self._grown.remove(event.trial)
            case Ended():
                if event.trial in self._due:
                    self._due.remove(event.trial)
                trial = self.history.trials[event.trial]
                if trial.state.final:
                    self._untold.append(self._result(trial))
                    self._failed_now += trial.state is TrialState.FAILED
            case _:
                pass

    def next(self, now: float) -> AnyEvent | None:
        """The next decision, as the event to be written at time `now` (seconds since the epoch); None for none."""
        history = self.history
        if history.opened is None or history.closed is not None:
            return None
        return (
            self._bury(now)
            or self._decide(now)
            or self._retain(now)
            or self._close(now)
            or (self._start(now) if history.closing is None else None)
        )

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

    def _decide(self, now: float) -> AnyEvent | None:
        for number in self._due:
            trial = self.history.trials[number]
            attempt = trial.attempt
            if attempt is None or attempt.until is None:
                continue
            verdict = self._scheduling.decide(number, attempt.until, self._value_at(trial, attempt.until))
            return Decided(
                t=now, trial=number, attempt=attempt.number, step=attempt.until,
                verdict="continue" if verdict.go_on else "stop", until=verdict.until, why=verdict.why,
            )
        return None

    def _retain(self, now: float) -> AnyEvent | None:
        while self._grown:
            trial = self.history.trials[self._grown[0]]
            kept = self._kept(trial)
            surplus = [c.manifest for step, c in trial.checkpoints.items() if step not in kept]
            if surplus:
                return Dropped(t=now, trial=trial.number, manifests=surplus)
            self._grown.pop(0)
        return None

    def _close(self, now: float) -> AnyEvent | None:
        history, stop = self.history, self.history.spec.stop
        if history.closing is not None:
            return Closed(t=now, status=history.closing.status) if not history.running else None
        if history.reached_target:
            return Closing(t=now, status="finished", why=f"the target {stop.target:g} was reached", by="planner")
        if stop.hours is not None and history.elapsed(now) >= stop.hours * 3600:
            return Closing(t=now, status="finished", why=f"{stop.hours:g} hours are over", by="planner")
        if self._failed_now >= min(HOPELESS, history.total) and not self._reported_now:
            why = f"{self._failed_now} trials failed and none reported anything"
            return Closing(t=now, status="failed", why=why, by="planner")
        proposed_all = self._exhausted or len(history.trials) >= history.total
        if proposed_all and all(not history.by_state[s] for s in TrialState if not s.final):
            good = history.by_state[TrialState.DONE] or history.by_state[TrialState.STOPPED]
            return Closed(t=now, status="finished" if good else "failed")
        return None

    def _start(self, now: float) -> AnyEvent | None:
        history = self.history
        if len(history.running) >= history.slots:
            return None
        waiting = min((min(history.by_state[s]) for s in _WAITING if history.by_state[s]), default=None)
        if waiting is not None:
            trial = history.trials[waiting]
            manifests = [c.manifest for _, c in sorted(trial.checkpoints.items(), reverse=True)]
            return Started(
                t=now, trial=waiting, attempt=len(trial.attempts) + 1,
                until=self._scheduling.first(trial.decided), checkpoints=manifests,
                avoid_spot=trial.evictions >= history.spec.retries.spot and trial.evictions > 0,
            )
        number = len(history.trials)
        if number >= history.total or self._exhausted:
            return None
        proposal = self._sampling.ask(number, seed_for(history.spec.seed, number))
        if proposal is None:
            self._exhausted = True
            return self._close(now)
        return Proposed(t=now, trial=number, config=dict(proposal.config), state=dict(proposal.state))

    def _note_due(self, number: int) -> None:
        trial = self.history.trials[number]
        attempt = trial.attempt
        if attempt and attempt.until is not None and trial.step >= attempt.until and number not in self._due:
            self._due.append(number)

    # ---- what they stand on ----------------------------------------------------------------------------------------

    @property
    def _scheduling(self) -> Scheduler:
        if self._scheduler is None:
            raise LookupError("the log is empty: the experiment was never created")
        return self._scheduler

    @property
    def _sampling(self) -> Sampler:
        """Built at the first proposal, so that reading a log needs no sampler's library."""
        if self._sampler is None:
            spec = self.history.spec
            self._sampler = samplers.make(spec.search, spec.space, spec.objective.mode)
        for result in self._untold:
            self._sampler.tell(result)
        self._untold.clear()
        return self._sampler

    def _kept(self, trial: Trial) -> set[int]:
        """Steps of the checkpoints that retention keeps: the last ones, and the best by the objective at their step."""
        policy, spec = self.history.spec.checkpoint, self.history.spec
        steps = sorted(trial.checkpoints)
        sign = -1.0 if spec.objective.mode == "max" else 1.0
        by_value = sorted(steps, key=lambda s: (sign * self._value_at(trial, s), s))
        return set(steps[-policy.keep_last :]) | set(by_value[: policy.keep_best])

    def _value_at(self, trial: Trial, step: int) -> float:
        value = trial.rows[step - 1].metrics[self.history.objective.name]
        if value is None:
            raise LookupError(f"trial {trial.number} has no objective at step {step}")
        return value

    def _result(self, trial: Trial) -> Result:
        name = self.history.objective.name
        return Result(
            number=trial.number,
            config=trial.config,
            state=trial.proposal_state,
            status=_TOLD.get(trial.state, "running"),
            value=trial.best[0] if trial.best else None,
            intermediate=[(r.step, v) for r in trial.rows if (v := r.metrics.get(name)) is not None],
        )
