"""A study's trials in memory, for Optuna's code."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from regrow.integrations.optuna.private import numbered
from regrow.search.history import History
from regrow.search.history.records import ATTRIBUTES
from regrow.search.planning.suggesting import FIXED
from regrow.search.samplers.optuna_private import OneStudy
from regrow.search.samplers.optuna_study_model import frozen, quiet


class Mirror(OneStudy):
    """The study's trials in memory, for Optuna's code; the log is authoritative."""

    def __init__(self, name: str, directions: Sequence[StudyDirection]) -> None:
        super().__init__()
        with quiet():
            self.create_new_study(directions, name)
        self.keep: Callable[[str, Any], object] | None = None
        """Keeps what Optuna's code notes on the study; None: it is known to this process alone."""
        self.waiting: Callable[[], Sequence[FrozenTrial]] = tuple
        """Returns the trials that the log does not have as they are now: running ones of this
        process, and those that wait for their turn, without numbers.
        """

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """See `BaseStorage`; kept, if there is a place for it."""
        super().set_study_system_attr(study_id, key, value)
        if self.keep is not None:
            self.keep(key, value)

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """See `BaseStorage`."""
        found = super().get_all_trials(study_id, deepcopy=deepcopy)
        for trial in self.waiting():
            if trial.state is TrialState.WAITING:
                found.append(numbered(trial, len(found)))
            elif trial.number < len(found):
                found[trial.number] = trial
        return [one for one in found if states is None or one.state in states]

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Add a running trial."""
        place = len(self.all_trials)
        self.put(frozen(place, TrialState.RUNNING))
        return place

    def replace_all(self, trials: Iterable[FrozenTrial]) -> None:
        """Replace all trials by their current state."""
        del self.all_trials[:]
        for trial in trials:
            self.put(trial)


def enqueued(state: Mapping[str, Any]) -> FrozenTrial:
    """Return the trial that waits with the user's values; `state`: see `suggesting.py`."""
    return create_trial(
        state=TrialState.WAITING,
        system_attrs=fixed_params(state),
        user_attrs=state.get(ATTRIBUTES, {}),
    )


def fixed_params(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's values as Optuna's attribute of a trial; empty for none."""
    return {"fixed_params": state[FIXED]} if FIXED in state else {}


def directions_of(history: History) -> list[StudyDirection]:
    """Return the directions of a study's values."""
    return [
        StudyDirection.MINIMIZE if one.mode == "min" else StudyDirection.MAXIMIZE
        for one in history.spec.metrics
    ]
