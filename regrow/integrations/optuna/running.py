"""The trial that an objective gets on the worker: Optuna's interface on our trial."""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    check_distribution_compatibility,
    distribution_to_json,
)
from optuna.pruners import BasePruner
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from regrow.integrations.optuna.objects import NotStorable, described, form, plain_value
from regrow.integrations.optuna.private import TheirTrial
from regrow.search.samplers.define_by_run_model import CONSTRAINTS
from regrow.tasks.errors import UserError
from regrow.tasks.trial.trial import Trial as OurTrial
from regrow.tasks.trial.trial import TrialEnd

_LOG = logging.getLogger("regrow.trial")
CHOICES = "optuna:choices"
"""Attribute of a trial: by parameter, the forms of its choices that are no plain values."""
INTERMEDIATE = "optuna:intermediate"
"""Attribute of a trial: the intermediate values that are not finite, by step, as texts."""
SYSTEM = "optuna:system"
"""Attribute of a trial: what Optuna's own code notes on it, by its names."""
VALUE, STEP = "value", "step"
"""Names of the metrics: the objective of a study with one, and an intermediate value's step."""
_Number = TypeVar("_Number", int, float)
NOT_THERE = {
    "relative_params": "trial.params has the values that were suggested",
}
"""Attributes that would access the sampler."""


