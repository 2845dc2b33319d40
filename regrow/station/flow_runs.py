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
from prefect.states import Completed, Failed, Running

from regrow.flows.recurring import resolved
from regrow.infra.log.reading import survey
from regrow.infra.machine.typed import Typed
from regrow.infra.state.driver_lock import runs_here
from regrow.infra.state.places import Places
from regrow.launch import launch
from regrow.search.events import Closed
from regrow.serving import kept_up
from regrow.station.healing import flow_run_of
from regrow.station.on_cluster import run_on_cluster
from regrow.tasks.errors import UserError

_RETRIED = "AwaitingRetry"
_STILL_THERE = "its driver is still there, and was not heard: it was suspended, or could not reach Prefect"


def run_flow_run(flow_run_id: str, places: Places, say: Callable[[str], None]) -> None:
    """Runs it to its end. What keeps it from being run is told in Prefect, and raised."""
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(UUID(flow_run_id))
        try:
            _run(client, run, places, say)
        except Exception as error:
            _told(client, run, Failed(message=str(error)))
            raise
        _told(client, run, Completed(message="nothing was left to do"))


def _run(client: SyncPrefectClient, run: FlowRun, places: Places, say: Callable[[str], None]) -> None:
    parameters: dict[str, Any] = run.parameters
    typed = Typed(variables={})
    state = parameters.get("state")
    if state is not None and Places.at(state) != places:
        raise UserError(f"the flow run is of the state root {state}, and this station of {places.root}")
    if isinstance(parameters.get("spec"), str):
        typed = Typed(folder=str(Path(parameters["spec"]).parent), variables={})
    given = {key: parameters.get(key) for key in ("spec", "trials", "when", "event")}
    this = resolved(client, run.id, places, name=parameters["name"], **given)
    for line in this.lines:
        say(line)
    name, spec = this.name, this.spec
    if this.when is not None and spec is not None:
        kept_up.of_schedule(places, spec.model_copy(update={"when": this.when}), this.schedule)
    again = run.state is not None and run.state.name == _RETRIED
    if again and runs_here(places, name) and flow_run_of(places, name) == str(run.id):
        client.set_flow_run_state(run.id, Running(message=_STILL_THERE), force=True)
        return
    if this.when is not None and this.when.cluster is not None:
        if not isinstance(parameters.get("spec"), str):
            raise UserError(f"{name}: a run on a cluster takes its specification from a file, whose path is the parameter `spec`")
        failed = again and _has_failed(places, name)
        run_on_cluster(client, run, this, Path(parameters["spec"]), places, say, retry_failed=failed)
        this.pruned(places, say)
        return
    if again and spec is not None and isinstance(parameters.get("spec"), dict) and _has_log(places, name):
        spec = None  # what it was then; since then it may have been resumed with other settings
    launch(
        name, spec=spec, places=places, trials=this.trials, code=parameters.get("code"), announce=say,
        retry_failed=bool(parameters.get("retry_failed")) or (again and _has_failed(places, name)), flow_run=str(run.id),
        typed=typed,
    )
    if _ended(places, name) in ("finished", "failed"):
        this.pruned(places, say)


def _has_log(places: Places, name: str) -> bool:
    return name in places.experiments()


def _has_failed(places: Places, name: str) -> bool:
    """Whether the experiment's last session ended as failed: Retry then means its failed trials, too."""
    return _has_log(places, name) and _ended(places, name) == "failed"


def _ended(places: Places, name: str) -> str | None:
    """How the experiment's last session ended, None if it did not."""
    last = survey(places.store(name)).last
    return last.status if isinstance(last, Closed) else None


def _told(client: SyncPrefectClient, run: FlowRun, state: Any) -> None:
    """Ends a flow run that was not begun: its flow would have said itself how it ended."""
    now = client.read_flow_run(run.id).state
    if now is not None and not now.is_final() and not now.is_running() and not now.is_paused():
        client.set_flow_run_state(run.id, state, force=True)
