"""An experiment as an Optuna study: for Optuna's figures, dashboard and other tools. Read-only.

What Optuna cannot represent is stored in attributes: `regrow.notes` of the study, `regrow.state`
and others of a trial. Imported inside of functions only, as importing Optuna takes half a second.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    json_to_distribution,
)
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from regrow.infra.state.places import Places
from regrow.search import samplers
from regrow.search.constraints import Constraint
from regrow.search.history import History, TrialRecord, repeats
from regrow.search.lifecycle import TrialState as State
from regrow.search.samplers.define_by_run_model import CONSTRAINTS
from regrow.search.samplers.optuna_private import contains
from regrow.search.samplers.optuna_study_model import quiet
from regrow.search.samplers.tpe_axes import axis
from regrow.search.space import Parameter
from regrow.search.space.domains import Choice, Constant, Domain, Float, Json, Normal
from regrow.show.views import summaries

_FARTHEST_SD = 5.0
"""Optuna has no normal distribution: the exported range is the mean plus and minus this many
standard deviations, extended to all proposed values.
"""
_MOST_CELLS = 10**7
"""Of more steps Optuna takes many of its own values for none, by their rounding: it gets a range
without steps, as it does where it takes a tried one for none.
"""
_CONSTRAINTS = "constraints"
"""Attribute in which optuna-dashboard looks for a list of violations."""
_MOST = sys.float_info.max
"""Replaces an infinite violation: JSON has none, optuna-dashboard could not read it."""


def study(
    history: History,
    *,
    storage: str | None = None,
    name: str | None = None,
    places: Places | None = None,
) -> optuna.Study:
    """Return the experiment as a new study called `name` (None: as the experiment) in `storage`, an
    SQLAlchemy URL (None: in memory).

    Trial n is Optuna's trial n. Its value is its best one of the objective or, if there are several
    metrics, all of them at its last step; intermediate values are the objective by step; times are
    local. `places` completes addresses of checkpoints. Raises UserError if the storage cannot be
    used, or already has a study of that name.
    """
    modes = [
        StudyDirection.MINIMIZE if m.mode == "min" else StudyDirection.MAXIMIZE
        for m in history.spec.metrics
    ]
    with quiet():
        memory = optuna.storages.InMemoryStorage()
        made = optuna.create_study(
            study_name=name or history.spec.name, directions=modes, storage=memory
        )
        made.set_metric_names([metric.name for metric in history.spec.metrics])
        for key, value in _about(history).items():
            made.set_user_attr(key, value)
        made.add_trials(Frozen(history, places).all())
        if storage is None:
            return made
        from regrow.show.exports.optuna_database import copy

        return copy(made, memory, storage)


def _about(history: History) -> dict[str, Json]:
    spec = history.spec
    found = repeats.best(history)
    best = None if found is None else found.trial
    constants = {p.name: p.domain.cell(0) for p in spec.space.flat if _always(p)}
    about = {
        "regrow.experiment": spec.name,
        "regrow.id": history.id,
        "regrow.search": spec.search,
        "regrow.schedule": spec.schedule,
        "regrow.best_trial": None if best is None else best.number,
        "regrow.constants": constants,
        "regrow.constraints": list(spec.constraints),
        "regrow.notes": list(_notes(history, best)),
    }
    return {key: value for key, value in about.items() if value not in (None, {}, [])}


def _notes(history: History, best: TrialRecord | None) -> Iterator[str]:
    """Yield what the study cannot represent, or represents differently from regrow."""
    if best is not None and best.state is not State.DONE:
        yield (
            f"the best value is that of trial {best.number}, which is {best.state.value}: Optuna's"
            " best trial is a complete one"
        )
    if any(trial.changes for trial in history.trials):
        yield (
            "parameters are those proposed; what the schedule changed of them later is in the"
            " attribute regrow.changes"
        )
    if normal := [p.name for p in history.spec.space.flat if isinstance(p.domain, Normal)]:
        yield f"normally distributed, which Optuna cannot express: {', '.join(normal)}"
    if history.spec.warm_start or any(point.metrics is not None for point in history.spec.points):
        yield "results that were known before (warm starts, points with metrics) are not in it"


def _external(parameter: Parameter, distribution: BaseDistribution, value: Json) -> Json:
    match parameter.domain:
        case Choice() as domain:
            assert isinstance(distribution, CategoricalDistribution)
            return distribution.choices[domain.index(value)]
        case Constant():
            assert isinstance(distribution, CategoricalDistribution)
            return distribution.choices[0]
        case Float(step=float()) as domain:
            return domain.cell(domain.nearest(value))
    return value


def _distribution(parameter: Parameter, configs: Iterable[Mapping[str, Json]]) -> BaseDistribution:
    domain: Domain = parameter.domain
    match domain:
        case Choice():
            return CategoricalDistribution(_choices(domain.values))
        case Constant():
            return CategoricalDistribution(_choices((domain.value,)))
        case Normal():
            tried = [config[parameter.name] for config in configs if parameter.name in config]
            far = _FARTHEST_SD * domain.sd
            low, high = min([domain.mean - far, *tried]), max([domain.mean + far, *tried])
            return FloatDistribution(float(low), float(high))
        case Float() if (domain.cells or 0) > _MOST_CELLS:
            return FloatDistribution(domain.low, domain.high)
    made = axis(domain).distribution
    if isinstance(domain, Float) and domain.step is not None:
        values = (config[parameter.name] for config in configs if parameter.name in config)
        if not all(contains(made, _external(parameter, made, value)) for value in values):
            return FloatDistribution(domain.low, domain.high)
    return made


def _choices(values: tuple[Json, ...]) -> list[Any]:
    """Return a choice's values; as JSON where == does not tell them apart, as 1 and True."""
    plain = all(value is None or isinstance(value, bool | int | float | str) for value in values)
    if plain and len(set(values)) == len(values):
        return list(values)
    return [json.dumps(value) for value in values]


