"""State of estimators that learn step by step: `state = State(model)`, then `trial.report(...,
checkpoint=state.save)`.
"""

from __future__ import annotations

from pathlib import Path

import joblib
from sklearn.base import BaseEstimator

from regrow.tasks.errors import UserError

_FILE = "{}.joblib"


class State:
    """Estimators, each saved completely by joblib: `State(model)`, or several."""

    def __init__(self, *estimators: BaseEstimator) -> None:
        self._estimators = estimators

    def save(self, folder: Path) -> None:
        """Write a file for each: `trial.report(..., checkpoint=state.save)`."""
        for number, estimator in enumerate(self._estimators):
            joblib.dump(estimator, folder / _FILE.format(number))

    def load(self, folder: Path) -> None:
        """Restore what each had learned: `if trial.restored: state.load(trial.restored)`.

        Constructor parameters are not restored, so that a clone of population-based training keeps
        its new ones. Raises UserError if another kind of estimator was saved. The files are
        pickles: load only trusted ones.
        """
        for number, estimator in enumerate(self._estimators):
            saved = joblib.load(folder / _FILE.format(number))
            if type(saved) is not type(estimator):
                kinds = f"a {type(saved).__name__}, not a {type(estimator).__name__}"
                raise UserError(
                    f"regrow.integrations.sklearn.State: the checkpoint in {folder} has {kinds}"
                )
            own = estimator.get_params(deep=False).keys()
            vars(estimator).update(
                {name: value for name, value in vars(saved).items() if name not in own}
            )
