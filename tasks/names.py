"""How trials are called wherever a person sees them: Prefect's task runs, MLflow's runs, the terminal."""

from __future__ import annotations

from uuid import UUID, uuid5


def task_name(trial: int) -> str:
    """The name of a trial's task run and of its MLflow run."""
    return f"trial-{trial:04d}"


def task_run_id(experiment_id: str, trial: int) -> UUID:
    """The Prefect task run of a trial: always the same one, so that its attempts are that run's retries."""
    return uuid5(UUID(experiment_id), f"trial-{trial}")
