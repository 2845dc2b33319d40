"""W&B's own package in a trial, by the user's choice: what it is told is reported and kept here,
too. Offline: no account is asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.programs import Programs
from tests.unit.test_wandb_standin import table

APART = Path(__file__).parents[2] / ".venv" / "apart" / "wandb"


@pytest.fixture(autouse=True)
def _real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_WANDB_PACKAGE", "real")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def test_logs_go_to_both_and_a_killed_program_goes_on_from_what_it_saved(
    programs: Programs, capfd: Any
) -> None:
    if not (APART / "wandb").is_dir():
        pytest.skip("wandb is not installed; `make nightly` installs it")
    office = programs.office(
        f"""
        import sys
        sys.path.append({str(APART)!r})
        import json, os
        import wandb
        assert wandb.__file__.startswith({str(APART)!r}), wandb.__file__
        run = wandb.init(project="p", config={{"x": -1, "width": 3}}, resume="allow")
        assert 0.1 <= run.config.x <= 1.0 and wandb.config["width"] == 3, dict(run.config)
        state = json.load(wandb.restore("state.json")) if wandb.run.resumed else {{"epoch": 0}}
        killed = wandb.run.resumed
        while state["epoch"] < 4:
            state["epoch"] += 1
            with open(os.path.join(run.dir, "state.json"), "w") as file:
                json.dump(state, file)
            wandb.save(os.path.join(run.dir, "state.json"))
            wandb.log({{"score": state["epoch"], "picture": wandb.Histogram([1, 2])}})
            if state["epoch"] == 2 and not killed:
                os.kill(os.getpid(), 9)
        run.log({{"test": 1}})
    """,
        space={"x": {"uniform": [0.1, 1.0]}},
    )
    first = programs.attempt(office)
    assert first.ended.cause == "infrastructure", capfd.readouterr()
    second = programs.attempt(office)
    assert (second.ended.outcome, second.restored) == ("done", 2), capfd.readouterr()
    assert table(office) == [
        {"score": 1.0},
        {"score": 2.0},
        {"score": 3.0},
        {"score": 4.0},
        {"score": 4.0, "test": 1.0},
    ]
    assert len([*(programs.folder / "wandb").glob("offline-run-*/*.wandb")]) == 2, (
        "each attempt is a run of its own there"
    )


@pytest.mark.parametrize("finishes", [True, False])
def test_a_second_run_is_further_steps(programs: Programs, finishes: bool) -> None:
    if not (APART / "wandb").is_dir():
        pytest.skip("wandb is not installed; `make nightly` installs it")
    office = programs.done(f"""
        import sys
        sys.path.append({str(APART)!r})
        import wandb
        for fold in range(2):
            run = wandb.init(project="p", reinit={not finishes})
            for epoch in range(2):
                run.log({{"score": 10 * fold + epoch}}, step=epoch)
            if {finishes}:
                run.finish()
    """)
    assert [row["score"] for row in table(office)] == [0.0, 1.0, 10.0, 11.0]


def test_where_it_is_not_installed_the_program_is_told_how_to_go_on(programs: Programs) -> None:
    office = programs.office("import wandb")
    assert (
        "No module named 'wandb', W&B's own; pip install wandb, or leave REGROW_WANDB=real out"
        in programs.attempt(office).ended.message
    )
