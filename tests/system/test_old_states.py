"""An experiment that an earlier version left in the middle is brought to its end by this one, and
by it alone; and a total that is raised then leaves alone what has ended.

The archives are those of `tests/unit/test_old_states.py`. Their servers' databases are not kept:
MLflow is filled from the log.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.data import STATES, unpack
from tests.system.conftest import Desk, await_no_process
from tests.system.test_main_job import check_whole, mlflow

pytestmark = pytest.mark.usefixtures("shared_prefect")


@pytest.fixture(params=sorted(STATES))
def old(request: pytest.FixtureRequest, desk: Desk) -> Desk:
    """A desk with all that the archive holds."""
    unpack(request.param, desk.folder)
    for file in (desk.folder / "work").iterdir():
        file.rename(desk.folder / file.name)
    (desk.folder / "state").rename(desk.folder / ".regrow")
    return desk


def attempts(view: dict[str, Any]) -> list[list[tuple[Any, ...]]]:
    """How each trial's attempts ended, from where to where."""
    return [
        [(a["outcome"], a["from_step"], a["to_step"]) for a in trial["attempts"]]
        for trial in view["trials"]
    ]


@pytest.mark.parametrize("name", [pytest.param("paused", marks=pytest.mark.nightly), "killed"])
def test_an_old_experiment_goes_on_where_it_was(old: Desk, name: str) -> None:
    before, events, points = old.show(name), old.events(name), old.points(name)
    old.run("run", f"{name}.yaml")
    after = check_whole(old, name, before["total"])
    assert old.events(name)[: len(events)] == events, "the log was only added to"
    for trial, then, now in zip(before["trials"], attempts(before), attempts(after), strict=False):
        if trial["state"] in ("done", "stopped"):
            assert now == then, "what had ended is not run again"
        elif trial["state"] == "running":
            assert [now[0][:2], now[1]] == [("lost", 0), ("done", 2, 4)], (
                "continues after its checkpoint"
            )
        else:
            assert now[: len(then)] == then
            assert all(later[1] == earlier[2] for earlier, later in pairwise(now))
    later = old.points(name)
    assert all(point in later for point in points), "what was reported stands"
    metrics = mlflow(old, "select count(*) from metrics where key = 'score'")
    assert metrics == [(len(later),)]
    runs = mlflow(
        old, "select count(*), min(status), max(status) from runs where lifecycle_stage = 'active'"
    )
    assert runs == [(len(after["trials"]) + 1, "FINISHED", "FINISHED")]
    total = len(after["trials"]) + 2
    old.run("resume", name, "--trials", total)  # from here on it knows where its code lies now
    check_whole(old, name, total)
    assert [point for point in old.points(name) if point["trial"] < total - 2] == later
    assert "finished already" in old.run("resume", name).stdout
    assert await_no_process(old.folder) == []


def test_an_old_folder_of_code_that_is_gone_is_named(old: Desk) -> None:
    for file in old.folder.glob("*.py"):  # where the root lies now they would be found
        file.unlink()
    said = old.run("resume", "killed", expect=2)
    assert str(Path("killed.py")) in said.stderr
