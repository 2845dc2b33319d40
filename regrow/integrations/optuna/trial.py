"""`optuna.trial`: Optuna's, with the trials of regrow."""

from typing import Any

from optuna import trial as _theirs
from optuna.trial import BaseTrial, FixedTrial, FrozenTrial, TrialState, create_trial

from regrow.integrations.optuna.running import Trial

__all__ = ["BaseTrial", "FixedTrial", "FrozenTrial", "Trial", "TrialState", "create_trial"]


def __getattr__(name: str) -> Any:
    """Return any other name of `optuna.trial`."""
    return getattr(_theirs, name)
