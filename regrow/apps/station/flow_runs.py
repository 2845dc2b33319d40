"""Running a flow run of Prefect: a scheduled one, one that was retried or resumed in Prefect's
page, or one with another number of trials.

The flow run's parameters define the experiment; if it has a log, the log does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Failed, Running

from regrow.apps.serving import station_registration
from regrow.apps.station.auto_restart import flow_run_of
from regrow.apps.station.on_cluster import run_on_cluster
from regrow.apps.station.triggers.tries import reason
from regrow.flows.launch import launch
from regrow.flows.recurring import resolved
from regrow.flows.session import Session
from regrow.infra.log.reading import survey
from regrow.infra.machine.caller_context import CallerContext
from regrow.infra.state import resume_failures
from regrow.infra.state.driver_lock import runs_here
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import Closed
from regrow.tasks.errors import RegrowError, UserError

_RETRIED = "AwaitingRetry"
_STILL_THERE = (
    "its driver still runs, but sent no signs of life: it was suspended, or could not reach Prefect"
)


def run_flow_run(flow_run_id: str, places: Places, say: Callable[[str], None]) -> None:
    """Run a flow run to its end. An error that prevents it is recorded in Prefect and raised."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(UUID(flow_run_id))
        try:
            _run(client, run, places, say)
        except Exception as error:
            _set_final_state(client, run, Failed(message=reason(error)))
            raise
        _set_final_state(client, run, Completed(message="nothing was left to do"))


def _run(
    client: SyncPrefectClient, run: FlowRun, places: Places, say: Callable[[str], None]
) -> None:
    parameters: dict[str, Any] = run.parameters
    state = parameters.get("state")
    if state is not None and Places.at(state) != places:
        raise UserError(
            f"the flow run is of the state root {state}, and this station of {places.root}"
        )
    file = Path(parameters["spec"]) if isinstance(parameters.get("spec"), str) else None
    folder = None if file is None else str(file.parent)
    given = {key: parameters.get(key) for key in ("spec", "trials", "when", "event")}
    this = resolved(client, run.id, places, name=parameters["name"], **given)
    for line in this.lines:
        say(line)
    name, spec = this.name, this.spec
    if this.when is not None and spec is not None:
        station_registration.of_schedule(
            places, spec.model_copy(update={"when": this.when}), this.schedule
        )
    again = run.state is not None and run.state.name == _RETRIED
    if again and runs_here(places, name) and flow_run_of(places, name) == str(run.id):
        client.set_flow_run_state(run.id, Running(message=_STILL_THERE), force=True)
        return
    if this.when is not None and this.when.cluster is not None:
        if file is None:
            raise UserError(
                f"{name}: a run on a cluster takes its specification from a file, whose path is the"
                " parameter `spec`"
            )
        failed = again and _has_failed(places, name)
        run_on_cluster(client, run, this, file, places, say, retry_failed=failed)
        this.pruned(places, say)
        return
    if again and isinstance(parameters.get("spec"), dict) and _has_log(places, name):
        spec = None  # the log has its specification, which a resume may have changed since
    try:
        launch(
            Session(
                name=name,
                spec=spec,
                places=places,
                trials=this.trials,
                code=parameters.get("code"),
                announce=say,
                retry_failed=bool(parameters.get("retry_failed"))
                or (again and _has_failed(places, name)),
                flow_run=str(run.id),
                typed=CallerContext(folder=folder, variables={}),
            )
        )
    except (RegrowError, SpecError) as error:
        if again and _has_log(places, name):  # without a log there is no experiment to recover
            resume_failures.record(places, name, str(error))
        raise
    if _ended(places, name) in ("finished", "failed"):
        this.pruned(places, say)


def _has_log(places: Places, name: str) -> bool:
    return name in places.experiments()


def _has_failed(places: Places, name: str) -> bool:
    """Return whether the last session ended as failed: Retry then includes failed trials."""
    return _has_log(places, name) and _ended(places, name) == "failed"


def _ended(places: Places, name: str) -> str | None:
    """Return how the experiment's last session ended, None if it did not end."""
    last = survey(places.store(name)).last
    return last.status if isinstance(last, Closed) else None


def _set_final_state(client: SyncPrefectClient, run: FlowRun, state: Any) -> None:
    """Set the final state of a flow run that did not begin; a flow that began sets it itself."""
    now = client.read_flow_run(run.id).state
    if now is not None and not now.is_final() and not now.is_running() and not now.is_paused():
        client.set_flow_run_state(run.id, state, force=True)
