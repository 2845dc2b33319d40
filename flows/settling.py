"""End of a session in Prefect: every trial's task run gets the state that the experiment's log
has.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from regrow.flows.attempts import Attempts
from regrow.infra.prefect.task_runs import otherwise, repair, settle
from regrow.search.history import History
from regrow.search.lifecycle import TrialState
from regrow.tasks.trial.names import task_name, task_run_id

_BY_THE_LOG = "as the experiment's log has it"


def settled(
    client: SyncPrefectClient, flow_run_id: UUID, attempts: Attempts, history: History
) -> None:
    """Wait, within bounds, until Prefect has seen the end of every task run, and report the ends
    that it missed.
    """
    left = settle(client, flow_run_id, attempts.close())
    trials = {task_run_id(history.id, trial.number): trial for trial in history.trials}
    had = {
        run_id
        for run_id, trial in trials.items()
        if any(a.task_run == str(run_id) for a in trial.attempts)
    }
    # A driver may have been killed after the log had a trial's end, but before Prefect had the end
    # or the task run. A trial that was given up while paused still has the paused state of its last
    # attempt.
    ends = {run_id: _ending(trials[run_id].state) for run_id in had if trials[run_id].state.final}
    left |= otherwise(
        client, {run_id: state.type for run_id, state in ends.items() if state is not None}
    )
    ended = {
        run_id: (task_name(trials[run_id].number), state)
        for run_id in left
        if run_id in trials and (state := _ending(trials[run_id].state)) is not None
    }
    repair(client, flow_run_id, attempts.task, ended)


def _ending(state: TrialState) -> State[Any] | None:
    match state:
        case TrialState.DONE:
            return Completed(message=_BY_THE_LOG)
        case TrialState.STOPPED:
            return Completed(name="Stopped", message=_BY_THE_LOG)
        case TrialState.FAILED:
            return Failed(message=_BY_THE_LOG)
        case TrialState.PAUSED | TrialState.LOST:
            return Cancelled(name="Paused", message=_BY_THE_LOG)
        case _:
            return None
