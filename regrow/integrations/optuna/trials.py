"""A study's trials as the script reads them: Optuna's, with the objects that went in."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any

from optuna.distributions import (
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    json_to_distribution,
)
from optuna.trial import FrozenTrial, TrialState

from regrow.integrations.optuna.objects import is_filed, value_of
from regrow.integrations.optuna.running import (
    CHOICES,
    INTERMEDIATE,
    SYSTEM,
    any_choices,
    finite,
    place,
)
from regrow.search.history import History, TrialRecord
from regrow.show.exports.optuna_study import Frozen
from regrow.tasks.ports.store import Store

_INFINITE = {finite(value): value for value in (math.inf, -math.inf)}


class Attributes(dict[str, Any]):
    """Attributes of a trial. Those that are kept as files are loaded when they are first read."""

    def __init__(self, known: Mapping[str, Any], filed: Mapping[str, partial[Any]]) -> None:
        super().__init__({**known, **dict.fromkeys(filed)})
        self._filed = dict(filed)

    def __getitem__(self, key: str) -> Any:
        if key in self._filed:
            super().__setitem__(key, self._filed.pop(key)())
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()  # without it, dict(self) and {**self} copy what is not loaded

    def __setitem__(self, key: str, value: Any) -> None:
        self._filed.pop(key, None)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._filed.pop(key, None)
        super().__delitem__(key)

    # those of dict do not call __getitem__
    get = MutableMapping.get  # type: ignore[assignment]  # overloads of the same signature
    pop = MutableMapping.pop
    popitem = MutableMapping.popitem
    setdefault = MutableMapping.setdefault

    def copy(self) -> dict[str, Any]:
        return self._all()

    def __or__(self, other: Any) -> Any:
        return self._all() | other

    def items(self) -> Any:
        return self._all().items()

    def values(self) -> Any:
        return self._all().values()

    def __repr__(self) -> str:
        return repr(self._all())

    def __eq__(self, other: object) -> bool:
        return self._all() == other

    __hash__ = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Attributes:
        known = {key: dict.__getitem__(self, key) for key in self if key not in self._filed}
        return Attributes(copy.deepcopy(known, memo), self._filed)

    def _all(self) -> dict[str, Any]:
        return {key: self[key] for key in self}


class Trials:
    """The trials of a history, with choices, attributes and values as the objective had them.
    `texts`: with choices as the log has them.
    """

    def __init__(self, history: History, store: Store, *, texts: bool = False) -> None:
        self._history, self._store, self._texts = history, store, texts
        self._frozen = Frozen(history, None, plain=True)

    def __iter__(self) -> Iterator[FrozenTrial]:
        """Yield them by number, up to the last one that has begun."""
        records = self._history.trials
        begun = [
            trial.number
            for trial in records
            if any(attempt.t_began is not None for attempt in trial.attempts)
        ]
        return map(self.one, records[: 1 + max(begun, default=-1)])

    def one(self, trial: TrialRecord) -> FrozenTrial:
        """Return one of them in its current state."""
        found = self._frozen.one(trial)
        self._restore_numbers(found, trial)
        if not self._texts:
            self._restore_choices(found, trial.attributes.get(CHOICES))
        found.user_attrs = self._attributes(trial.number, found.user_attrs)
        of_sampler, noted = trial.proposal_state.get("trial", {}), trial.attributes.get(SYSTEM)
        found.system_attrs |= of_sampler if isinstance(of_sampler, dict) else {}
        for key, one in noted.items() if isinstance(noted, dict) else ():
            found.system_attrs[key] = value_of(one, self._store, trial.number)
        if found.values is not None:
            found.values = [_INFINITE.get(value, value) for value in found.values]
        more = trial.attributes.get(INTERMEDIATE)
        if isinstance(more, dict):
            known = {int(step): float(value) for step, value in more.items()}
            found.intermediate_values = dict(sorted((found.intermediate_values | known).items()))
        if found.state is TrialState.PRUNED and found.last_step is not None:
            last = found.intermediate_values[found.last_step]
            found.values = None if math.isnan(last) else [last]
        return found

    def _restore_numbers(self, found: FrozenTrial, trial: TrialRecord) -> None:
        """Have all parameters in the order of the suggestions, as numbers of their kinds: also
        those that the user gave and that are out of range.
        """
        for name, form in trial.suggested.items():
            distribution = json_to_distribution(json.dumps(form))
            value = trial.config[name]
            if isinstance(distribution, FloatDistribution | IntDistribution):
                try:
                    kind = float if isinstance(distribution, FloatDistribution) else int
                    value = kind(value)
                except (TypeError, ValueError):  # the user gave something else
                    continue
            elif name not in found.params:
                continue
            found.params[name] = value
            found.distributions[name] = distribution
        order = [name for name in trial.suggested if name in found.params]
        found.params = {name: found.params[name] for name in order}
        found.distributions = {name: found.distributions[name] for name in order}

    def _restore_choices(self, trial: FrozenTrial, forms: Any) -> None:
        """Put the objects in the place of their texts."""
        for name, listed in forms.items() if isinstance(forms, dict) else ():
            texts: Any = trial.distributions.get(name)
            if not isinstance(texts, CategoricalDistribution) or not isinstance(listed, list):
                continue
            objects = [value_of(one, self._store, trial.number) for one in listed]
            if len(objects) != len(texts.choices):
                continue
            trial.params[name] = objects[place(texts.choices, trial.params[name])]
            trial.distributions[name] = any_choices(objects)

    def _attributes(self, number: int, forms: Mapping[str, Any]) -> Attributes:
        filed = {
            key: partial(value_of, one, self._store, number)
            for key, one in forms.items()
            if is_filed(one)
        }
        known = {key: one for key, one in forms.items() if key not in filed}
        return Attributes(
            {key: value_of(one, self._store, number) for key, one in known.items()}, filed
        )
