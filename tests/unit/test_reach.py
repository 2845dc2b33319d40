"""How agents find out whether they reach each other."""

from __future__ import annotations

import socket

import pytest

from regrow.apps.agent import reach
from regrow.infra.machine.ports import Ports
from regrow.tasks.errors import UserError


def test_only_who_knows_the_nonce_calls_an_agent() -> None:
    with reach.waiting("127.0.0.1", 0, "nonce") as calls:
        address = f"127.0.0.1:{calls.port}"
        assert reach.answers(address)
        calls.accept(reach.greeting("other", 3).encode())
        calls.accept(b"nonce")
        calls.accept("nonce ²".encode())
        calls.accept(b"\xff nonce 3")
        assert calls.term == 0
        assert reach.call("127.0.0.1", calls.port, reach.greeting("nonce", 3))
        while calls.term != 3:
            assert reach.answers(address)
        calls.accept(reach.greeting("nonce", 2).encode())
        assert calls.term == 3, "an older leader's call changes nothing"
    assert reach.refuses(address)
    assert not reach.call("127.0.0.1", calls.port, "")


@pytest.mark.parametrize(("least", "is_cut"), [(0.0, True), (600.0, False)])
def test_a_leader_that_was_out_of_reach_for_long_is_noticed_once_it_answers_again(
    monkeypatch: pytest.MonkeyPatch, *, least: float, is_cut: bool
) -> None:
    monkeypatch.setattr(reach, "CUT_SECONDS", least)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = "127.0.0.1", server.getsockname()[1]
        contact = reach.Contact(f"{address[0]}:{address[1]}")
        contact.probe()
        assert contact.cut == 0.0
    contact.probe()
    assert contact.cut == 0.0, "it is still away"
    with socket.create_server(address):
        contact.probe()
    assert (contact.cut > 0.0) == is_cut


@pytest.mark.parametrize(
    "text", ["", "20000", "20000-", "a-b", "100-20000", "20100-20000", "20000-65536", "20000-20038"]
)
def test_a_range_of_ports_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"--ports {text}: "):
        Ports.parse(text)


def test_all_ports_of_an_agent_are_different_and_of_its_range() -> None:
    ports = Ports.parse("20000-20039")
    options = dict(option.split("=") for option in ports.options())
    found = [ports.call, ports.control, *map(int, options.values())]
    assert sorted(set(found)) == sorted(found)
    assert (min(found), max(found)) == (20000, 20039)
    assert options["--max-worker-port"] == "20039"
