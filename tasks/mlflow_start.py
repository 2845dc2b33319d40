"""`mlflow.start_run`, `end_run` and `set_experiment` within a trial: a script's own run is the trial's, in its MLflow experiment.

Imported inside of a function, once mlflow is there.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from mlflow import ActiveRun, get_tracking_uri
from mlflow.entities import RunTag
from mlflow.tracking import MlflowClient

from regrow.tasks import mlflow_calls

_LOG = logging.getLogger("regrow.trial")
_NOTE = "mlflow.note.content"


def run_starter(original: Callable[..., Any], fluent: Any) -> Callable[..., Any]:
    """`start_run` which, called as in any script, goes on with the trial's run; with `nested=True` makes a child of it."""

    @functools.wraps(original)
    def start_run(
        run_id: str | None = None, experiment_id: str | None = None, run_name: str | None = None, nested: bool = False,
        parent_run_id: str | None = None, tags: dict[str, Any] | None = None, description: str | None = None,
        log_system_metrics: bool | None = None,
    ) -> Any:
        stack = fluent._active_run_stack.get()  # noqa: SLF001 - see `mlflow_calls`
        calls = mlflow_calls.current()
        ours = calls.tracked.run_id if calls is not None and calls.tracked is not None else None
        rest = {"tags": tags, "description": description, "log_system_metrics": log_system_metrics}
        if ours is None or len(stack) != 1 or stack[0].info.run_id != ours:
            return original(run_id, experiment_id, run_name, nested, parent_run_id, **rest)
        if nested or parent_run_id is not None or run_id not in (None, ours):
            return original(run_id, experiment_id, run_name, True, parent_run_id, **rest)
        given = {**(tags or {}), **({} if description is None else {_NOTE: description})}
        given |= {} if run_name is None else {"run_name": run_name}  # the run itself keeps the trial's name
        client = MlflowClient()
        if given:
            client.log_batch(ours, tags=[RunTag(key, str(value)) for key, value in given.items()])
        assert calls is not None
        stack.append(ActiveRun(calls.active))  # type: ignore[no-untyped-call]  # mlflow's
        return stack[-1]

    return start_run


def run_ender(original: Callable[..., Any], fluent: Any) -> Callable[..., Any]:
    """`end_run` which ends what the script has started, and never the trial's run: the next call would make a stray one."""

    @functools.wraps(original)
    def end_run(status: str = "FINISHED") -> None:
        stack = fluent._active_run_stack.get()  # noqa: SLF001 - see `mlflow_calls`
        calls = mlflow_calls.current()
        if calls is None or len(stack) != 1 or stack[0] is not calls.active:
            original(status)

    return end_run


def experiment_setter(original: Callable[..., Any], fluent: Any) -> Callable[..., Any]:  # noqa: ARG001 - one form for both
    """`set_experiment` which leaves a trial where it is recorded: its run cannot be in two MLflow experiments."""

    @functools.wraps(original)
    def set_experiment(
        experiment_name: str | None = None, experiment_id: str | None = None, *rest: Any, **options: Any
    ) -> Any:
        calls = mlflow_calls.current()
        if calls is None or get_tracking_uri() != calls.uri() or calls.run() is None:
            return original(experiment_name, experiment_id, *rest, **options)
        assert calls.tracked is not None
        ours = MlflowClient().get_experiment(calls.tracked.experiment_id)
        if ours.name != experiment_name and ours.experiment_id != experiment_id:
            _LOG.info(
                "mlflow.set_experiment has no effect in a trial: its run is in the MLflow experiment %r"
                " (`mlflow: {experiment: NAME}` in the specification changes that)", ours.name,
            )
        return ours

    return set_experiment