def _always(parameter: Parameter) -> bool:
    """Return whether it is the same in every trial, and therefore not a parameter for Optuna."""
    return isinstance(parameter.domain, Constant) and not parameter.when


class Frozen:
    """Converts a history's trials to Optuna's. `plain`: only with the user's attributes."""

    def __init__(self, history: History, places: Places | None, *, plain: bool = False) -> None:
        self._plain = plain
        self._history, self._spec, self._places = history, history.spec, places
        self._limits: tuple[Constraint, ...] = history.limits
        configs = [trial.proposed for trial in history.trials]
        self._axes = [
            (p, _distribution(p, configs)) for p in self._spec.space.flat if not _always(p)
        ]
        self._metrics = self._spec.metrics

    def all(self) -> Iterator[FrozenTrial]:
        """Yield all of them, by number."""
        return map(self.one, self._history.trials)

    def one(self, trial: TrialRecord) -> FrozenTrial:
        """Convert one of them in its current state."""
        state, values = self._end(trial)
        asked = {
            name: json_to_distribution(json.dumps(one)) for name, one in trial.suggested.items()
        }
        asked = {name: one for name, one in asked.items() if contains(one, trial.config[name])}
        active = [(p, one) for p, one in self._axes if p.name in trial.proposed]
        step = summaries.representative_step(self._history, trial)
        begun = None
        if trial.attempts:
            first = trial.attempts[0]
            begun = first.t_started if first.t_began is None else first.t_began
        ended = max((a.t_ended for a in trial.attempts if a.t_ended is not None), default=begun)
        return FrozenTrial(
            number=trial.number,
            trial_id=trial.number,
            state=state,
            value=None,
            values=values,
            datetime_start=(
                None
                if begun is None or state is TrialState.WAITING
                else datetime.fromtimestamp(begun)  # noqa: DTZ006 - Optuna's times are local, without a zone
            ),
            datetime_complete=(
                datetime.fromtimestamp(ended) if ended is not None and state.is_finished() else None  # noqa: DTZ006 - Optuna's times are local, without a zone
            ),
            params={p.name: _external(p, one, trial.proposed[p.name]) for p, one in active}
            | {name: trial.config[name] for name in asked},
            distributions={p.name: one for p, one in active} | asked,
            user_attrs=self._attributes(trial, step),
            system_attrs=self._violations(trial, step),
            intermediate_values=self._intermediate(trial),
        )

    def _intermediate(self, trial: TrialRecord) -> dict[int, float]:
        """Return the objective by step, as the trainable counts steps. The return value of an
        Optuna objective is not a step and is excluded.
        """
        if (clock := self._spec.clock) is None:
            return dict(enumerate(trial.values, start=1))
        returned = samplers.suggests(self._spec.search) and trial.state is State.DONE
        steps = [clock.value(time) for time in trial.curve.clock]
        return dict(zip(steps[: len(steps) - returned], trial.values, strict=False))

    def _end(self, trial: TrialRecord) -> tuple[TrialState, list[float] | None]:
        """Return state and values. Done without a comparable value is failed for Optuna."""
        values = self._values(trial)
        match trial.state:
            case State.DONE:
                return (TrialState.FAIL, None) if values is None else (TrialState.COMPLETE, values)
            case State.STOPPED:
                return TrialState.PRUNED, values
            case State.FAILED:
                return TrialState.FAIL, None
        return TrialState.RUNNING if trial.attempts else TrialState.WAITING, None

    def _values(self, trial: TrialRecord) -> list[float] | None:
        row = trial.curve.metrics(summaries.representative_step(self._history, trial))
        values = [value for metric in self._metrics if (value := row.get(metric.name)) is not None]
        return values if len(values) == len(self._metrics) else None

    def _violations(self, trial: TrialRecord, step: int) -> dict[str, Json]:
        """Return the violations as a list, which Optuna reads, too (`FrozenTrial.constraints`)."""
        if noted := trial.attributes.get(CONSTRAINTS):
            # From a `constraints_func`; Optuna expects a list.
            if [*noted] == list(map(str, range(len(noted)))):
                return {_CONSTRAINTS: list(noted.values())}
            return {f"{_CONSTRAINTS}:{name}": violation for name, violation in noted.items()}
        if not self._limits or not step:
            return {}
        row = trial.curve.metrics(step)
        return {_CONSTRAINTS: [min(limit.violation(row), _MOST) for limit in self._limits]}

    def _attributes(self, trial: TrialRecord, step: int) -> dict[str, Json]:
        last = trial.attempts[-1] if trial.attempts else None
        nodes = [a.where for a in trial.attempts if a.where]
        found: dict[str, Any] = {
            "regrow.state": trial.state.value,
            "regrow.attempts": len(trial.attempts),
            "regrow.steps": trial.step,
            "regrow.value_at_step": step or None,
            "regrow.node": nodes[-1] if nodes else None,
            "regrow.reason": last.message if last is not None else None,
            "regrow.checkpoint": summaries.checkpoint(self._history, trial, self._places),
            "regrow.changes": [
                {
                    "after_step": c.step,
                    "config": c.config,
                    **({} if c.source is None else {"weights_of": c.source}),
                }
                for c in trial.changes
            ],
        }
        known = {} if self._plain else {k: v for k, v in found.items() if v not in (None, "", [])}
        own = {k: v for k, v in trial.attributes.items() if not k.startswith("optuna:")}
        return own | known
