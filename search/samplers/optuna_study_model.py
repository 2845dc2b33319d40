"""The study behind `optuna_study.py`: results as Optuna's trials.

An Optuna sampler keeps state in three places: its own attributes (lost, since it is made again),
attributes of the trial that it proposes, and attributes of the study (NSGA's parents of a
generation). The last two come back in the proposal's state, so the study before a proposal is a
function of the results.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from regrow.search.mode import Mode, sign_of
from regrow.search.samplers.base import Result
from regrow.search.samplers.cube import modelled
from regrow.search.samplers.optuna_private import OneStudy, generation_key
from regrow.search.samplers.result_rules import ended_value, supersedes
from regrow.search.samplers.tpe_axes import Axis, axis
from regrow.search.space.domains import Json
from regrow.search.space.setting import Setting

STUDY = "regrow"


class StudyModel:
    """The results so far, and the trials to propose from them."""

    def __init__(
        self, setting: Setting, make: Callable[[int], BaseSampler], *, stopped_count: bool
    ) -> None:
        self._setting, self.make, self._stopped_count = setting, make, stopped_count
        self.modes = setting.modes
        self._domains = {p.name: p.domain for p in modelled(setting.space)}
        self._axes = {name: axis(domain) for name, domain in self._domains.items()}
        self._results: dict[int, Result] = {}
        self._changed: set[int] = set()
        self._first = 0
        self._noted: dict[int, Mapping[str, Json]] = {}
        """Attributes that proposals set on the study, by their number."""
        self._storage = StudyStorage(setting.modes)
        with quiet():
            made = make(0)
        # A genetic sampler counts the trials of a generation. Trials that it did not propose belong
        # to the first one.
        key = generation_key(made)
        self._attributes = {} if key is None else {key: 0}
        self._failed = None if key is None else [math.inf * sign_of(mode) for mode in self.modes]
        """Values of a failed trial. Before it failed after a pause, or the user dropped it, a
        genetic sampler may have made it a parent of later generations.
        """

    def tell(self, result: Result) -> None:
        """Add a result. The most informative result of a trial counts."""
        number = result.number
        if self._supersedes(result, self._results.get(number)):
            self._results[number] = result
            self._changed.add(number)
            if result.state.get("study"):
                self._noted[number] = result.state["study"]

    @contextmanager
    def trial(self, number: int, seed: int) -> Iterator[ProposedTrial]:
        """Open a trial to suggest parameters for, in the order of `Space.flat`."""
        with self.opened(number) as storage, quiet():
            before = storage.get_study_system_attrs(0)
            study = optuna.Study(STUDY, storage, self.make(seed), optuna.pruners.NopPruner())
            yield ProposedTrial(study, self._axes, storage, dict(before))

    @contextmanager
    def opened(self, number: int) -> Iterator[StudyStorage]:
        """Open the study at a trial's place, where it may be put; restored after the block."""
        self._settle(number)
        attributes: dict[str, Json] = {}
        for other in sorted(self._noted):
            if other != number:
                attributes.update(self._noted[other])
        self._storage.open(number - self._first, attributes)
        try:
            yield self._storage
        finally:
            self._storage.close()

    def _supersedes(self, result: Result, before: Result | None) -> bool:
        return supersedes(result, before)

    def _settle(self, number: int) -> None:
        """Bring the study's trials up to date with the results. Trial n has the place n, after the
        earlier results; a number without a result is a failed trial.
        """
        first = min(0, min(self._changed, default=0))
        if first < self._first:
            self._first = first
            self._changed = set(self._results)
        self._storage.fill(number - self._first)
        for other in sorted(self._changed):
            self._storage.put(self._frozen(self._results[other], other - self._first))
        self._changed.clear()

    def _frozen(self, result: Result, place: int) -> FrozenTrial:
        """Return the result as a trial of Optuna."""
        state, values = self._end(result)
        kept = {name: self._axes[name] for name in self._axes if name in result.config}
        if state is TrialState.FAIL and not (self._failed and self._fits(result)):
            kept = {}
        distributions = {name: a.distribution for name, a in kept.items()}
        params = {
            name: a.distribution.to_external_repr(a.coordinate(result.config[name]))
            for name, a in kept.items()
        }
        attributes = dict(result.state.get("trial", {})) if result.state else dict(self._attributes)
        one = len(self._setting.modes) == 1
        trial = frozen(
            place,
            state,
            values=values,
            params=params,
            distributions=distributions,
            system_attrs=attributes,
            intermediate_values=dict(result.intermediate) if one else {},
        )
        for i, violation in enumerate(result.violations):
            if not math.isnan(violation):  # NaN in a failed trial
                trial.set_constraint(str(i), violation)
        return trial

    def _end(self, result: Result) -> tuple[TrialState, list[float] | None]:
        """Return state and values. FAIL if it cannot be compared with other trials."""
        nothing = TrialState.FAIL, self._failed
        if result.status == "failed" or not self._fits(result):
            return nothing
        if result.status == "running":
            return TrialState.RUNNING, None
        violations = result.violations
        if len(violations) != self._setting.constraints or any(map(math.isnan, violations)):
            return nothing
        if len(self._setting.modes) > 1:
            known = result.values is not None and len(result.values) == len(self._setting.modes)
            values = list(result.values or ()) if known else [math.nan]
        else:
            stopped = replace(result, status="stopped") if result.status == "paused" else result
            value = ended_value(stopped)
            if result.status in ("stopped", "paused") and not self._stopped_count:
                return TrialState.PRUNED, None if value is None else [value]
            values = [math.nan if value is None else value]
        return nothing if any(map(math.isnan, values)) else (TrialState.COMPLETE, values)

    def _fits(self, result: Result) -> bool:
        """Return whether its parameters are the space's; earlier results' may be others."""
        config = result.config
        active = [name for name in self._setting.space.active(config) if name in self._domains]
        present = [name for name in self._domains if name in config]
        return active == present and all(
            self._domains[name].contains(config[name]) for name in active
        )


