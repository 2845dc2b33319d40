"""The end of a session: what its closed log has is recorded everywhere.

If the cluster has died, the driver's own process closes the log. An ending that has begun is not
turned into a recovery, and no cluster is started for it.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import UUID

import msgspec
import ray
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from regrow.flows import crash_report
from regrow.flows.attempts import Attempts, ended_as
from regrow.flows.coordinator.actor import is_ours
from regrow.flows.coordinator.claim import SessionOpening
from regrow.flows.coordinator.coordinator import Coordinator
from regrow.flows.interrupts import Interrupts
from regrow.flows.recording import ending
from regrow.flows.recording.artifacts import publish
from regrow.flows.session import Session
from regrow.infra.log.reading import replay
from regrow.infra.prefect.server import answers
from regrow.infra.prefect.task_runs import mismatched, repair, settle
from regrow.infra.ray import cluster
from regrow.infra.state.collection import collect
from regrow.infra.state.experiments import Prepared
from regrow.infra.state.places import Places
from regrow.search.events import Created, Status
from regrow.search.history import History
from regrow.search.lifecycle import TrialState
from regrow.tasks.checkpoint.retry import retry_while_unavailable
from regrow.tasks.ports.store import StoreError
from regrow.tasks.process import background
from regrow.tasks.trial.names import task_name, task_run_id

STORE_SECONDS = 600.0
"""Seconds that the end of a session waits for an unreachable state store."""
PREFECT_SECONDS = 30.0
"""Seconds that the end of a session waits for an unreachable Prefect server."""
PICTURES_SECONDS = 5.0
"""Seconds that the end of a session waits for the figures shown in Prefect."""
QUIET_SECONDS = 15.0
"""Seconds that the end of a session waits for the MLflow recorder without a message: a report takes
that long on a busy machine.
"""
DRAIN_SECONDS = 30.0
"""Seconds of further waiting, after a message."""
CUT_SECONDS = 10.0
"""Seconds to wait for an unreachable store after the loss of the cluster; then the log stays open,
and the next session closes it.
"""


def record_ending(
    session: Session,
    flow_run_id: UUID,
    coordinator: Any,
    recorder: Any,
    client: SyncPrefectClient,
    attempts: Attempts,
    interrupts: Interrupts,
) -> History:
    """Record the closed log everywhere and return its history. Failures are announced."""
    name, places, store = session.name, session.places, session.prepared.store
    last = cluster.get(coordinator.close_readers.remote())
    history = retry_while_unavailable(
        lambda: replay(store, name), say=session.say, seconds=min(STORE_SECONDS, interrupts.left)
    )
    if cluster.get(recorder.finish.remote()):
        # this process has loaded most of what the report needs, and only waits now
        background.start(_give_files, recorder, history, places, name="final-files")
    trouble = _await_recorder(session, recorder, last, interrupts)
    for line in cluster.get(recorder.remarks.remote()):
        session.say(line)
    if trouble:
        crash_report.mark_pending(places, name)
        session.say(
            f"MLflow does not have everything yet: {trouble};"
            f" `{places.command('resume', name)}` catches up."
        )
    try:
        collect(store, history)
    except StoreError as error:
        session.say(
            "Some checkpoints that are no longer needed were not deleted; the next session deletes"
            f" them: {error}"
        )
    try:
        if answers(str(client.api_url), min(PREFECT_SECONDS, interrupts.left)):
            _settle(client, flow_run_id, attempts, history)
            publish(client, flow_run_id, history, places, _pictures(recorder))
        else:
            session.say(
                "The Prefect server is away and does not have everything; the experiment's log"
                " does."
            )
    except Exception as error:  # noqa: BLE001 - Prefect only shows what the log has: not worth failing at the end
        session.say(
            f"The Prefect server does not have everything; the experiment's log does: {error}"
        )
    return history


def _await_recorder(
    session: Session, recorder: Any, last: int, interrupts: Interrupts
) -> str | None:
    """Wait until MLflow has the log up to segment `last`; return what prevents that in time."""
    announced, began = False, time.monotonic()
    while True:
        trouble: str | None = cluster.get(recorder.drained.remote(last, min(1.0, interrupts.left)))
        waited = time.monotonic() - began
        left = min(QUIET_SECONDS + DRAIN_SECONDS - waited, interrupts.left)
        if trouble is None or left <= 0:
            return trouble
        if not announced and waited > QUIET_SECONDS:
            announced = True
            session.say(
                f"Waiting up to {min(DRAIN_SECONDS, interrupts.left):.0f} s for MLflow: {trouble}"
            )


def _give_files(recorder: Any, history: History, places: Places) -> None:
    """Make the final files for the recorder, which makes them itself if it gets none in time."""
    with suppress(Exception):
        recorder.give.remote(ending.made(history, places))


def _pictures(recorder: Any) -> dict[str, bytes]:
    """Return the recorder's figures; none if that fails or is late: the report has them, too."""
    try:
        found: dict[str, bytes] = ray.get(recorder.pictures.remote(), timeout=PICTURES_SECONDS)
    except ray.exceptions.RayError:  # includes a timeout
        return {}
    return found


