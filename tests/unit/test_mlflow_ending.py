"""The last word of a session: what it is made of is made once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from regrow.flows.recording.ending import FigureCache
from regrow.search.events import Closed, Opened
from regrow.search.history import History
from regrow.show.report import pictures
from tests.unit.simulated import created, opened


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of all figures that were drawn."""
    names = list[str]()

    def png(_: History, name: str) -> bytes:
        names.append(name)
        return f"{name} {len(names)}".encode()

    monkeypatch.setattr(pictures, "png", png)
    return names


def test_a_figure_of_a_closed_session_is_drawn_once_for_all_who_ask(drawn: list[str]) -> None:
    history, album = History(), FigureCache()
    for event in (created(), opened(1.0), Closed(t=9.0, status="interrupted")):
        history.apply(event)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: album.draw(history, "learning_curves"), range(8)))
    assert found == {b"learning_curves 1"}
    assert album.draw(history, "optimization_history") == b"optimization_history 2"
    again = opened(10.0)
    assert isinstance(again, Opened)
    history.apply(again)
    album.draw(history, "learning_curves")
    album.draw(history, "learning_curves")
    assert drawn[2:] == ["learning_curves"] * 2, "while it runs, they change"
    history.apply(Closed(t=19.0, status="finished"))
    assert album.draw(history, "learning_curves") == b"learning_curves 5"
