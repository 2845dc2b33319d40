"""How often a flow run is said to have been lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import AwaitingRetry, Crashed, Running

from regrow.apps.station.auto_restart import AGAIN, times_lost


def told(*states: State[Any]) -> list[State[Any]]:
    """The states, a second apart, the newest first."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        state.model_copy(update={"timestamp": begin + timedelta(seconds=n)})
        for n, state in enumerate(states)
    ][::-1]


def test_an_action_that_prefect_carried_out_several_times_is_one_loss() -> None:
    again: State[Any] = AwaitingRetry(message=AGAIN)
    assert times_lost(told(Running(), Crashed(), again, again, again, again)) == 1
    assert times_lost(told(again, Running(), Crashed(), again, again, Running())) == 2
    assert times_lost(told(Running(), Crashed(), AwaitingRetry(message="Retry from the UI"))) == 0
