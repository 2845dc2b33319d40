"""The flow of an experiment: to start, resume or retry is this flow, on a longer log."""

from __future__ import annotations

import os
from functools import partial
from typing import Any
from uuid import UUID

from prefect import flow, get_client
from prefect.client.schemas.objects import FlowRunPolicy, State
from prefect.settings import get_current_settings

from regrow.flows import crash_report
from regrow.flows.closing import cut_short, state_of
from regrow.flows.conduct import conduct
from regrow.flows.flow_run import TakenOver, final_state, this_flow_run
from regrow.flows.interrupts import Interrupts, catching_interrupts
from regrow.flows.loop import OtherDriver
from regrow.flows.recurring import Resolved, resolved
from regrow.flows.session import SESSION, Session, current_session
from regrow.infra.prefect.task_runner import OffloadTaskRunner
from regrow.infra.ray import cluster
from regrow.infra.ray.joining import join
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError

HEAD_SECONDS = 600.0
"""Seconds to wait for the user's cluster to answer again after it was lost."""
LATE_SECONDS = 1.0
"""Seconds to wait, after the loss of the cluster, for the signal that may have caused it."""


@flow(name="regrow", flow_run_name="{name}", task_runner=OffloadTaskRunner(), persist_result=False)  # type: ignore[arg-type]  # its futures are of one kind
def run(
    name: str,
    spec: dict[str, Any] | str | None = None,
    state: str | None = None,
    trials: int | None = None,
    code: str | None = None,
    retry_failed: bool = False,
    when: dict[str, Any] | None = None,
    event: dict[str, Any] | None = None,
) -> State[None]:
    """Run an experiment, or continue it, until nothing is left to do.

    Prefect shows what follows in the forms of its page. Raises UserError or SpecError for what
    cannot be run.

    Args:
        name: The experiment's name, before that of the specification.
        spec: The specification, or the path of its YAML file. None continues the experiment `name`.
        state: Where experiments are kept, a folder or s3://...; None: as for `regrow run`.
        trials: The total number of trials, for this run. None: as in the specification.
        code: For runs from a notebook: where the trainable is kept.
        retry_failed: Trials that have failed by now are tried again, from their last checkpoints.
        when: For a run of a schedule: how its runs follow one another, as the key of that name in a
            specification. Each run is a new experiment, named after the time, or the same one with
            more trials.
        event: What started the run; `trial.event` of its trials.

    """
    if get_current_settings().api.url is None:
        raise UserError("PREFECT_API_URL is not set; `regrow run` starts a server by itself")
    flow_run = this_flow_run().id
    session = current_session(flow_run)
    if session is None:
        places = Places.at(state).writable()
        with get_client(sync_client=True) as client:
            this = resolved(
                client,
                flow_run,
                places,
                name=name,
                spec=spec,
                trials=trials,
                when=when,
                event=event,
            )
        session = _session_of(places, this, code, flow_run, retry_failed=retry_failed)
    prepared = session.prepared
    chosen = [prepared.choice.describe()] if prepared.choice is not None and prepared.auto else []
    learns = [f"learns from {line}" for line in prepared.advisers]
    for line in (*prepared.changes, *chosen, *prepared.shortened, *learns):
        session.say(line)
    ended = _drive(session)
    if not ended.is_cancelled():
        session.after(session.say)
    return ended


def _session_of(
    places: Places, this: Resolved, code: str | None, flow_run: UUID, *, retry_failed: bool
) -> Session:
    """Return the session of a flow run that Prefect started."""
    if this.when is not None and this.when.cluster is not None:
        raise UserError(
            f"{this.schedule}: `when.cluster` takes a station, which `regrow up` starts; this is a"
            " worker of Prefect's own"
        )
    session = Session(
        name=this.name,
        places=places,
        spec=this.spec,
        trials=this.trials,
        code=code,
        retry_failed=retry_failed,
        running=flow_run,
        after=partial(this.pruned, places),
    )
    SESSION.set(session)
    for line in this.lines:
        session.say(line)
    return session


def _drive(session: Session) -> State[None]:
    """Run the experiment to the end of its session."""
    prepared = session.prepared
    by_agent = bool(session.agent)
    with (
        driving(session.places, session.name, by_agent=by_agent),
        catching_interrupts(session.agent) as interrupts,
    ):
        interrupts.handle_signals()
        if interrupts.begun is None:  # else an ending began since the previous cluster was lost
            with join(
                prepared.spec, session.say, by_agent=by_agent, state=session.places.folder
            ) as ray_cluster:
                try:
                    with crash_report.prepare(session.places, session.name):
                        status, session.history = conduct(session, ray_cluster, interrupts)
                    return final_state(state_of(status, session.history), status)
                except OtherDriver as error:
                    raise TakenOver(str(error)) from None
                except Exception as error:
                    if cluster.lost() is None and not isinstance(error, cluster.ClusterLost):
                        raise
                    cluster.disconnect()
                    # If all processes are signalled (systemd, slurm), the cluster may get the
                    # signal before this process does.
                    if not interrupts.due(LATE_SECONDS):
                        _await_another_cluster(session, error, interrupts)
                        raise
        crash_report.hand_to_guard(session.places, session.name)
        status, session.history = cut_short(prepared, interrupts)
        return state_of(status, session.history)


def _await_another_cluster(session: Session, error: Exception, interrupts: Interrupts) -> None:
    """Wait for another cluster, for a retry by Prefect. Raises UserError if none comes."""
    if os.environ.get("RAY_ADDRESS"):
        session.say(
            f"{error}; waiting up to {HEAD_SECONDS / 60:.0f} minutes for a cluster at RAY_ADDRESS"
        )
        if (
            not cluster.await_head(HEAD_SECONDS, lambda: interrupts.begun is not None)
            and interrupts.begun is None
        ):
            raise UserError(
                "no Ray cluster came back at RAY_ADDRESS; start one, then `regrow resume` continues"
            ) from error
    if interrupts.begun is None:
        session.say(f"{error}; the experiment continues from its log")
    if session.running is None:
        return
    with get_client(sync_client=True) as client:
        # Retries are granted here one by one: `@flow(retries=)` would also retry a user's mistake,
        # and would be used up after some resumptions, which count as retries.
        count = client.read_flow_run(session.running).run_count
        client.update_flow_run(
            session.running, empirical_policy=FlowRunPolicy(retries=count, retry_delay=0)
        )
