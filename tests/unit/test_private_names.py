"""The canary: each name of other people's libraries that their documentation does not promise, and what breaks without it."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

PREFECT = {
    "prefect.task_engine:run_task_async(task, task_run_id, task_run, parameters, wait_for, return_type, dependencies)":
        "no task run is carried out",
    "prefect.utilities.engine:emit_task_run_state_change_event(task_run, initial_state, validated_state)":
        "the server hears of no task run's beginning, nor why one goes on",
    "prefect.events.worker:EventsWorker.set_client_override(client_type)":
        "each event that a server which is away cannot take holds up all others for 8 s, and the end of the process",
    "prefect.events.worker:emit_events_to_cloud()":
        "events for Prefect Cloud would be sent by the client for servers of one's own",
    "prefect.events.clients:PrefectEventsClient(reconnection_attempts, checkpoint_interval)":
        "the same, and a server that is back hears of it after half a minute",
}


@pytest.mark.parametrize("name", PREFECT)
def test_it_is_there_and_takes_what_it_is_given(name: str) -> None:
    path, _, parameters = name.rstrip(")").partition("(")
    module, _, attributes = path.partition(":")
    found: Any = importlib.import_module(module)
    for attribute in attributes.split("."):
        found = getattr(found, attribute)
    wanted = {parameter.strip() for parameter in parameters.split(",")} - {""}
    assert wanted <= inspect.signature(found).parameters.keys(), PREFECT[name]


def test_the_engine_talks_in_the_module_that_is_filtered() -> None:
    """Without it each task run would send the server a log line of its own, and print its retries."""
    engine: Any = importlib.import_module("prefect.task_engine").AsyncTaskRunEngine
    assert engine.log_finished_message.__code__.co_filename.endswith("task_engine.py")
