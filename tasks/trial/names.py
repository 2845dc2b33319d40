"""Names of trials wherever people see them: Prefect's task runs, MLflow's runs, the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid5

from regrow.search.nested import leaves
from regrow.tasks.output.traces import one_line

_MOST = 500
"""Characters of a configuration on one line."""


def task_name(trial: int) -> str:
    """Return the name of a trial's task run and of its MLflow run."""
    return f"trial-{trial:04d}"


def task_run_id(experiment_id: str, trial: int) -> UUID:
    """Return the ID of a trial's Prefect task run: always the same, so that attempts retry it."""
    return uuid5(UUID(experiment_id), f"trial-{trial}")


def task_tags(trial: int, attempt: int) -> list[str]:
    """Return a task run's tags. At the end `node:<name>` is added, and on a spot machine `spot`."""
    return [f"trial:{trial}", f"attempt:{attempt}"]


def settings(config: Mapping[str, Any]) -> str:
    """Format a nested configuration as one line of bounded length: "lr=0.01 model.layers=3"."""
    line = " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in leaves(config)
    )
    return one_line(line if len(line) <= _MOST else f"{line[:_MOST]}...")
