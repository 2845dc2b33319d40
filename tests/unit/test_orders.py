"""What a driver says of a failure is raised again by whoever gave the order."""

from __future__ import annotations

import socket

import pytest

from regrow.apps.station.orders import MESSAGES, SIGNALS, DriverMessage, DriverSignal
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError, UserCodeError, UserError
from regrow.tasks.process.json_lines import JsonLines


def told(error: BaseException) -> DriverMessage:
    """A word as it arrives."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        JsonLines(theirs).send(DriverMessage.of(error))
        return JsonLines(ours).receive(MESSAGES)


@pytest.mark.parametrize(
    "error",
    [
        UserError("no such thing"),
        RegrowError("it failed"),
        UserCodeError("it raised", "Traceback ...\n"),
        SpecError("space.lr", [1, 2], "is wrong", "write it right", "a.yaml:3"),
    ],
)
def test_an_error_is_the_same_on_the_other_side(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        told(error).raise_it()
    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)
    assert getattr(raised.value, "trace", "") == getattr(error, "trace", "")


def test_a_bug_is_told_as_a_failure() -> None:
    word = told(ZeroDivisionError("division by zero"))
    assert word.error == "bug"
    with pytest.raises(RegrowError, match="division by zero"):
        word.raise_it()


def test_a_signal_is_the_same_on_the_other_side() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        JsonLines(theirs).send(DriverSignal(signal=2))
        assert JsonLines(ours).receive(SIGNALS).signal == 2
