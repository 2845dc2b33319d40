"""What a driver says of a failure is raised again by whoever gave the order."""

from __future__ import annotations

import socket

import pytest

from regrow.apps.station.orders import DriverMessage, JsonConnection, decode_signal, encode_signal
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError, UserCodeError, UserError


def told(error: BaseException) -> DriverMessage:
    """A word as it arrives."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        JsonConnection(theirs).send(DriverMessage.of(error))
        return next(JsonConnection(ours).words())


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


def test_only_signals_are_taken_for_signals() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        JsonConnection(theirs).send(encode_signal(2))
        assert decode_signal(next(JsonConnection(ours).lines())) == 2
    assert [decode_signal(line) for line in (b"", b"{}", b"[1]", b'{"signal": "x"}')] == [None] * 4