class Trial(TheirTrial):
    """See `optuna.trial.Trial`. `last`: a step that no report may reach, None for none. `study`:
    returns the study, as it is then; None: the trial is of no study. `pruner`: what `should_prune`
    asks; None: the scheduler.
    """

    def __init__(
        self,
        ours: OurTrial,
        *,
        several: bool,
        last: int | None,
        study: Callable[[OurTrial], Study] | None = None,
        pruner: BasePruner | None = None,
    ) -> None:
        self._pruner = pruner
        self._ours, self._several, self._last, self._study = ours, several, last, study
        self._started = dt.datetime.now()  # noqa: DTZ005 - Optuna's times are local, without a zone
        self._params: dict[str, Any] = {}
        self._distributions: dict[str, BaseDistribution] = {}
        self._user_attrs: dict[str, Any] = {
            key: plain_value(one) for key, one in ours.attributes.items()
        }
        self._system: dict[str, Any] = dict(ours.attributes.get(SYSTEM, {}))
        self._constraints: dict[str, float] = {}
        self._intermediate: dict[int, float] = {}
        self._choices: dict[str, list[Any]] = {}
        self._infinite: dict[str, str] = {}
        self._pruned = False

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError, which names the alternative."""
        if name in NOT_THERE:
            raise AttributeError(f"trial.{name} is not there: {NOT_THERE[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- parameters

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return float(self.suggest_from(name, FloatDistribution(low, high, log=log, step=step)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        return int(self.suggest_from(name, IntDistribution(low, high, log=log, step=step)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self.suggest_from(name, CategoricalDistribution(tuple(choices)))

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        """Suggest a value, by a method that Optuna deprecated."""
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        """Suggest a value, by a method that Optuna deprecated."""
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        """Suggest a value, by a method that Optuna deprecated."""
        return self.suggest_float(name, low, high, step=q)

    def suggest_from(self, name: str, distribution: BaseDistribution) -> Any:
        """Return the logged value; the coordinator decides it when it is first asked for."""
        if name in self._params:
            before = self._distributions[name]
            check_distribution_compatibility(before, distribution)
            if before != distribution:
                warnings.warn(
                    f'Inconsistent parameter values for distribution with name "{name}"! The values'
                    f" of the first call are used: {before}",
                    RuntimeWarning,
                    stacklevel=3,
                )
            return self._params[name]
        logged = self._ours.suggest(name, written(distribution))
        value = taken(name, distribution, logged)
        self._params[name], self._distributions[name] = value, distribution
        if isinstance(distribution, CategoricalDistribution):
            self._note_choices(name, distribution.choices)
        return value

    def _note_choices(self, name: str, choices: Sequence[Any]) -> None:
        """Record what the texts of choices stand for, so that the script reads the objects."""
        if all(_is_plain(choice) for choice in choices):
            return
        kept: list[Any] = []
        for number, choice in enumerate(choices):
            file = f"choices/{printable(name)}/{number}"
            try:
                kept.append(form(choice, file, self._ours.log_file, exact=True))
            except NotStorable as why:
                _LOG.warning(
                    "trial %d: a choice of %r is read back as text: %s", self.number, name, why
                )
                kept.append(described(choice))
        self._choices[name] = kept
        self._ours.note({CHOICES: self._choices})

    # ---- values

    def report(self, value: float, step: int) -> None:
        """Report an intermediate value; a second one of a step is ignored, with a warning."""
        if self._several:
            raise NotImplementedError(
                "Trial.report is not supported for multi-objective optimization."
            )
        value, step = _as(float, "value", value), _as(int, "step", step)
        if step < 0:
            raise ValueError(f"`{step=}` must be non-negative.")
        if step in self._intermediate:
            warnings.warn(
                f"The reported value is ignored because this `{step=}` is already reported.",
                stacklevel=2,
            )
            return
        self._intermediate[step] = value
        if not math.isfinite(value):
            self._infinite[str(step)] = str(value)
            self._ours.note({INTERMEDIATE: self._infinite})
        if self._pruned or not math.isfinite(value):
            return
        try:
            self._ours.report(
                {VALUE: value, STEP: step if self._last is None else min(step, self._last)}
            )
        except TrialEnd:
            if self._ours.told != "stopped":
                raise
            self._pruned = True

    def should_prune(self) -> bool:
        """Return whether the scheduler, or the pruner, has decided that the trial ends."""
        if self._several:
            raise NotImplementedError(
                "Trial.should_prune is not supported for multi-objective optimization."
            )
        if self._pruned or self._ours.told == "stopped":
            return True
        if self._pruner is None:
            return False
        return bool(self._pruner.prune(self.study, self.frozen(TrialState.RUNNING, None)))

    # ---- attributes

    def set_user_attr(self, key: str, value: Any) -> None:
        """Set an attribute of the trial. What JSON cannot represent becomes a file of the trial, or
        a text if that is not possible; a line in the trial's log says why.
        """
        self._user_attrs[key] = value
        self._ours.note({key: self._form(key, value)})

    def set_system_attr(self, key: str, value: Any) -> None:
        """Set an attribute as Optuna's own code does: for artifacts and terminators. Kept as those
        of the user.
        """
        self._system[key] = self._form(key, value.tolist() if hasattr(value, "tolist") else value)
        self._ours.note({SYSTEM: self._system})

    def _form(self, key: str, value: Any) -> Any:
        try:
            return form(value, f"attributes/{printable(key)}", self._ours.log_file, exact=False)
        except NotStorable as why:
            _LOG.warning("trial %d: the attribute %r is kept as a text: %s", self.number, key, why)
            return described(value)

    @property
    def system_attrs(self) -> dict[str, Any]:
        return {key: plain_value(one) for key, one in self._system.items()}

    @property
    def storage(self) -> TrialStorage:
        """What Optuna's code uses of a storage for one trial."""
        return TrialStorage(self)

    def set_constraint(self, key: str, value: float) -> None:
        """Set by how much a constraint is violated; 0 or less if it is met."""
        value = _as(float, "value", value)
        if math.isnan(value):
            raise ValueError(f"Attempted to set a constraint for {key!r}, but NaN is not allowed.")
        if key in self._constraints:
            warnings.warn(
                f"The constraint value is ignored because this constraint `{key=}` is already set.",
                stacklevel=2,
            )
            return
        self._constraints[key] = value
        noted = {name: finite(one) for name, one in self._constraints.items()}
        self._ours.note({CONSTRAINTS: noted})

    def frozen(self, state: TrialState, values: Sequence[float] | None) -> FrozenTrial:
        """Return its current state."""
        made = FrozenTrial(
            number=self.number,
            trial_id=self.number,
            state=state,
            value=None,
            values=values,
            datetime_start=self._started,
            datetime_complete=None,
            params=dict(self._params),
            distributions=dict(self._distributions),
            user_attrs=dict(self._user_attrs),
            system_attrs=self.system_attrs,
            intermediate_values=dict(self._intermediate),
        )
        for key, value in self._constraints.items():
            made.set_constraint(key, value)
        return made

    @property
    def study(self) -> Study:
        """The study, with its trials as the log has them now. Raises AttributeError without one."""
        if self._study is None:
            raise AttributeError("trial.study is not there: this trial only defines a space")
        return self._study(self._ours)

    @property
    def number(self) -> int:
        return self._ours.number

    @property
    def params(self) -> dict[str, Any]:
        return dict(self._params)

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        return dict(self._distributions)

    @property
    def user_attrs(self) -> dict[str, Any]:
        return dict(self._user_attrs)

    @property
    def constraints(self) -> dict[str, float]:
        return dict(self._constraints)

    @property
    def datetime_start(self) -> dt.datetime | None:
        """When this attempt began."""
        return self._started


