"""`import regrow.optuna as optuna`: Optuna's interface, whose studies are experiments of regrow. All else is Optuna's own.

A study's trials run on Ray and are durable: run the script again, with `load_if_exists=True`, and it goes on. Optuna's own
modules are handed on unchanged, so that samplers, pruners, figures and importances are the ones that a script knows.
"""

from typing import Any

import optuna as _theirs
from optuna import TrialPruned as TrialPruned
from optuna import distributions, exceptions, logging, pruners, samplers, trial
from optuna.trial import create_trial

from regrow.optuna.durable import Study
from regrow.optuna.running import Trial
from regrow.optuna.studies import (
    create_study,
    delete_study,
    get_all_study_names,
    load_study,
)

__all__ = [
    "Study", "Trial", "TrialPruned", "create_study", "create_trial", "delete_study", "distributions", "exceptions",
    "get_all_study_names", "load_study", "logging", "pruners", "samplers", "trial",
]


def __getattr__(name: str) -> Any:
    """Whatever else Optuna has (`visualization`, `importance`, `artifacts`, ...), imported when it is first asked for."""
    return getattr(_theirs, name)
