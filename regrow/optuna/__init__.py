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
from regrow.tasks.errors import UserError

__all__ = [
    "Study", "Trial", "TrialPruned", "create_study", "create_trial", "delete_study", "distributions", "exceptions",
    "get_all_study_names", "load_study", "logging", "pruners", "samplers", "trial",
]


_NOT_THERE = {
    "copy_study": "`regrow export NAME --optuna URL` writes a study for Optuna's own tools",
    "get_all_study_summaries": "get_all_study_names() has the names, `regrow list` what became of each",
}
"""What would look into a storage of Optuna's, where no study of ours is."""


class _NotThere(UserError, AttributeError):
    """So that hasattr() is False."""


def __getattr__(name: str) -> Any:
    """Whatever else Optuna has (`visualization`, `importance`, `artifacts`, ...), imported when it is first asked for.

    Raises UserError, which is an AttributeError, too, for what goes to a storage of Optuna's.
    """
    if name in _NOT_THERE:
        raise _NotThere(f"optuna.{name} is not there: {_NOT_THERE[name]}")
    return getattr(_theirs, name)
