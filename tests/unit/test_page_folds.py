"""What the page keeps in memory: logs are read once and then where they grow, and folds that nobody
looks at are let go.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from regrow.apps.page import state_cache
from regrow.apps.page.state_cache import StateCache
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.search.events import AnyEvent, encode
from tests.unit.figured import ASHA, run
from tests.unit.paged import logged, unclosed


@pytest.fixture(scope="module")
def events() -> list[AnyEvent]:
    return list(run(schedule=ASHA, trials=30).events)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is due."""
    for module, name in (
        (state_cache, "LOOK_SECONDS"),
        (state_cache, "ENDED_SECONDS"),
        (state_cache, "LIST_SECONDS"),
    ):
        monkeypatch.setattr(module, name, (0.0, 0.0))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that were read and the prefixes that were listed."""
    found: list[str] = []
    for name in ("read", "list"):
        original = getattr(LocalStore, name)

        def counted(self: LocalStore, key: str, *rest: Any, original: Any = original) -> Any:
            found.append(key)
            return original(self, key, *rest)

        monkeypatch.setattr(LocalStore, name, counted)
    return found


def standing(known: StateCache) -> dict[str, tuple[str, int]]:
    return {one.name: (one.status, one.ended) for one in known.summaries()[0]}


@pytest.mark.usefixtures("hasty")
def test_what_is_added_to_a_log_is_seen_and_what_was_read_is_not_read_again(
    tmp_path: Path, events: list[AnyEvent], asked: list[str]
) -> None:
    half = len(events) // 2
    log = logged(tmp_path, "grows", events[:half])
    known, places = StateCache(Places(root=str(tmp_path))), Places(root=str(tmp_path))
    with driving(places, "grows"):
        before = standing(known)["grows"]
        assert before[0] == "running"
        log.append([encode(event) for event in events[half:]])
        asked.clear()
        assert standing(known)["grows"] == ("finished", 30)
    assert "log/0000000001.jsonl" not in asked
    assert before[1] < 30


def test_looks_are_at_most_every_second(
    tmp_path: Path, events: list[AnyEvent], asked: list[str]
) -> None:
    logged(tmp_path, "one", unclosed(events, 40))
    known = StateCache(Places(root=str(tmp_path)))
    known.summaries()
    asked.clear()
    for _ in range(20):
        known.summaries()
    assert asked == []


@pytest.mark.usefixtures("hasty")
def test_folds_of_ended_experiments_are_let_go_and_made_again_when_looked_at(
    tmp_path: Path, events: list[AnyEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_cache, "KEPT", 2)
    for number in range(5):
        logged(tmp_path, f"e{number}", events)
    logged(tmp_path, "live", unclosed(events))
    known, places = StateCache(Places(root=str(tmp_path))), Places(root=str(tmp_path))
    with driving(places, "live"):
        before = standing(known)
        assert known.held == ["live"], "nobody looked at the others"
        for name in ("e0", "e1", "e2"):
            with known.open([name]) as found:
                assert found[name].history.ended == 30
        assert set(known.held) == {"e1", "e2", "live"}
        assert standing(known) == before
        monkeypatch.setattr(state_cache, "IDLE_SECONDS", -1.0)
        assert standing(known) == before
        assert known.held == ["live"]


@pytest.mark.usefixtures("hasty")
def test_an_experiment_that_goes_on_after_its_fold_was_let_go_is_read_anew(
    tmp_path: Path, events: list[AnyEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_cache, "KEPT", 0)
    cut = len(events) - 60
    log = logged(tmp_path, "again", events[:cut])
    known = StateCache(Places(root=str(tmp_path)))
    assert standing(known)["again"][0] == "crashed"
    assert known.held == []
    log.append([encode(event) for event in events[cut:]])
    assert standing(known)["again"] == ("finished", 30)


@pytest.mark.usefixtures("hasty")
def test_removed_experiments_go_and_new_ones_of_their_name_come(
    tmp_path: Path, events: list[AnyEvent]
) -> None:
    logged(tmp_path, "name", events)
    known = StateCache(Places(root=str(tmp_path)))
    assert standing(known) == {"name": ("finished", 30)}
    shutil.rmtree(tmp_path / "name")
    deadline = time.monotonic() + 30
    while standing(known) and time.monotonic() < deadline:
        pass
    assert standing(known) == {}
    logged(tmp_path, "name", run(trials=2).events)
    assert standing(known) == {"name": ("finished", 2)}


def test_what_is_begun_and_not_read_within_the_time_comes_with_the_next_looks(
    tmp_path: Path, events: list[AnyEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_cache, "BUDGET_SECONDS", -1.0)
    for name in ("one", "two"):
        logged(tmp_path, name, events)
    known = StateCache(Places(root=str(tmp_path)))
    assert known.summaries() == ([], ["one", "two"])
    monkeypatch.setattr(state_cache, "BUDGET_SECONDS", 10.0)
    assert [one.name for one in known.summaries()[0]] == ["one", "two"]
