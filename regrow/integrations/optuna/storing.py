"""A storage of Optuna's that a script names: its trials are taken over at the start, and what the
study ran since is copied to it. The study itself is in the state root.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.logging import get_logger
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from regrow.integrations.optuna.objects import described
from regrow.integrations.optuna.running import any_choices, logged
from regrow.search.samplers.optuna_study_model import quiet
from regrow.tasks.process.addresses import redacted


class Storage:
    """One study of a storage: an address, or an object of `optuna.storages`."""

    def __init__(self, storage: Any, name: str) -> None:
        self._storage, self._name = storage, name
        self._study: optuna.Study | None = None
        if name in optuna.get_all_study_names(storage):
            self._study = optuna.load_study(study_name=name, storage=storage)

    @classmethod
    def of(cls, storage: Any, name: str) -> Storage | None:
        """Return the study's place in a storage; None without one. Raises what Optuna raises for a
        storage that cannot be used.
        """
        return None if storage is None else cls(storage, name)

    @property
    def exists(self) -> bool:
        """Whether the storage has the study."""
        return self._study is not None

    def begin(self, directions: Sequence[StudyDirection]) -> list[StudyDirection]:
        """Create the study there unless it is there, and return its directions."""
        known = len(self.trials())
        where = redacted(self._storage) if isinstance(self._storage, str) else "the storage"
        taken = f"its {known} trials are taken over from {where}" if known else f"copied to {where}"
        get_logger("optuna.study").info(
            f"storage: the study {self._name} is kept in the state of regrow; {taken}, and new ones"
            " are added there after each optimize"
        )
        return self._made(directions).directions

    def trials(self) -> list[FrozenTrial]:
        """Return the trials that it has there."""
        return [] if self._study is None else self._study.get_trials(deepcopy=False)

    def add(self, trials: Sequence[FrozenTrial], attributes: Mapping[str, Any]) -> None:
        """Copy the attributes, and the trials that are not there, up to the first that runs. Called
        after `begin`.
        """
        study = self._made(())
        for key, value in attributes.items():
            study.set_user_attr(key, _plain(value))
        for trial in trials[len(self.trials()) :]:
            if not trial.state.is_finished():
                return
            study.add_trial(_portable(trial))

    def delete(self) -> None:
        """Delete the study there, if it is there."""
        if self._study is not None:
            optuna.delete_study(study_name=self._name, storage=self._storage)

    def _made(self, directions: Sequence[StudyDirection]) -> optuna.Study:
        if self._study is None:
            with quiet():
                self._study = optuna.create_study(
                    study_name=self._name, storage=self._storage, directions=directions
                )
        return self._study


def _portable(trial: FrozenTrial) -> FrozenTrial:
    """Return a trial with what a database can hold: other objects as text."""
    found = copy.copy(trial)
    found.user_attrs = {key: _plain(value) for key, value in trial.user_attrs.items()}
    found.distributions, found.params = dict(trial.distributions), dict(trial.params)
    for name, distribution in trial.distributions.items():
        if isinstance(distribution, CategoricalDistribution):
            found.distributions[name] = any_choices([logged(one) for one in distribution.choices])
            found.params[name] = logged(trial.params[name])
    return found


def _plain(value: Any) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return described(value)
