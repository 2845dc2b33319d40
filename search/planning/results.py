"""The results that samplers get: of trials, of repeats as their mean, and known ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from regrow.search.events import (
    AnyEvent,
    Created,
    Ended,
    Excluded,
    Halted,
    Proposed,
    Retired,
    Revived,
    Suggested,
)
from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState
from regrow.search.measured import Known
from regrow.search.numbers import mean
from regrow.search.samplers.base import Result, Steps
from regrow.search.schedulers.base import FINAL
from regrow.search.spec import Spec

_TEACHING = frozenset({Created, Proposed, Suggested, Retired, Ended, Revived, Excluded, Halted})
"""Events that may add a result, or take one back."""


class Results:
    """The results of an experiment, in the order of its log. The caller passes them to the sampler,
    as that may need the sampler's library.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self.untold: list[Result] = []
        """Results that the sampler does not have yet. The caller passes them on."""

    def apply(self, event: AnyEvent) -> None:
        """Fold in an event, after the history has applied it."""
        if type(event) not in _TEACHING:
            return
        match event:
            case Created():
                self._begin(event)
            case Proposed() | Suggested() | Retired():
                self._add(self._history.trials[event.trial])
            case Ended() | Halted():
                trial = self._history.trials[event.trial]
                if trial.held or trial.state.final:
                    self._add(trial)
            case Revived():
                trial = self._history.trials[event.trial]
                self._revived(trial)
                if trial.state.final:
                    self._add(trial)
            case Excluded():
                self._anew()
            case _:
                pass

    def _anew(self) -> None:
        """Add all results once more, for a new sampler, without those of excluded trials."""
        history, repeats = self._history, self._history.spec.repeats
        self.untold = []
        if history.created is not None:
            self._begin(history.created)
        for trial in history.trials:
            if trial.number % repeats == 0:
                self.untold.append(replace(_begun(self.of(trial)), number=trial.number // repeats))
            last = trial.number % repeats == repeats - 1
            if (repeats == 1 or last) and (trial.held or trial.state.final):
                self._add(trial)

    def _begin(self, created: Created) -> None:
        """Add what was known before the first trial."""
        every = enumerate(self._all_known(created))
        self.untold += [as_result(-1 - place, known) for place, known in every]

    def _add(self, trial: TrialRecord) -> None:
        """Add the result of a trial; with repeats that of all of them, once they ended."""
        repeats = self._history.spec.repeats
        if repeats == 1:
            self.untold.append(self.of(trial))
            return
        group, place = divmod(trial.number, repeats)
        if trial.state is TrialState.PENDING:
            if place == 0:
                self.untold.append(replace(self.of(trial), number=group))
            return
        trials = self._history.trials[group * repeats : (group + 1) * repeats]
        results = [self.of(one) for one in trials]
        going = any(result.status in ("running", "paused") for result in results)
        if len(results) == repeats and not going:
            revived = sum(result.revived for result in results)
            self.untold.append(replace(_mean(group, results), revived=revived))

    def _revived(self, trial: TrialRecord) -> None:
        """Replace the result of a retried trial, or its configuration's, by a running one."""
        repeats = self._history.spec.repeats
        number = trial.number // repeats
        group = self._history.trials[number * repeats : (number + 1) * repeats]
        revived = sum(one.revived for one in group)
        again = replace(self.of(trial), number=number, status="running", revived=revived)
        self.untold.append(again)

    def _all_known(self, created: Created) -> list[Known]:
        """Return the user's points with metrics, then what is known from earlier experiments."""
        spec = self._history.spec
        points = []
        for place, point in enumerate(spec.points):
            if point.metrics is not None:
                values = [point.metrics[m.name] for m in spec.metrics if m.name in point.metrics]
                known = Known(
                    config=spec.space.point(point.config, f"points.{place}", rounded=False),
                    value=values[0],
                    violations=violations(spec, point.metrics),
                    values=values if len(values) == len(spec.metrics) else None,
                )
                points.append(known)
        return points + list(created.known)

    def running(self) -> list[Result]:
        """Return the results of running trials that have reported something, by number. Empty with
        repeats, whose configurations count as one result.
        """
        trials = [self._history.trials[number] for number in sorted(self._history.running)]
        if self._history.spec.repeats > 1:
            return []
        return [self.of(trial) for trial in trials if trial.step]

    def of(self, trial: TrialRecord) -> Result:
        """Return the current result of one trial; an excluded one has failed, without a value."""
        spec = self._history.spec
        if trial.excluded:
            return Result(
                number=trial.number,
                config=trial.proposed,
                state=trial.proposal_state,
                status="failed",
                revived=trial.revived,
                distributions=trial.suggested,
            )
        last = trial.curve.metrics(trial.step)
        values = [v for m in spec.metrics if (v := last.get(m.name)) is not None]
        return Result(
            number=trial.number,
            config=trial.proposed,
            state=trial.proposal_state,
            status="paused" if trial.held and trial.step else FINAL.get(trial.state, "running"),
            # If no step meets the constraints, the objective is still known.
            value=trial.values[trial.curve.representative - 1] if trial.step else None,
            # a copy: a paused trial may continue before the sampler gets it
            intermediate=self._steps(trial),
            values=tuple(values) if len(values) == len(spec.metrics) > 1 else None,
            violations=tuple(c.violation(last) for c in spec.limits) if trial.step else (),
            revived=trial.revived,
            distributions=trial.suggested,
            attributes=trial.attributes,
        )

    def _steps(self, trial: TrialRecord) -> Sequence[tuple[int, float]]:
        if self._history.spec.step_metric is None:
            return Steps(trial.values[:])
        return list(dict(zip(trial.curve.clock, trial.values, strict=True)).items())


def _begun(result: Result) -> Result:
    """Return the result as it was when the trial was proposed."""
    return replace(
        result, status="running", value=None, intermediate=(), values=None, violations=()
    )


def violations(spec: Spec, metrics: Mapping[str, float | None]) -> list[float | None]:
    """Return by how much each constraint is broken, as `Known` has it: JSON has no infinity."""
    violations = (limit.violation(metrics) for limit in spec.limits)
    return [one if math.isfinite(one) else None for one in violations]


def as_result(number: int, known: Known) -> Result:
    """Return a configuration known before as the result of trial `number`, which is below 0."""
    return Result(
        number=number,
        config=known.config,
        status=known.status,
        value=known.value,
        values=None if known.values is None else tuple(known.values),
        intermediate=[(s, v) for s, v in known.curve],
        violations=tuple(math.inf if one is None else one for one in known.violations),
    )


def _mean(number: int, group: list[Result]) -> Result:
    """Return the mean of a configuration's repeats: the done ones, else the stopped ones."""
    done = [r for r in group if r.status == "done" and r.value is not None]
    part = done or [r for r in group if r.status == "stopped" and r.value is not None]
    if not part:
        return replace(group[0], number=number, status="failed")
    curves = [dict(r.intermediate) for r in part]
    steps = sorted(set.intersection(*map(set, curves)))
    curve = [(step, mean([one[step] for one in curves])) for step in steps]
    several = [r.values for r in part if r.values is not None]
    means = tuple(mean(column) for column in zip(*several, strict=True))
    return Result(
        number=number,
        config=group[0].config,
        state=group[0].state,
        status=part[0].status,
        value=mean([r.value for r in part if r.value is not None]),
        intermediate=curve,
        values=means if len(several) == len(part) else None,
        violations=tuple(max(column) for column in zip(*(r.violations for r in part), strict=True)),
    )
