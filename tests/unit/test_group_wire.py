"""The connections between ranks: who does not know the key, or says what is no message, is not let
in and keeps nobody waiting.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import msgspec
import pytest

from regrow.search.events import Place
from regrow.tasks.group import leader, peers, wire
from regrow.tasks.group.leader import Leader
from regrow.tasks.group.wire import (
    Alive,
    Bye,
    Done,
    Hello,
    Message,
    RankFailure,
    RankReported,
    Uploaded,
    Welcome,
    Wire,
)
from regrow.tasks.ports.ranks import AttemptVerdict, GroupBroken
from regrow.tasks.ports.uploads import CheckpointFile, CheckpointPart
from regrow.tasks.process import connecting
from tests.unit.grouped import HOST, KEY, come_in


@pytest.fixture
def lead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    monkeypatch.setattr(peers, "BEAT_SECONDS", 0.05)
    made = leader_of(2)
    yield made
    made.close()


def leader_of(size: int, *, lease: float = 20.0) -> Leader:
    return Leader(
        size,
        KEY,
        place=Place("node", "n0"),
        address=HOST,
        run="run-1",
        lease=lease,
        stall=None,
        mean=False,
    )


def stranger(at: Leader) -> socket.socket:
    return socket.create_connection((HOST, at.port), timeout=10)


def forming(at: Leader) -> threading.Thread:
    """Rank 0 waits for the others."""

    def form() -> None:
        with suppress(GroupBroken):  # the test has ended before
            at.form(lambda: None)

    thread = threading.Thread(target=form, daemon=True)
    thread.start()
    return thread


def ends(connection: socket.socket) -> bool:
    """Whether the other side closes it."""
    with suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
    return True


def next_word(of: Wire) -> Message:
    """The first message that is no sign of life."""
    while isinstance(told := of.receive(), Alive):
        pass
    return told


def comes(at: Leader, rank: int) -> Wire:
    own = come_in(at.port)
    own.send(Hello(rank=rank, place=Place("node", "n1")))
    return own


def pair() -> tuple[Wire, Wire]:
    one, other = socket.socketpair()
    server = socket.create_server((HOST, 0))
    with closing(one), closing(other), closing(server):
        left = socket.create_connection(server.getsockname(), timeout=10)
        right, _ = server.accept()
    right.settimeout(10)
    return Wire(left), Wire(right)


def test_both_sides_know_the_key() -> None:
    one, other = pair()
    thread = threading.Thread(target=one.greet, args=(KEY,), kwargs={"first": True}, daemon=True)
    thread.start()
    other.greet(KEY, first=False)
    thread.join(10)
    file = CheckpointFile(
        path="a/ä", key="blobs/0/1/x", sha256="x", size=1, executable=False, rank=3
    )
    messages: list[Message] = [
        RankReported(3, {"score": 0.1 + 0.2, "none": None}, saves=True),
        Uploaded(4, part=CheckpointPart(files=[file], folders=["e"], uploaded=1)),
        RankFailure(AttemptVerdict(rank=1, message="no", trace="x" * 3_000_000)),
        Bye(),
    ]

    def send() -> None:
        for message in messages:
            one.send(message)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    assert [other.receive() for _ in messages] == messages
    sending.join(10)
    one.close()
    with pytest.raises(ConnectionError):
        other.receive()
    other.close()


@pytest.mark.parametrize("first", [True, False])
def test_who_does_not_know_the_key_is_refused_by_either_side(first: bool) -> None:
    one, other = pair()
    said: list[type] = []

    def wrong() -> None:
        try:
            one.greet(secrets.token_bytes(32), first=not first)
        except (wire.GreetingRefused, OSError) as error:
            said.append(type(error))

    thread = threading.Thread(target=wrong, daemon=True)
    thread.start()
    with pytest.raises(wire.GreetingRefused, match="the key is not this attempt's"):
        other.greet(KEY, first=first)
    thread.join(10)
    assert said == [wire.GreetingRefused]
    one.close()
    other.close()


def test_who_sends_back_what_it_is_sent_proves_nothing() -> None:
    one, other = pair()

    def echo() -> None:
        with suppress(OSError):
            while data := one._connection.recv(1 << 10):
                one._connection.sendall(data)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    with pytest.raises(wire.GreetingRefused):
        other.greet(KEY, first=False)
    other.close()
    thread.join(10)
    one.close()


def test_a_stranger_that_says_nothing_does_not_hold_the_door(lead: Leader) -> None:
    silent = [stranger(lead) for _ in range(8)]
    waits = forming(lead)
    member = comes(lead, 1)
    assert isinstance(next_word(member), Welcome)
    waits.join(10)
    assert not waits.is_alive()
    for each in silent:
        each.close()
    member.close()


def test_a_stranger_that_says_nothing_is_sent_away(
    lead: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "GREET_SECONDS", 0.2)
    forming(lead)
    with closing(stranger(lead)) as silent:
        assert ends(silent)
    comes(lead, 1).close()


SAYS = {
    "nothing but a greeting": b"",
    "garbage": b"\x00\x01\x02" * 100,
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 100,
    "a frame without the key": struct.pack("!I", 10) + b"0123456789" * 10,
}


@pytest.mark.parametrize("what", SAYS)
def test_nothing_that_a_stranger_sends_is_decoded(
    lead: Leader, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    receive = Wire.receive

    def heard(self: Wire, **most: int) -> Message:
        # a thread of an earlier test's leader may still listen
        assert self._connection.getsockname()[1] != lead.port, "a stranger was heard"
        return receive(self, **most)

    monkeypatch.setattr(Wire, "receive", heard)
    forming(lead)
    with closing(stranger(lead)) as other:
        with suppress(OSError):  # it may have been sent away by its first words
            other.sendall(SAYS[what])
            other.shutdown(socket.SHUT_WR)
        assert ends(other)
    monkeypatch.undo()
    comes(lead, 1).close()


@pytest.mark.parametrize("rank", [0, 2, -1])
def test_a_rank_that_is_not_expected_is_sent_away(lead: Leader, rank: int) -> None:
    waits = forming(lead)
    wrong = comes(lead, rank)
    assert ends(wrong._connection)
    right = comes(lead, 1)
    waits.join(10)
    again = comes(lead, 1)
    assert ends(again._connection)
    assert isinstance(next_word(right), Welcome)
    for each in (wrong, right, again):
        each.close()


def frame(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


BROKEN = {
    "no message": frame(b"\xc1 garbage"),
    "another type": frame(msgspec.msgpack.encode({"type": "shutdown"})),
    "a wrong field": frame(
        msgspec.msgpack.encode({"type": "reported", "step": "three", "metrics": {}})
    ),
    "a frame that is too large": struct.pack("!I", wire.MOST_BYTES + 1),
    "the largest frame": b"\xff\xff\xff\xff",
    "nests too deep": frame(b"\x91" * 100_000),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_rank_that_says_what_is_no_message_counts_as_gone(lead: Leader, what: str) -> None:
    waits = forming(lead)
    member = comes(lead, 1)
    waits.join(10)
    member._connection.sendall(BROKEN[what])
    with pytest.raises(GroupBroken, match="rank 1 on node is gone"):
        lead.gather(1, {}, saves=False)
    member.close()


def test_a_rank_that_is_silent_for_its_lease_counts_as_gone() -> None:
    at = leader_of(2, lease=0.4)
    waits = forming(at)
    member = comes(at, 1)
    for _ in range(6):  # signs of life
        member.send(Alive())
        time.sleep(0.1)
    waits.join(10)
    with pytest.raises(GroupBroken, match=r"rank 1 on node was silent for 0\.4 s"):
        at.gather(1, {}, saves=False)
    member.close()
    at.close()


def test_rank_0_gives_signs_of_life_from_the_beginning(lead: Leader) -> None:
    waits = forming(lead)
    member = comes(lead, 1)
    waits.join(10)
    told = [member.receive() for _ in range(4)]
    assert Alive() in told
    assert [type(message) for message in told if message != Alive()] == [Welcome]
    member.close()


def test_a_rank_that_never_comes_is_named(lead: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "FORM_SECONDS", 0.2)
    monkeypatch.setattr(leader, "ANNOUNCE_SECONDS", 0.05)
    told: list[int] = []
    with pytest.raises(GroupBroken, match=r"rank 1 did not come within 0\.2 s"):
        lead.form(lambda: told.append(lead.port))
    assert len(told) > 1, "said again, as it may be lost with the coordinator"
    assert set(told) == {lead.port}


def test_a_rank_that_is_lost_while_others_are_waited_for_is_named() -> None:
    at = leader_of(3)
    member = threading.Thread(target=lambda: comes(at, 2).close(), daemon=True)
    member.start()
    with pytest.raises(GroupBroken, match="rank 2 on node is gone"):
        at.form(lambda: None)
    member.join(10)
    at.close()


def test_at_its_end_all_are_told_and_nobody_comes_in_any_more(lead: Leader) -> None:
    waits = forming(lead)
    member, port = comes(lead, 1), lead.port
    waits.join(10)
    member.send(Done(0))
    lead.close()
    assert isinstance(next_word(member), Welcome)
    assert next_word(member) == Bye()
    with pytest.raises(OSError):  # noqa: PT011 - refused, or reset
        come_in(port)
    member.close()
