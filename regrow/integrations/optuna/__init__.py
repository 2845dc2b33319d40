"""`import regrow.optuna as optuna`: Optuna's interface, whose studies are experiments of regrow.
Everything else is Optuna's.

A study's trials run on Ray and are durable: running the script again, with `load_if_exists=True`,
resumes it. Optuna's modules are passed through unchanged, so that samplers, pruners, figures and
importances are the ones that a script knows.
"""

from typing import Any

import optuna as _theirs
from optuna import TrialPruned as TrialPruned
from optuna import distributions, exceptions, logging, pruners, samplers, trial
from optuna.trial import create_trial

from regrow.integrations.optuna.durable import Study
from regrow.integrations.optuna.running import Trial
from regrow.integrations.optuna.studies import (
    create_study,
    delete_study,
    get_all_study_names,
    load_study,
)
from regrow.tasks.errors import UserError

__all__ = [
    "Study",
    "Trial",
    "TrialPruned",
    "create_study",
    "create_trial",
    "delete_study",
    "distributions",
    "exceptions",
    "get_all_study_names",
    "load_study",
    "logging",
    "pruners",
    "samplers",
    "trial",
]


_NOT_THERE = {
    "copy_study": "`regrow export NAME --optuna URL` writes a study for Optuna's own tools",
    "get_all_study_summaries": (
        "get_all_study_names() has the names, `regrow ls` what became of each"
    ),
}
"""Functions that would access an Optuna storage, which has none of our studies."""


class _NotThere(UserError, AttributeError):
    """An AttributeError, so that hasattr() is False."""


def __getattr__(name: str) -> Any:
    """Import any other name of Optuna (`visualization`, `importance`, `artifacts`, ...) on first
    access.

    Raises UserError, which is an AttributeError, too, for names that access an Optuna storage.
    """
    if name in _NOT_THERE:
        raise _NotThere(f"optuna.{name} is not there: {_NOT_THERE[name]}")
    return getattr(_theirs, name)
