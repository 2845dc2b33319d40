"""Signs of life in the store: what another machine sees of a driver."""

from __future__ import annotations

import threading
import time

import pytest

from regrow.infra.state import presence
from regrow.infra.state.driver_lock import driving, runs_here
from regrow.infra.state.places import Places
from regrow.infra.state.presence import present, signs
from regrow.tasks.errors import UserError
from tests.memory_store import MemoryStore


class Watched(MemoryStore):
    """Says when something was deleted from it."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed = threading.Event()

    def delete(self, keys: object, *, ordered: bool = True) -> None:
        super().delete(list(keys))  # type: ignore[call-overload]
        self.renewed.set()


def on(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "_host", lambda: host)


def test_a_driver_is_seen_from_another_machine_while_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Watched()
    on("here", monkeypatch)
    with present(store):
        assert store.renewed.wait(20)
        assert signs(store), "its process runs"
        monkeypatch.setattr(presence, "is_running", lambda pid: False)
        assert not signs(store), "this machine knows better"
        on("there", monkeypatch)
        assert signs(store)
        on("here", monkeypatch)
    on("there", monkeypatch)
    assert not signs(store)
    assert store.list("") == []


def test_an_old_sign_tells_nothing_and_goes_with_the_next_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Watched()
    store.create(f"{presence.PREFIX}{int(time.time() - presence.FRESH_SECONDS - 1)}-here", b"")
    on("there", monkeypatch)
    assert not signs(store)
    on("here", monkeypatch)
    with present(store):
        assert store.renewed.wait(20)
        assert len(store.list(presence.PREFIX)) == 1


def test_one_sign_is_left_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "PERIOD_SECONDS", 0.01)
    store = Watched()
    with present(store):
        for _ in range(5):
            store.renewed.clear()
            assert store.renewed.wait(20)
        assert len(store.list("")) <= 2


def test_an_agents_driver_begins_beside_one_that_is_suspended_and_no_other_does(
    places: Places,
) -> None:
    with driving(places, "sweep"):
        with pytest.raises(UserError, match="is running already"), driving(places, "sweep"):
            pass
        with driving(places, "sweep", by_agent=True):
            assert runs_here(places, "sweep")
