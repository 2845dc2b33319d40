"""Removing and noting in a bucket: by few requests, refused while another machine runs it, seen
when half done.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regrow.cli.ls import ls
from regrow.flows.housekeeping import removal
from regrow.infra.log.log import Log
from regrow.infra.state import notes, presence
from regrow.infra.state.places import TOMBSTONE, Places
from regrow.infra.stores.s3 import S3Store
from regrow.search.events import encode
from regrow.tasks.errors import UserError
from tests.unit import exported


@pytest.fixture
def places(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setenv("REGROW_HOME", str(tmp_path / "home"))
    made = Places.at(s3)
    log = Log.open(made.store("kinds"))
    log.claim([encode(event) for event in exported.simulation(trials=3).run().events])
    return made


def test_an_experiment_in_a_bucket_is_removed_in_batches_and_shown_as_half_removed_in_between(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(removal, "BATCH", 100)  # a thousand is one request, see test_s3_faults.py
    store = places.known("kinds")
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: store.create(f"blobs/0/1/{n:03d}", b"x" * 10), range(110)))
    notes.add(store, "", tags=["old"])
    assert places.storage.size("kinds")[0] == 112
    batches: list[int] = []
    together = S3Store.delete

    def counted(self: S3Store, keys: list[str], *, ordered: bool = True) -> None:
        batches.append(len(list(keys)))
        if not ordered and len(batches) == 2:
            raise KeyboardInterrupt
        together(self, keys, ordered=ordered)

    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(S3Store, "delete", counted)
        with pytest.raises(KeyboardInterrupt):
            removal.remove(places, "kinds", say=said.append)
    assert batches == [100, 12]
    assert said == ["kinds: 100 of 112 objects deleted"]
    ls(state=places.root)
    assert "half-removed" in capsys.readouterr().out
    assert TOMBSTONE in store.list("log/")
    removal.remove(places, "kinds")
    assert store.list("") == []
    assert places.experiments() == []


def test_one_that_another_machine_runs_is_not_removed(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = places.known("kinds")
    monkeypatch.setattr(presence, "_host", lambda: "another")
    with presence.present(store):
        while not store.list(presence.PREFIX):
            pass
        monkeypatch.setattr(presence, "_host", lambda: "here")
        with pytest.raises(UserError, match="'kinds' is running"):
            removal.remove(places, "kinds")
    assert places.experiments() == ["kinds"]
    notes.add(store, "from here")
    assert [note.text for note in notes.read(store).texts] == ["from here"]
