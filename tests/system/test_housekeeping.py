"""What MLflow shows of notes, tags and experiments that were removed: a real MLflow, no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from regrow.flows.housekeeping import removal
from regrow.flows.housekeeping.removal import rename
from regrow.flows.recording.catch_up import is_recorded, record_missing, write_notes
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.search.events import AnyEvent
from tests.unit import exported


def events(identity: str) -> list[AnyEvent]:
    """The log of a finished experiment `kinds`."""
    import msgspec

    found = exported.simulation(trials=2).run().events
    return [msgspec.structs.replace(found[0], id=identity), *found[1:]]


def test_mlflow_shows_what_was_noted_and_nothing_of_what_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the report has tests of its own
    monkeypatch.setattr("regrow.flows.recording.ending.made", lambda *_: ({}, []))
    places: Places = exported.keep(
        tmp_path / "state", events("11111111-0000-0000-0000-000000000001")
    )
    places.writable()
    record_missing(places, "kinds")
    assert is_recorded(places, "kinds")
    store, client = places.known("kinds"), MlflowClient(places.mlflow_uri)

    # While MLflow is away, the note is kept, and what lacks is known.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    notes.add(store, "lr was too high", tags=["baseline", "x"])
    told = write_notes(places, "kinds")
    assert told is not None
    assert told.startswith("MLflow does not have it yet")
    assert "regrow resume kinds" in told
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert not is_recorded(places, "kinds")

    notes.add(store, "", untags=["x"])
    assert write_notes(places, "kinds") is None
    assert is_recorded(places, "kinds")
    experiment = client.get_experiment_by_name("kinds")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    parent = next(run.data.tags for run in runs if run.data.tags["regrow.key"] == "experiment")
    assert (parent["baseline"], parent["x"], parent["regrow.tags"]) == ("true", "false", "baseline")
    assert parent["mlflow.note.content"].startswith("lr was too high\n\n**kinds**")
    assert len(runs) == 3

    # Under another name it is recorded on, not anew.
    assert rename(places, "kinds", "renamed") is None
    notes.add(places.known("renamed"), "", tags=["again"])
    assert write_notes(places, "renamed") is None
    assert sorted(one.name for one in client.search_experiments()) == ["Default", "renamed"]
    assert len(client.search_runs([experiment.experiment_id])) == 3
    assert rename(places, "renamed", "kinds") is None

    removal.remove(places, "kinds")
    assert [one.name for one in client.search_experiments()] == ["Default"]
    exported.keep(tmp_path / "state", events("22222222-0000-0000-0000-000000000002"))
    record_missing(places, "kinds")
    again = client.get_experiment_by_name("kinds")
    assert again is not None
    found = {
        run.data.tags["regrow.experiment_id"] for run in client.search_runs([again.experiment_id])
    }
    assert found == {"22222222-0000-0000-0000-000000000002"}, (
        "one of the same name does not bring the removed one's runs back"
    )


def test_runs_of_others_in_the_same_mlflow_experiment_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regrow.flows.recording.ending.made", lambda *_: ({}, []))
    places = exported.keep(tmp_path / "state", events("33333333-0000-0000-0000-000000000003"))
    places.writable()
    record_missing(places, "kinds")
    client = MlflowClient(places.mlflow_uri)
    experiment = client.get_experiment_by_name("kinds")
    assert experiment is not None
    mine = client.create_run(experiment.experiment_id).info.run_id
    removal.remove(places, "kinds")
    assert [run.info.run_id for run in client.search_runs([experiment.experiment_id])] == [mine]
