"""`optuna.study`: Optuna's, with the studies of regrow."""

from typing import Any

from optuna import study as _theirs
from optuna.study import MaxTrialsCallback, StudyDirection, StudySummary

from regrow.integrations.optuna.durable import Study
from regrow.integrations.optuna.studies import (
    copy_study,
    create_study,
    delete_study,
    get_all_study_names,
    get_all_study_summaries,
    load_study,
)

__all__ = [
    "MaxTrialsCallback",
    "Study",
    "StudyDirection",
    "StudySummary",
    "copy_study",
    "create_study",
    "delete_study",
    "get_all_study_names",
    "get_all_study_summaries",
    "load_study",
]


def __getattr__(name: str) -> Any:
    """Return any other name of `optuna.study`."""
    return getattr(_theirs, name)
