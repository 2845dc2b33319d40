"""`import regrow.optuna as optuna`: Optuna's interface, whose studies are experiments of regrow.
Everything else is Optuna's.

A study's trials run on Ray and are durable: running the script again, with `load_if_exists=True`,
resumes it. Optuna's modules are passed through unchanged, so that samplers, pruners, figures and
importances are the ones that a script knows.
"""

from typing import Any

import optuna as _theirs
from optuna import TrialPruned as TrialPruned
from optuna import distributions, exceptions, logging, pruners, samplers
from optuna.trial import create_trial

from regrow.integrations.optuna import study, trial
from regrow.integrations.optuna.durable import Study
from regrow.integrations.optuna.running import Trial
from regrow.integrations.optuna.studies import (
    copy_study,
    create_study,
    delete_study,
    get_all_study_names,
    get_all_study_summaries,
    load_study,
)

__all__ = [
    "Study",
    "Trial",
    "TrialPruned",
    "copy_study",
    "create_study",
    "create_trial",
    "delete_study",
    "distributions",
    "exceptions",
    "get_all_study_names",
    "get_all_study_summaries",
    "load_study",
    "logging",
    "pruners",
    "samplers",
    "study",
    "trial",
]


def __getattr__(name: str) -> Any:
    """Import any other name of Optuna (`visualization`, `importance`, `artifacts`, ...) on first
    access.
    """
    return getattr(_theirs, name)