class ProposedTrial:
    """One Optuna trial, in terms of our domains."""

    def __init__(
        self,
        study: optuna.Study,
        axes: Mapping[str, Axis],
        storage: StudyStorage,
        before: Mapping[str, Json],
    ) -> None:
        self._trial = study.ask()
        self._axes, self._storage, self._before = axes, storage, before

    def suggest(self, name: str) -> Json:
        """Return the value of a parameter that is neither a constant nor under `grid`."""
        return self._axes[name].suggest(self._trial, name)

    @property
    def together(self) -> dict[str, Any]:
        """The values that the sampler draws at once, by parameter."""
        return self._trial.relative_params

    @property
    def noted(self) -> dict[str, Json]:
        """Attributes that the sampler set on the trial, such as the coordinates drawn at once."""
        return dict(self._storage.opened.system_attrs)

    @property
    def state(self) -> dict[str, Json]:
        """Attributes that the sampler set on the trial and on the study."""
        study, before = self._storage.get_study_system_attrs(0), self._before
        new = {k: v for k, v in study.items() if k not in before or before[k] != v}
        noted = {"trial": self.noted, "study": new}
        return {key: attributes for key, attributes in noted.items() if attributes}


class StudyStorage(OneStudy):
    """A storage of one study whose trials are set at their places, and in which one trial at a time
    is open for a proposal.

    Optuna's own can only append, and never removes a trial that was asked for.
    """

    def __init__(self, modes: tuple[Mode, ...]) -> None:
        super().__init__()
        with quiet():
            self.create_new_study(
                [StudyDirection.MINIMIZE if m == "min" else StudyDirection.MAXIMIZE for m in modes],
                STUDY,
            )
        self._open = 0
        self._under: FrozenTrial | None = None

    def fill(self, count: int) -> None:
        """Add failed trials until there are `count` trials."""
        for place in range(len(self.all_trials), count):
            super().put(frozen(place, TrialState.FAIL))

    @property
    def opened(self) -> FrozenTrial:
        """The open trial."""
        return self.all_trials[self._open]

    def put(self, trial: FrozenTrial) -> None:
        """Set the trial at the place of its number."""
        self.fill(trial.number)
        super().put(trial)

    def open(self, place: int, attributes: Mapping[str, Json]) -> None:
        """Let the next new trial take this place; set the study's attributes."""
        self._open = place
        self._under = self.all_trials[place] if place < len(self.all_trials) else None
        self.note(attributes)

    def close(self) -> None:
        """Remove the trial that was opened."""
        if self._under is not None:
            self.all_trials[self._open] = self._under
        else:
            del self.all_trials[self._open :]

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Create a trial at the open place."""
        self.put(frozen(self._open, TrialState.RUNNING))
        return self._open


def frozen(place: int, state: TrialState, **known: Any) -> FrozenTrial:
    """Return a trial of Optuna. Its times are not used here."""
    empty: dict[str, Any] = {
        "params": {},
        "distributions": {},
        "system_attrs": {},
        "intermediate_values": {},
    }
    return FrozenTrial(
        number=place,
        trial_id=place,
        state=state,
        value=None,
        datetime_start=None,
        datetime_complete=None,
        user_attrs={},
        **(empty | known),
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Optuna's messages and warnings (about experimental options, infinite values), which
    would come with every proposal. The log level itself belongs to the user's process and is
    restored.
    """
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
