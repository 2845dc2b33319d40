"""Recorded curves as an objective, and recorded traces of machines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from regrow.search.history import History
from regrow.search.planning.simulator import simulate as simulated
from regrow.show.exports import frames
from regrow.show.exports.files import csv_bytes
from regrow.show.exports.recorded import RecordedTable, read_trace
from regrow.tasks.errors import UserError
from tests.unit import exported
from tests.unit.curve_tables import COLUMNS, ROWS, spec, write
from tests.unit.told import rows_of


@pytest.fixture
def table(tmp_path: Path) -> RecordedTable:
    return RecordedTable(write(tmp_path / "curves.csv"), spec())


# Looking up


def test_a_configuration_that_is_there_has_its_own_curve_and_times(table: RecordedTable) -> None:
    assert len(table) == 3
    config = {"lr": 0.01, "depth": 3, "kind": "mlp"}
    assert [table.at(config, step, 0) for step in (1, 2, 3)] == [
        ({"loss": 0.9, "accuracy": 0.1}, 2.0),
        ({"loss": 0.8, "accuracy": 0.2}, 3.0),
        ({"loss": 0.7, "accuracy": 0.3}, 4.0),
    ]


def test_the_seed_plays_no_part_and_a_shorter_curve_goes_on_with_its_last_step(
    table: RecordedTable,
) -> None:
    config = {"lr": 0.01, "depth": 5, "kind": "cnn"}
    assert (
        table.at(config, 2, 0)
        == table.at(config, 2, 99)
        == table.at(config, 3, 1)
        == ({"loss": 0.2, "accuracy": 0.8}, 5.0)
    )


@pytest.mark.parametrize(
    ("config", "loss"),
    [
        ({"lr": 0.02, "depth": 3, "kind": "mlp"}, 0.9),  # nearer to 0.01 in the logarithm
        ({"lr": 0.04, "depth": 3, "kind": "mlp"}, 0.6),  # 0.0316 is the middle
        # a choice in common comes before any distance
        ({"lr": 0.1, "depth": 3, "kind": "cnn"}, 0.3),
        # of two at the same distance, the first
        ({"lr": 0.0316227766016838, "depth": 3, "kind": "mlp"}, 0.9),
    ],
)
def test_another_is_answered_by_its_nearest_neighbour(
    table: RecordedTable, config: dict[str, Any], loss: float
) -> None:
    assert table.at(config, 1, 0)[0]["loss"] == loss


def test_the_best_of_the_table_within_the_steps_of_the_experiment(
    tmp_path: Path, table: RecordedTable
) -> None:
    assert (table.best("loss", most=False), table.best("accuracy", most=True)) == (0.2, 0.8)
    assert RecordedTable(tmp_path / "curves.csv", spec(max_steps=1)).best("loss", most=False) == 0.3


def test_seconds_are_scaled_and_one_each_where_the_table_has_none(tmp_path: Path) -> None:
    config = {"lr": 0.01, "depth": 3, "kind": "mlp"}
    assert RecordedTable(write(tmp_path / "a.csv"), spec(), scale=10).at(config, 2, 0)[1] == 30.0
    without = write(tmp_path / "b.csv", [row[:-1] for row in ROWS], COLUMNS[:-1])
    assert RecordedTable(without, spec(), scale=10).at(config, 2, 0)[1] == 10.0


def test_a_table_that_a_spreadsheet_has_saved_as_utf_8_is_read(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.csv").read_bytes()
    (tmp_path / "marked.csv").write_bytes(b"\xef\xbb\xbf" + plain)
    assert len(RecordedTable(tmp_path / "marked.csv", spec())) == 3


def test_a_gzipped_table_is_read_as_the_plain_one(tmp_path: Path, table: RecordedTable) -> None:
    zipped = RecordedTable(write(tmp_path / "curves.csv.gz"), spec())
    config = {"lr": 0.05, "depth": 4, "kind": "mlp"}
    assert zipped.at(config, 1, 0) == table.at(config, 1, 0)


def test_choices_of_any_kind_and_parameters_that_are_not_active(tmp_path: Path) -> None:
    space = {
        "bias": {"choice": [True, False]},
        "layers": {"choice": [[8, 8], [16]]},
        "momentum": {"uniform": [0, 1], "when": {"bias": True}},
        "size": {"choice": [1, 2]},
    }
    columns = ["bias", "layers", "momentum", "size", "step", "loss"]
    rows = [
        ("True", "[8, 8]", 0.5, 1, 1, 0.1),
        ("false", "[16]", "", 2.0, 1, 0.2),
        ("true", "[16]", 0.9, 2, 1, 0.3),
    ]
    found = RecordedTable(write(tmp_path / "t.csv", rows, columns), spec(space=space, max_steps=1))
    assert (
        found.at({"bias": True, "layers": [8, 8], "momentum": 0.5, "size": 1}, 1, 0)[0]["loss"]
        == 0.1
    )
    assert found.at({"bias": False, "layers": [16], "size": 2}, 1, 0)[0]["loss"] == 0.2
    assert (
        found.at({"bias": True, "layers": [16], "momentum": 0.1, "size": 2}, 1, 0)[0]["loss"] == 0.3
    )


def test_a_grid_is_looked_up_as_a_choice(tmp_path: Path) -> None:
    rows = [("a", 1, 0.1), ("b", 1, 0.2)]
    found = RecordedTable(
        write(tmp_path / "t.csv", rows, ["k", "step", "loss"]),
        spec(space={"k": {"grid": ["a", "b"]}}),
    )
    assert [found.at({"k": k}, 1, 0)[0]["loss"] for k in "ab"] == [0.1, 0.2]


def test_what_is_fixed_in_the_space_selects_in_a_table_that_has_it_and_needs_no_column(
    tmp_path: Path,
) -> None:
    space = {
        "lr": {"loguniform": [1e-4, 1.0]},
        "kind": "cnn",
        "depth": {"int": [1, 9]},
        "epochs": 3,
    }
    found = RecordedTable(write(tmp_path / "t.csv"), spec(space=space))
    config = {"lr": 0.01, "kind": "cnn", "depth": 3, "epochs": 3}
    assert found.at(config, 1, 0)[0] == {"loss": 0.3, "accuracy": 0.7}


# Files that cannot be used


@pytest.mark.parametrize(
    ("rows", "columns", "said"),
    [
        (
            ROWS,
            ["lr", "deep", *COLUMNS[2:]],
            "there is no column 'depth' (there are: lr, deep, kind",
        ),
        (ROWS, [*COLUMNS[:4], "cost", *COLUMNS[5:]], "there is no column 'loss'"),
        (
            ROWS,
            [*COLUMNS[:5], "loss", *COLUMNS[6:]],
            "there are two columns 'loss'; name each once",
        ),
        ([ROWS[0], (*ROWS[1], 7)], COLUMNS, "line 3: has more cells than there are columns"),
        (ROWS, [*COLUMNS[:3], "epoch", *COLUMNS[4:]], "there is no column 'step'"),
        ([], COLUMNS, "there is no configuration in it"),
        ([(0.01, 3, "mlp", 2, 0.9, 0.1, 1)], COLUMNS, "line 2: step 2 where 1 should come"),
        ([ROWS[0], ROWS[2]], COLUMNS, "line 3: step 3 where 2 should come"),
        (
            [ROWS[0], (0.01, 3, "mlp", 2, "low", 0.1, 1)],
            COLUMNS,
            "line 3: loss is 'low', not a number",
        ),
        ([(0.01, 3, "mlp", 1, "", 0.1, 1)], COLUMNS, "line 2: loss is '', not a number"),
        ([(0.01, 3, "mlp", 1, "nan", 0.1, 1)], COLUMNS, "line 2: loss is nan, not a finite number"),
        ([("fast", 3, "mlp", 1, 0.9, 0.1, 1)], COLUMNS, "line 2: lr is 'fast', not a number"),
        ([(0.0, 3, "mlp", 1, 0.9, 0.1, 1)], COLUMNS, "line 2: lr is 0, which has no logarithm"),
        ([(-1, 3, "mlp", 1, 0.9, 0.1, 1)], COLUMNS, "line 2: lr is -1, which has no logarithm"),
        ([(0.01, 3, "mlp", 1, 0.9, 0.1, -1)], COLUMNS, "line 2: seconds is -1, below 0"),
        (
            [(0.01, 3, "mlp", 1, 0.9, 0.1, 1e308)],
            COLUMNS,
            "line 2: seconds is 1e+308, more than 100 years",
        ),
        ([(0.01, 3, "mlp", 1)], COLUMNS, "line 2: loss is missing"),
        ([(0.01, 3, "mlp", 1, 0.9, 0.1, 1), (0.01,)], COLUMNS, "line 3: "),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_line_and_column(
    tmp_path: Path, rows: list[Any], columns: list[str], said: str
) -> None:
    path = write(tmp_path / "t.csv", rows, columns)
    with pytest.raises(UserError) as caught:
        RecordedTable(path, spec())
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_metric_of_a_constraint_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no column 'memory'"):
        RecordedTable(write(tmp_path / "t.csv"), spec(constraints=["memory <= 1"]))


def test_a_further_metric_may_be_missing_at_a_step(tmp_path: Path) -> None:
    """Exports write an empty cell where a trial did not report one of its metrics."""
    searched = spec(
        metric=[{"name": "loss", "mode": "min"}, {"name": "accuracy", "mode": "max"}],
        mode=None,
        search="random",
        schedule="fifo",
        constraints=["accuracy >= 0"],
    )
    rows = [ROWS[0], (*ROWS[1][:5], "", 3.0), *ROWS[2:]]
    table = RecordedTable(write(tmp_path / "t.csv", rows), searched)
    assert table.at({"lr": 0.01, "depth": 3, "kind": "mlp"}, 2, 0) == ({"loss": 0.8}, 3.0)
    assert table.best("accuracy", most=True) == 0.8
    history = simulated(searched, table, workers=2).history
    assert [trial.state.name for trial in history.trials] == ["DONE"] * 6


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("t.csv", b""),
        ("t.csv", bytes(range(256)) * 4),
        ("t.csv", b"lr,depth,kind,step,loss\n\x00\x00,1,mlp,1,2\n"),
        ("t.csv.gz", b"no gzip at all"),
        ("t.csv.gz", gzip.compress(b"lr,depth,kind,step,loss\n" * 100, mtime=0)[:40]),
        (
            "t.csv.gz",
            gzip.compress(b"lr,depth,kind,step,loss\n" * 100, mtime=0)[:20] + b"\xff" * 30,
        ),
        ("t.csv", b"x" * 200_000),
        ("t.csv", None),
    ],
    ids=[
        "empty",
        "all bytes",
        "zeros",
        "no gzip",
        "gzip cut short",
        "gzip damaged",
        "no lines",
        "not there",
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_line(
    tmp_path: Path, name: str, data: bytes | None
) -> None:
    path = tmp_path / name
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        RecordedTable(path, spec())
    assert str(path) in str(caught.value)


# Traces


def test_a_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": 60}, "data": [2, 1, 0, 2]}))
    machines = read_trace(path).machines(2)
    assert [[machine.up(t) for t in (0, 60, 120, 180)] for machine in machines] == [
        [True, True, False, True],
        [True, False, False, True],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"data": [1]}',
        '{"metadata": {"gap_seconds": 60}, "data": []}',
        '{"metadata": {"gap_seconds": 60}, "data": ["x"]}',
        '{"metadata": {"gap_seconds": 60}, "data": 3}',
        '{"metadata": {"gap_seconds": 0}, "data": [1, 0]}',
        '{"metadata": {"gap_seconds": -5}, "data": [1, 0]}',
        '{"metadata": {"gap_seconds": NaN}, "data": [1, 0]}',
        '{"metadata": {"gap_seconds": 1e308}, "data": [1, 0]}',
        "[" * 100_000,
        '{"metadata": {"gap_seconds": 60}, "data": [1, -1]}',
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_its_form(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(UserError, match="is no trace"):
        read_trace(path)


def test_a_trace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    with pytest.raises(UserError):
        read_trace(tmp_path / "binary")


# What an experiment itself recorded


def written(history: History, path: Path) -> Path:
    with rows_of(history).sorted() as found, path.open("wb") as file:
        file.writelines(csv_bytes(frames.curves(history, found)))
    return path


def test_what_trials_history_csv_writes_is_a_table_as_it_is(tmp_path: Path) -> None:
    """Run -> export -> simulate: each trial is found again with its curve, its times, and each kind
    of parameter.
    """
    history = exported.history(schedule="fifo", search="random")
    path = written(history, tmp_path / "curves.csv")
    table = RecordedTable(path, history.spec)
    assert len(table) == len(history.trials) == 12
    for trial in history.trials:
        rows = [row for _, row in rows_of(history).of(trial.number)]
        assert [table.at(trial.config, row.step, 0)[0] for row in rows] == [
            {name: value for name, value in row.metrics.items() if value is not None}
            for row in rows
        ]
        assert [table.at(trial.config, row.step, 0)[1] for row in rows] == pytest.approx([1.0] * 9)
    again = simulated(history.spec, table, workers=3).history
    assert [t.best for t in again.trials] == [t.best for t in history.trials], (
        "the same seed proposes the same configurations"
    )


def test_text_that_a_spreadsheet_would_calculate_is_read_as_it_was(tmp_path: Path) -> None:
    space = {"kind": {"choice": ["=mlp", "-cnn", "'quoted"]}}
    history = exported.history(
        lambda config, step: {"score": float(len(config["kind"]))}, space=space, schedule="fifo"
    )
    path = written(history, tmp_path / "curves.csv")
    table = RecordedTable(path, history.spec)
    for kind in ("=mlp", "-cnn", "'quoted"):
        assert table.at({"kind": kind}, 1, 0)[0] == {"score": len(kind)}


def test_a_trial_that_changed_its_configuration_is_no_curve(tmp_path: Path) -> None:
    history = exported.history(
        schedule={"pbt": {"perturbation_interval": 2}},
        trials=4,
        space={"lr": {"loguniform": [1e-4, 1e-1]}, "model": {"rate": {"uniform": [0, 1]}}},
    )
    assert any(trial.changes for trial in history.trials)
    path = written(history, tmp_path / "curves.csv")
    with pytest.raises(UserError, match=r"line \d+: trial \d changes its configuration"):
        RecordedTable(path, history.spec)