def _settle(
    client: SyncPrefectClient, flow_run_id: UUID, attempts: Attempts, history: History
) -> None:
    """Wait, within bounds, until Prefect has the end of each task run; send it what it missed."""
    left = settle(client, flow_run_id, attempts.close())
    trials = {task_run_id(history.id, trial.number): trial for trial in history.trials}
    ends = {
        run_id: ended_as(trial.state.value, "as the experiment's log has it")
        for run_id, trial in trials.items()
        if trial.state not in (TrialState.PENDING, TrialState.RUNNING)
    }
    # A driver may have been killed after the log had a trial's end, but before Prefect had the end
    # or the task run. A trial that was given up while paused still has the paused state of its last
    # attempt.
    final = {
        run_id: ends[run_id].type
        for run_id, trial in trials.items()
        if trial.state.final and any(a.task_run == str(run_id) for a in trial.attempts)
    }
    left |= mismatched(client, final)
    missed = {
        run_id: (task_name(trials[run_id].number), ends[run_id]) for run_id in left & ends.keys()
    }
    repair(client, flow_run_id, attempts.task, missed)


def state_of(status: Status, history: History) -> State[None]:
    """Return the state in which the flow run ends."""
    done = sum(len(numbers) for state, numbers in history.by_state.items() if state.final)
    summary = f"{history.of_total(done)} trials ended"
    if status == "finished":
        return Completed(message=summary)
    if status == "failed":
        return Failed(message=history.closing.why if history.closing else summary)
    return Cancelled(
        name=status.capitalize(),
        message=f"{summary}; continue with `regrow resume {history.spec.name}`",
    )


def cut_short(prepared: Prepared, interrupts: Interrupts) -> tuple[Status, History]:
    """Close the log, as requested, of a session whose cluster has died; return how it ended, and
    the whole history.

    Raises KeyboardInterrupt if the session had not begun. Call this when the cluster is left and
    `interrupts.begun` is known.
    """
    history = replay(prepared.store, prepared.spec.name)
    if history.opened is None or not is_ours(history.opened.driver):
        raise KeyboardInterrupt
    if history.closed is None and interrupts.begun is not None:
        # the caller may be in a notebook, which already runs an event loop
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, _close(prepared, history, *interrupts.begun)).result()
        history = replay(prepared.store, prepared.spec.name)
    return history.closed.status if history.closed else "interrupted", history


async def _close(prepared: Prepared, history: History, status: Status, why: str) -> None:
    """Have a coordinator in this process, as after any restart, give up what runs."""
    opened = history.opened
    assert opened is not None
    opening = SessionOpening(
        created=Created(t=0.0, id=history.id, spec=prepared.spec.record()),
        opened=msgspec.structs.replace(opened, agent="", hold=""),
    )
    coordinator = Coordinator(prepared.store, opening, opened.driver)
    try:
        async with asyncio.timeout(CUT_SECONDS):
            await coordinator.close(status, why)  # first, so that nothing replaces what is given up
            await coordinator.abandon("its cluster was terminated")
            instructions = await coordinator.instructions(0.0)
            while instructions.finished is None and not instructions.superseded:
                instructions = await coordinator.instructions(1.0)
    except TimeoutError:
        return
