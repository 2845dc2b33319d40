"""`regrow simulate`: a search over recorded curves, from the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from regrow.search.events import decode
from regrow.search.planning.verify import verify
from tests.unit.curve_tables import ROWS, SPACE, Call, caller, write
from tests.unit.fresh import fresh


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write(tmp_path / "curves.csv")
    (tmp_path / "work.py").write_text(
        "def train(trial):\n    raise RuntimeError('nothing is trained')\n"
    )
    (tmp_path / "spec.yaml").write_text(
        yaml.safe_dump(
            {
                "name": "table",
                "trainable": "work.py:train",
                "metric": "loss",
                "mode": "min",
                "space": SPACE,
                "trials": 6,
                "max_steps": 3,
                "search": "random",
            }
        )
    )
    (tmp_path / "trace.json").write_text('{"metadata": {"gap_seconds": 5}, "data": [1, 1, 0, 1]}')
    (tmp_path / "gone.json").write_text('{"metadata": {"gap_seconds": 1}, "data": [2, 0]}')
    return tmp_path


@pytest.fixture
def regrow(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Runs `regrow simulate` here: status, standard output, standard error."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("COLUMNS", "20")  # a terminal's, and not of this pipe

    return caller(monkeypatch, capsys, "simulate")


def test_it_shows_the_best_and_how_long_it_would_have_taken(regrow: Call) -> None:
    status, out, err = regrow("spec.yaml", "--table", "curves.csv", "--workers", "2")
    assert (status, err) == (0, "")
    assert "table:" in out
    assert "2 machines" in out
    assert "best" in out
    assert "…" not in out


def test_for_machines_it_prints_json(regrow: Call) -> None:
    status, out, _ = regrow("spec.yaml", "--table", "curves.csv", "--workers", "1", "--json")
    found = json.loads(out)
    assert (status, found["workers"], found["status"], len(found["trials"])) == (
        0,
        1,
        "finished",
        6,
    )
    assert found["simulated_s"] >= 18
    assert found["best"]["value"] in {row[4] for row in ROWS}


def test_the_same_twice_is_the_same_log_and_it_can_be_verified(regrow: Call, files: Path) -> None:
    arguments = ("spec.yaml", "--table", "curves.csv", "--trace", "trace.json", "--workers", "3")
    for name in ("a.log", "b.log"):
        assert regrow(*arguments, "--log", name)[0] == 0
    assert (files / "a.log").read_bytes() == (files / "b.log").read_bytes()
    events = [decode(line) for line in (files / "a.log").read_bytes().splitlines()]
    assert verify(events).difference is None
    assert regrow(*arguments, "--log", "c.log", "--seed", "1")[0] == 0
    assert (files / "c.log").read_bytes() != (files / "a.log").read_bytes()


def test_trials_seed_and_scale_may_be_given(regrow: Call) -> None:
    found = [
        json.loads(
            regrow(
                "spec.yaml",
                "--table",
                "curves.csv",
                "--workers",
                "1",
                "--json",
                "--trials",
                "3",
                "--scale",
                scale,
            )[1]
        )
        for scale in ("1", "100")
    ]
    assert [len(one["trials"]) for one in found] == [3, 3]
    assert found[1]["simulated_s"] == pytest.approx(100 * found[0]["simulated_s"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.yaml", "--table", "curves.csv"), "none.yaml: there is no such file"),
        (("spec.yaml", "--table", "none.csv"), "none.csv cannot be read"),
        (("spec.yaml", "--table", "."), "cannot be read"),
        (("spec.yaml", "--table", "work.py"), "work.py: there is no column 'depth'"),
        (("spec.yaml", "--table", "curves.csv", "--trace", "spec.yaml"), "spec.yaml is no trace"),
        (
            ("spec.yaml", "--table", "curves.csv", "--trace", "none.json"),
            "none.json cannot be read",
        ),
        (
            ("spec.yaml", "--table", "curves.csv", "--trace", "gone.json"),
            "every worker is gone for good",
        ),
        (
            ("spec.yaml", "--table", "curves.csv", "--log", "no/such/folder/a.log"),
            "a.log cannot be written",
        ),
        (("spec.yaml", "--table", "curves.csv", "--scale", "inf"), "scale"),
        (("curves.csv", "--table", "curves.csv"), "curves.csv"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    regrow: Call, arguments: tuple[str, ...], said: str
) -> None:
    status, out, err = regrow(*arguments)
    assert status == 2, err
    assert said in err
    assert err.startswith("regrow: ")
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_steps": None}, "max_steps is missing"),
        ({"metric": "los"}, "there is no column 'los'"),
        ({"schedule": "asha", "max_steps": None}, "max_steps"),
        ({"search": "nobody:Class"}, "cannot be imported"),
        ({"stop": {"trial": {"function": "work.py:enough"}}}, "stop.trial.function"),
        ({"warm_start": ["other"]}, "warm_start"),
    ],
)
def test_what_a_simulation_cannot_do_is_told_in_one_line(
    regrow: Call, files: Path, change: dict[str, Any], said: str
) -> None:
    given = {**yaml.safe_load((files / "spec.yaml").read_text()), **change}
    (files / "spec.yaml").write_text(
        yaml.safe_dump({name: value for name, value in given.items() if value is not None})
    )
    status, out, err = regrow("spec.yaml", "--table", "curves.csv")
    assert (status, out) == (2, ""), err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("--workers", "0"),
        ("--workers", "x"),
        ("--workers", "10001"),
        ("--trials", "0"),
        ("--seed", "-1"),
        ("--scale", "-1"),
        ("--scale", "nan"),
    ],
)
def test_a_number_out_of_range_is_refused(regrow: Call, arguments: tuple[str, str]) -> None:
    status, out, err = regrow("spec.yaml", "--table", "curves.csv", *arguments)
    assert (status, out) == (2, "")
    assert arguments[0] in err


def test_without_a_table_it_says_what_is_missing(regrow: Call) -> None:
    status, _, err = regrow("spec.yaml")
    assert status == 2
    assert "--table" in err


def test_as_a_process_it_loads_neither_ray_nor_prefect_and_needs_no_trainable(files: Path) -> None:
    code = (
        "import sys; from regrow.cli import main\n"
        "sys.argv = ['regrow', 'simulate', 'spec.yaml', '--table', 'curves.csv', '--json']\n"
        "try:\n    main()\n"
        "finally:\n    print([m for m in ('ray', 'prefect', 'mlflow') if m in sys.modules], file=sys.stderr)\n"
    )
    done = fresh(code, cwd=files)
    assert json.loads(done.stdout)["status"] == "finished"
    assert done.stderr.strip() == "[]"


def test_a_deadline_is_that_of_a_run_that_begins_now(regrow: Call, files: Path) -> None:
    def limited(deadline: str) -> tuple[int, str, str]:
        spec = yaml.safe_load((files / "spec.yaml").read_text())
        (files / "limited.yaml").write_text(
            yaml.safe_dump({**spec, "stop": {"deadline": deadline}})
        )
        return regrow("limited.yaml", "--table", "curves.csv", "--workers", "1", "--json")

    status, _, err = limited("2001-01-01T00:00Z")
    assert (status, err.count("\n")) == (2, 1)
    assert "stop.deadline" in err
    assert "is over" in err
    soon = datetime.now(UTC) + timedelta(seconds=10)
    status, out, _ = limited(soon.isoformat())
    assert status == 0
    assert json.loads(out)["simulated_s"] < 18, "all trials take longer"
