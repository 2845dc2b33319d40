"""Lines of JSON between two processes: what a peer may send, and what counts as its end."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator

import msgspec
import pytest

from regrow.tasks.process.json_lines import KEY_BYTES, MOST_BYTES, JsonLines, PeerGone

INTS = msgspec.json.Decoder(list[int])


@pytest.fixture
def ends() -> Iterator[tuple[JsonLines, socket.socket]]:
    """One side of a connection, and the socket of the other."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    line = JsonLines(ours)
    with theirs:
        yield line, theirs
    line.close()


def test_messages_arrive_in_order_until_the_peer_has_ended(
    ends: tuple[JsonLines, socket.socket],
) -> None:
    line, theirs = ends
    other = JsonLines(theirs)
    assert other.send([1])
    assert other.send([2, 3])
    other.close()
    assert list(line.messages(INTS)) == [[1], [2, 3]]
    assert not line.send([4])


def test_text_that_is_no_utf_8_arrives_without_it(ends: tuple[JsonLines, socket.socket]) -> None:
    line, theirs = ends
    assert line.send({"text": "a\udcff\n", "t": 0.5})
    assert JsonLines(theirs).receive(msgspec.json.Decoder()) == {"text": "a?\n", "t": 0.5}


@pytest.mark.parametrize(
    "sent", [b"[2", b"[" + b"2," * 50 + b"2]\n", b'{"a": 1}\n', b"[" * 19 + b"\n", b"\xff\n", b"\n"]
)
def test_whatever_is_not_a_message_is_the_end(
    ends: tuple[JsonLines, socket.socket], sent: bytes
) -> None:
    line, theirs = ends
    theirs.sendall(b"[1]\n" + sent)
    theirs.shutdown(socket.SHUT_WR)
    assert list(line.messages(INTS, most=20)) == [[1]]
    assert MOST_BYTES < 1 << 30


def test_a_message_that_is_nested_too_deeply_is_the_end(
    ends: tuple[JsonLines, socket.socket],
) -> None:
    line, theirs = ends
    theirs.sendall(b"[" * 10_000 + b"\n")
    with pytest.raises(PeerGone):
        line.receive(msgspec.json.Decoder())


def test_a_peer_that_is_silent_for_the_sockets_timeout_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.01)
        with pytest.raises(PeerGone):
            JsonLines(ours).receive(INTS)


@pytest.mark.parametrize("cut", [0, 1])
def test_only_the_whole_key_proves(ends: tuple[JsonLines, socket.socket], cut: int) -> None:
    line, theirs = ends
    key = secrets.token_hex(32)
    assert JsonLines(theirs).prove(key[cut:])
    assert line.proves(key) == (cut == 0)
    theirs.sendall(json.dumps([1]).encode() + b"\n")
    assert line.receive(INTS) == [1]


def test_no_more_is_read_of_a_peer_that_proves_nothing(
    ends: tuple[JsonLines, socket.socket],
) -> None:
    line, theirs = ends
    theirs.sendall(b"x" * KEY_BYTES)
    with pytest.raises(PeerGone):
        line.proves("x")
