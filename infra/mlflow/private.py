"""What a training's own MLflow calls need of MLflow that has no public name (3.17). Nothing else of regrow's in a trial uses any.

mlflow is not imported here: whoever chooses an experiment has imported it.
"""

from __future__ import annotations

import sys
from typing import Any

ARTIFACT_ROOT = "_MLFLOW_SERVER_ARTIFACT_ROOT"
"""The variable that says where an MLflow experiment which is made in a database keeps its artifacts; without it, in ./mlruns."""


def choose_experiment(chosen: str | None) -> str | None:
    """Has `chosen` stand for the id that `mlflow.set_experiment` set last, and returns that one; None for none.

    `set_experiment` can neither be asked nor undone.
    """
    fluent: Any = sys.modules["mlflow.tracking.fluent"]
    before: str | None = fluent._active_experiment_id  # noqa: SLF001 - see above
    fluent._active_experiment_id = chosen  # noqa: SLF001 - see above
    return before
