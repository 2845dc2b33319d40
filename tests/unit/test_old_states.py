"""State roots that earlier versions made are opened by this one, and say what they said then.

Each archive was made by the version in its name, with real runs (`tests/data/make_states.py` says
of what, and how); 0.1.0 by its last revision in which Prefect's task engine ran in the workers.
That this version also continues with them is in `tests/system/test_old_states.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import regrow as rg
from regrow.cli.app import app
from tests.data import KINDS, SAID, STATES, unpack

KEPT = {
    "finished": "model.json",
    "pbt": "model.json",
    "paused": "total",
    "failed": "step",
    "killed": "total",
    "command": "weight",
}
"""The file in a checkpoint, of the experiments that have any."""


@pytest.fixture(scope="module", params=sorted(STATES))
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive, unpacked."""
    folder = tmp_path_factory.mktemp("old")
    unpack(request.param, folder)
    return folder


def regrow(old: Path, *words: object) -> str:
    """What a command prints, which must succeed."""
    done = CliRunner().invoke(app, [*map(str, words), "--state", str(old / "state")])
    assert done.exit_code == 0, done.output
    return done.stdout


def is_still_said(then: Any, now: Any) -> bool:
    """Whether all of `then` is in `now`, which may say more in its objects, not in its lists."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(
            key in now and is_still_said(value, now[key]) for key, value in then.items()
        )
    if isinstance(then, list):
        return (
            isinstance(now, list) and len(then) == len(now) and all(map(is_still_said, then, now))
        )
    return bool(then == now)


def test_there_are_old_states() -> None:
    assert "0.1.0" in STATES


def test_all_are_listed(old: Path) -> None:
    listed = [json.loads(line) for line in regrow(old, "ls", "--json").splitlines()]
    assert sorted(row["name"] for row in listed) == sorted(KINDS)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("file", SAID)
def test_what_was_said_of_it_then_is_said_of_it_now(old: Path, name: str, file: str) -> None:
    command, *options = SAID[file]
    then = (old / "said" / name / file).read_text().splitlines()
    now = regrow(old, command, name, *options).splitlines()
    assert len(then) == len(now)
    for before, after in zip(map(json.loads, then), map(json.loads, now), strict=True):
        assert is_still_said(before, after), f"then {before}, now {after}"


@pytest.mark.parametrize("name", KINDS)
def test_people_are_told_the_same(old: Path, name: str) -> None:
    view = json.loads((old / "said" / name / "show.json").read_text())
    assert name in regrow(old, "show", name)
    assert f"{view['best']['config']}"[:1] == "{"
    assert regrow(old, "trials", name).count("\n") >= len(view["trials"])
    assert str(view["best"]["trial"]) in regrow(old, "best", name)


@pytest.mark.parametrize("name", KINDS)
def test_every_decision_is_recomputed_as_it_was_taken(old: Path, name: str) -> None:
    assert "decisions recomputed, all as recorded" in regrow(old, "verify", name)


@pytest.mark.parametrize("name", KINDS)
def test_reports_and_exports_are_made_of_it(old: Path, name: str, tmp_path: Path) -> None:
    regrow(old, "report", name, "-o", tmp_path / "report.html")
    assert name in (tmp_path / "report.html").read_text()
    regrow(
        old,
        "export",
        name,
        "--optuna",
        f"sqlite:///{tmp_path}/x.db",
        "--tensorboard",
        tmp_path / "tb",
    )
    assert list((tmp_path / "tb").rglob("events.out.*"))


@pytest.mark.parametrize("name", KEPT)
def test_its_best_checkpoint_is_restored(old: Path, name: str, tmp_path: Path) -> None:
    regrow(old, "best", name, "--save", tmp_path / "kept")
    assert [file.name for file in (tmp_path / "kept").iterdir()] == [KEPT[name]]


@pytest.mark.parametrize("name", KINDS)
def test_python_has_it_as_an_object(old: Path, name: str) -> None:
    view = json.loads((old / "said" / name / "show.json").read_text())
    result = rg.open(name, state=str(old / "state"))
    assert result.best is not None
    assert (result.best.trial, result.best.value) == (view["best"]["trial"], view["best"]["value"])
    assert len(result.points()) == len(
        (old / "said" / name / "history.jsonl").read_text().splitlines()
    )
