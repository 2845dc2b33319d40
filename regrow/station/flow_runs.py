"""Running a flow run that Prefect has: a scheduled one, one that was retried or resumed in its page, one of another trial number.

What the experiment is, is said by the flow run's parameters, and by its log where it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Failed

from regrow.infra.log.reading import survey
from regrow.infra.machine.typed import Typed
from regrow.infra.state.places import Places
from regrow.infra.state.spec_file import read_spec
from regrow.launch import launch
from regrow.search.events import Closed
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError

_RETRIED = ("AwaitingRetry", "Late Retry")


def run_flow_run(flow_run_id: str, places: Places, say: Callable[[str], None]) -> None:
    """Runs it to its end. What keeps it from being run is told in Prefect, and raised."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(UUID(flow_run_id))
        try:
            _run(run, places, say)
        except Exception as error:
            _told(client, run, Failed(message=str(error)))
            raise
        _told(client, run, Completed(message="nothing was left to do"))


def _run(run: FlowRun, places: Places, say: Callable[[str], None]) -> None:
    parameters: dict[str, Any] = run.parameters
    name, spec, typed = parameters["name"], _specification(parameters), Typed(variables={})
    state = parameters.get("state")
    if state is not None and Places.at(state) != places:
        raise UserError(f"the flow run is of the state root {state}, and this station of {places.root}")
    if isinstance(parameters.get("spec"), str):
        typed = Typed(folder=str(Path(parameters["spec"]).parent), variables={})
    again = run.state is not None and run.state.name in _RETRIED
    if again and spec is not None and isinstance(parameters.get("spec"), dict) and _has_log(places, name):
        spec = None  # what it was then; since then it may have been resumed with other settings
    launch(
        name, spec=spec, places=places, trials=parameters.get("trials"), code=parameters.get("code"), announce=say,
        retry_failed=bool(parameters.get("retry_failed")) or (again and _has_failed(places, name)), flow_run=str(run.id),
        typed=typed, at_home=True,
    )


def _specification(parameters: dict[str, Any]) -> Spec | None:
    given, name = parameters.get("spec"), parameters["name"]
    if given is None:
        return None
    spec = read_spec(Path(given)) if isinstance(given, str) else Spec.parse(given)
    return spec if spec.name == name else Spec.parse({**spec.to_json(), "name": name})


def _has_log(places: Places, name: str) -> bool:
    return name in places.experiments()


def _has_failed(places: Places, name: str) -> bool:
    """Whether the experiment's last session ended as failed: Retry then means its failed trials, too."""
    if not _has_log(places, name):
        return False
    last = survey(places.store(name)).last
    return isinstance(last, Closed) and last.status == "failed"


def _told(client: SyncPrefectClient, run: FlowRun, state: Any) -> None:
    """Ends a flow run that was not begun: its flow would have said itself how it ended."""
    now = client.read_flow_run(run.id).state
    if now is not None and not now.is_final() and not now.is_running() and not now.is_paused():
        client.set_flow_run_state(run.id, state, force=True)