class TrialStorage:
    """The storage of a running trial: its own attributes, and no others."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """See `BaseStorage`. Raises UserError for another trial."""
        self._own(trial_id).set_system_attr(key, value)

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """See `BaseStorage`. Raises UserError for another trial."""
        self._own(trial_id).set_user_attr(key, value)

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        """See `BaseStorage`. Raises UserError for another trial."""
        return self._own(trial_id).system_attrs

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """See `BaseStorage`. Raises UserError for another trial."""
        return self._own(trial_id).frozen(TrialState.RUNNING, None)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"trial.storage.{name} is not there: a study is kept in its log, in no storage of"
            " Optuna's; trial.study has the other trials"
        )

    def _own(self, number: int) -> Trial:
        if number != self._trial.number:
            raise UserError(
                f"trial.storage has trial {self._trial.number} alone, and trial {number} was asked"
                " for; trial.study.trials has the others"
            )
        return self._trial


def written(distribution: BaseDistribution) -> dict[str, Any]:
    """Return a distribution in the log's form."""
    if isinstance(distribution, CategoricalDistribution):
        return {
            "name": "CategoricalDistribution",
            "attributes": {"choices": _plain(distribution.choices)},
        }
    found: dict[str, Any] = json.loads(distribution_to_json(distribution))
    return found


def taken(name: str, distribution: BaseDistribution, logged: Any) -> Any:
    """Return a parameter's value from the log's. Raises ValueError if it is none of the choices."""
    if not isinstance(distribution, CategoricalDistribution):
        if not distribution.low <= logged <= distribution.high:  # type: ignore[attr-defined]  # of both numeric distributions
            warnings.warn(
                f"parameter {name!r} has the value {logged!r}, which is out of range for"
                f" {distribution}",
                stacklevel=4,
            )
        return logged
    try:
        return distribution.choices[place(_plain(distribution.choices), logged)]
    except ValueError:
        raise ValueError(
            f"parameter {name!r} has the value {logged!r}, which is none of"
            f" {list(distribution.choices)}"
        ) from None


def place(choices: Sequence[Any], logged: Any) -> int:
    """Return which of the choices, as the log has them, a logged one is. Raises ValueError."""
    for number, plain in enumerate(choices):
        if type(plain) is type(logged) and plain == logged:
            return number
    raise ValueError(logged)


def any_choices(choices: Sequence[Any]) -> CategoricalDistribution:
    """Return the distribution, without Optuna's warning about choices that are no plain values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return CategoricalDistribution(choices)


def finite(value: float) -> float:
    """Return a number as the log has it: JSON has no infinity."""
    return min(max(value, -sys.float_info.max), sys.float_info.max)


def logged(value: Any) -> Any:
    """Return a parameter's value in the log's form."""
    return _plain([value])[0]


def printable(name: str) -> str:
    """Return a name as a part of the name of a file of the trial."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:60].strip(".") or "_"


def _as(kind: type[_Number], name: str, value: Any) -> _Number:
    """Return a number. Raises TypeError as Optuna does."""
    try:
        return kind(value)
    except (TypeError, ValueError):
        needed = "a float" if kind is float else "an int"
        raise TypeError(
            f"The `{name}` argument is of type '{type(value)}' but supposed to be {needed}."
        ) from None


def _is_plain(choice: Any) -> bool:
    kind = type(choice)
    return kind in (type(None), bool, int, str) or (kind is float and math.isfinite(choice))


def _plain(choices: Sequence[Any]) -> list[Any]:
    """Return choices in the log's form. A choice that is not a plain value is represented by its
    repr without its address, which differs between processes; of equal ones the later are numbered.
    """
    found: list[Any] = []
    for choice in choices:
        if _is_plain(choice):
            found.append(choice)
        else:
            text = described(choice)
            found.append(text if text not in found else f"{text} ({len(found)})")
    return found
