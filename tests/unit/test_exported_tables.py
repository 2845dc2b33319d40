"""Tables of trials and steps: all that was reported is in them once, and they do no harm where they
are opened.
"""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import Result

from regrow.search.history import History
from regrow.show.exports import destination, files, frames
from regrow.show.views import summaries
from regrow.tasks.errors import UserError
from tests.unit import exported
from tests.unit.exported import CONFIG, regrow
from tests.unit.told import its_rows, rows_of


def read(data: bytes) -> list[list[str]]:
    """CSV as any reader takes it."""
    return list(csv.reader(io.StringIO(data.decode(), newline="")))


def cells(table: frames.Table) -> dict[str, list[Any]]:
    """Columns by name."""
    return {column.name: column.cells for column in table}


OWN = (
    "trial",
    "state",
    "value",
    "step",
    "steps",
    "attempts",
    "wasted_steps",
    "started",
    "ended",
    "seconds",
    "cost",
    "node",
    "reason",
    "checkpoint",
)


def test_the_columns_are_the_same_before_the_first_report_and_after_the_last(
    unfinished_history: History,
) -> None:
    expected = [
        *OWN,
        *(f"config.{name}" for name in CONFIG),
        "metrics.score",
        "metrics.=cost",
        "metrics.loss",
    ]
    assert [column.name for column in frames.trials(rows_of(unfinished_history))] == expected
    empty = exported.empty()
    assert [column.name for column in frames.trials(rows_of(empty))] == [
        n for n in expected if n not in ("metrics.=cost", "metrics.loss")
    ]
    assert {c.name: c.kind for c in frames.trials(rows_of(empty))}.items() <= {
        c.name: c.kind for c in frames.trials(rows_of(unfinished_history))
    }.items()


def test_a_row_is_a_trial_with_the_metrics_of_its_best_step(unfinished_history: History) -> None:
    found = cells(frames.trials(rows_of(unfinished_history)))
    for place, trial in enumerate(unfinished_history.trials):
        assert found["trial"][place] == trial.number
        assert found["state"][place] == trial.state.value
        assert (found["value"][place], found["step"][place]) == (trial.best or (None, None))
        assert found["steps"][place] == trial.step
        if trial.best is not None:
            assert found["metrics.score"][place] == trial.best[0]
            assert (
                found["metrics.loss"][place]
                == its_rows(unfinished_history, trial)[trial.best[1] - 1].metrics["loss"]
            )
        assert {n: found[f"config.{n}"][place] for n in CONFIG if n in trial.config} == trial.config
        assert (found["ended"][place] is not None) == trial.state.final


def test_with_several_metrics_a_row_has_those_of_the_last_step() -> None:
    metrics = [{"name": "score", "mode": "max"}, {"name": "=cost", "mode": "min"}]
    history = exported.history(metric=metrics, mode=None, schedule="fifo", price_per_hour=36.0)
    found = cells(frames.trials(rows_of(history)))
    assert found["metrics.=cost"] == [2.0 * trial.step for trial in history.trials]
    assert found["cost"] == [summaries.trial_view(history, t)["cost"] for t in history.trials]
    assert min(found["cost"]) > 0


@pytest.mark.parametrize("cells_at_once", [21, 200_000])
def test_steps_are_the_points_of_every_trial_once(
    unfinished_history: History, cells_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "CELLS", cells_at_once)
    with rows_of(unfinished_history).sorted() as steps:
        parts = [cells(part) for part in frames.steps(steps)]
        points = list(summaries.points(steps))
    assert (len(parts) > 1) == (cells_at_once == 21)
    found = {name: [cell for part in parts for cell in part[name]] for name in parts[0]}
    assert [(point["trial"], point["step"]) for point in points] == [
        (trial.number, row.step)
        for trial in unfinished_history.trials
        for row in its_rows(unfinished_history, trial)
    ]
    assert len(points) == len(found["step"]) > 20
    for name in ("trial", "step", "attempt"):
        assert found[name] == [point[name] for point in points]
    for name in ("score", "loss", "=cost"):
        assert found[f"metrics.{name}"] == [point[name] for point in points]
    assert None in found["metrics.loss"]  # it was not finite


def test_a_frame_has_a_type_for_each_column(unfinished_history: History) -> None:
    types = {
        name: str(kind)
        for name, kind in frames.frame(frames.trials(rows_of(unfinished_history))).dtypes.items()
    }
    assert types["trial"] == types["config.model.layers"] == types["config.seed"] == "int64"
    assert types["step"] == types["config.warmup"] == "Int64"  # missing in some rows
    assert (
        types["value"]
        == types["config.lr"]
        == types["config.momentum"]
        == types["metrics.loss"]
        == "float64"
    )
    # pandas 3, pandas 2
    assert types["config.optimizer"] == types["state"] == "str" or types["state"] == "object"
    assert types["config.mixed"] == "object"
    assert types["started"].startswith("datetime64[")
    assert types["started"].endswith("UTC]")
    empty = frames.frame(frames.trials(rows_of(exported.empty())))
    assert empty.empty
    assert str(empty.dtypes["config.lr"]) == "float64"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, False], "truth"),
        ([1, 2], "whole"),
        ([1, 2.5], "number"),
        (["a", "b"], "text"),
        ([1, "a"], "any"),
        ([True, 1], "any"),
        ([[1], [2]], "any"),
        ([2**70, 1], "any"),
    ],
)
def test_the_type_of_a_choice_is_that_of_its_values(values: list[Any], kind: str) -> None:
    history = exported.history(
        lambda config, step: {"score": step},
        space={"x": {"choice": values}},
        trials=3,
        schedule="fifo",
    )
    table = frames.trials(rows_of(history))
    assert next(column.kind for column in table if column.name == "config.x") == kind
    assert list(frames.frame(table)["config.x"]) == [trial.config["x"] for trial in history.trials]


def test_csv_is_rfc_4180_and_numbers_come_back_as_they_were(unfinished_history: History) -> None:
    data = b"".join(files.csv_bytes([frames.trials(rows_of(unfinished_history))]))
    assert data.count(b"\r\n") == len(unfinished_history.trials) + 1
    head, *rows = read(data)
    assert len({len(row) for row in [head, *rows]}) == 1
    place = head.index("config.lr")
    assert [float(row[place]) for row in rows] == [
        trial.config["lr"] for trial in unfinished_history.trials
    ]
    mixed_place = head.index("config.mixed")
    written = {
        json.dumps(trial.config["mixed"]): row[mixed_place]
        for trial, row in zip(unfinished_history.trials, rows, strict=True)
    }
    assert written.get("[1, 2]", "[1, 2]") == "[1, 2]"
    assert written.get("true", "true") == "true"
    assert len(written) > 3
    assert {row[head.index("step")] for row in rows} <= {"", *map(str, range(1, 10))}


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =cmd|' /C calc'!A0", "\uff1d1", "\n=1"],
)
def test_no_text_is_a_formula_for_a_spreadsheet(text: str) -> None:
    table = [
        frames.Column(name=text, kind="text", cells=[text, "fine", None]),
        frames.Column(name="n", kind="number", cells=[-1.5] * 3),
    ]
    (head, number), (cell, minus), (fine, _), (nothing, _) = read(
        b"".join(files.csv_bytes([table]))
    )
    assert head.startswith("'")
    assert head[1:] == text == cell[1:]
    assert cell.startswith("'")
    assert (fine, nothing, minus, number) == ("fine", "", "-1.5", "n")


def test_no_text_is_a_command_for_a_terminal() -> None:
    column = frames.Column(
        name="x", kind="text", cells=["\x1b[31mred\x07\x9b1m", 'two\nlines, "quoted", é ✓']
    )
    data = b"".join(files.csv_bytes([[column]]))
    assert read(data)[1:] == [["\\x1b[31mred\\x07\\x9b1m"], ['two\nlines, "quoted", é ✓']]
    assert b"\x1b" not in data


def test_what_user_code_said_is_harmless_in_the_file_that_the_command_writes(
    unfinished_root: Path, tmp_path: Path
) -> None:
    done = regrow("trials", "kinds", tmp_path / "t.csv", "--csv", "--state", unfinished_root)
    assert done.exit_code == 0
    assert "10 trials" in done.output
    head, *rows = read((tmp_path / "t.csv").read_bytes())
    assert "ValueError: =1+1\\x1b[31m" in [row[head.index("reason")] for row in rows]
    assert "metrics.=cost" in head
    printed = regrow("trials", "kinds", "--csv", "--state", unfinished_root)
    assert printed.stdout_bytes == (tmp_path / "t.csv").read_bytes()


def test_parquet_has_the_types_of_the_frame(
    unfinished_root: Path, tmp_path: Path, unfinished_history: History
) -> None:
    assert (
        regrow(
            "trials", "kinds", tmp_path / "t.parquet", "--parquet", "--state", unfinished_root
        ).exit_code
        == 0
    )
    found = pd.read_parquet(tmp_path / "t.parquet")
    expected = frames.frame(frames.trials(rows_of(unfinished_history)))
    assert list(found.columns) == list(expected.columns)
    assert str(found.dtypes["config.warmup"]) == "Int64"
    assert found["config.lr"].tolist() == expected["config.lr"].tolist()
    assert found["started"].tolist() == expected["started"].tolist()
    assert [
        json.loads(v) if isinstance(v, str) else None for v in found["config.mixed"]
    ] == expected["config.mixed"].tolist()
    assert (
        regrow(
            "trials",
            "kinds",
            tmp_path / "s.parquet",
            "--parquet",
            "--history",
            "--state",
            unfinished_root,
        ).exit_code
        == 0
    )
    steps = pd.read_parquet(tmp_path / "s.parquet")
    assert list(zip(steps["trial"], steps["step"], steps["metrics.=cost"], strict=True)) == [
        (trial.number, row.step, row.metrics["=cost"])
        for trial in unfinished_history.trials
        for row in its_rows(unfinished_history, trial)
    ]
    assert {str(steps.dtypes[name]) for name in ("trial", "step", "attempt")} == {"int64"}


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, unfinished_history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("before")
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(UserError, match="No space left on device"):
            destination.put(path, files.csv_bytes([frames.trials(rows_of(unfinished_history))]))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    destination.put(link, files.csv_bytes([frames.trials(rows_of(unfinished_history))]))
    assert link.is_symlink(), "what a link leads to is replaced, not the link"
    assert path.read_text().startswith("trial,")
    assert path.stat().st_mode & 0o777 == 0o666 & ~_mask()


COMMANDS = {
    "csv": ("trials", "kinds", "--csv"),
    "parquet": ("trials", "kinds", "--parquet"),
    "html": ("report", "kinds", "-o"),
}


def test_standard_output_takes_what_a_file_would_hold(
    unfinished_root: Path, tmp_path: Path
) -> None:
    """A pipe, and a file that has something in it already; the word about it stands beside it."""
    assert (
        regrow(*COMMANDS["csv"], tmp_path / "table.csv", "--state", unfinished_root).exit_code == 0
    )
    table = (tmp_path / "table.csv").read_bytes()
    assert table.count(b"\n") == 11
    command = [
        sys.executable,
        "-m",
        "regrow",
        *COMMANDS["csv"],
        "/dev/stdout",
        "--state",
        str(unfinished_root),
    ]
    done = subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert (done.stdout, done.stderr.count(b"/dev/stdout: 10 trials")) == (table, 1)
    with (tmp_path / "all").open("wb", buffering=0) as whole:
        whole.write(b"before\n")
        subprocess.run(command, check=True, stdout=whole, stderr=subprocess.PIPE, timeout=120)
        whole.write(b"after\n")
    assert (tmp_path / "all").read_bytes() == b"before\n" + table + b"after\n"


def test_a_pipe_and_a_descriptor_take_what_a_file_would_hold(
    unfinished_root: Path, tmp_path: Path
) -> None:
    def write(kind: str, file: object) -> Result:
        return regrow(*COMMANDS[kind], file, "--state", unfinished_root)

    assert write("csv", tmp_path / "table.csv").exit_code == 0
    table = (tmp_path / "table.csv").read_bytes()
    with (tmp_path / "all").open("wb", buffering=0) as whole:
        whole.write(b"before\n")
        assert write("csv", f"/dev/fd/{whole.fileno()}").exit_code == 0
        whole.write(b"after\n")
    assert (tmp_path / "all").read_bytes() == b"before\n" + table + b"after\n"
    os.mkfifo(tmp_path / "pipe")
    for kind, begin in (("html", b"<!doctype html>"), ("parquet", b"PAR1")):
        with (
            (tmp_path / kind).open("wb") as copy,
            subprocess.Popen(["cat", tmp_path / "pipe"], stdout=copy) as reader,
        ):
            try:
                assert write(kind, tmp_path / "pipe").exit_code == 0
                assert reader.wait(60) == 0
            finally:
                reader.kill()  # it waits for as long as nobody writes
        assert (tmp_path / kind).read_bytes().lower().startswith(begin.lower())
    assert (tmp_path / "pipe").is_fifo()
    for kind in ("html", "csv"):
        said = write(kind, "/dev/full").exception
        assert isinstance(said, UserError)
        assert str(said) == "/dev/full cannot be written: No space left on device"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], (
        "a half-written file was left"
    )


def test_what_cannot_be_written_is_refused_before_anything_is_made(
    unfinished_root: Path, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "socket"))
        for words in (
            ["trials", "kinds", "--csv", tmp_path / "socket"],
            ["report", "kinds", "-o", tmp_path / "socket"],
        ):
            wrong = regrow(*words, "--state", unfinished_root)
            assert isinstance(wrong.exception, UserError)
            assert "is no file, but a socket" in str(wrong.exception)
    wrong = regrow("report", "kinds", "-o", tmp_path, "--state", unfinished_root)
    assert isinstance(wrong.exception, UserError)
    assert "is a folder; name a file in it" in str(wrong.exception)
    wrong = regrow("report", "kinds", "-o", "/dev/null", "--open", "--state", unfinished_root)
    assert isinstance(wrong.exception, UserError)
    assert "no file that a browser could open" in str(wrong.exception)


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--csv", "--parquet"], "exclude each other"),
        (["--csv", "--json"], "exclude each other"),
        (["--parquet"], "name a file"),
        (["t.csv"], "a file goes with --csv or --parquet"),
        (["nowhere/t.csv", "--csv"], "nowhere/t.csv cannot be written: No such file or directory"),
        ([".", "--csv"], "is a folder"),
    ],
)
def test_a_mistake_with_tables_is_said_in_a_line(
    words: list[str],
    said: str,
    unfinished_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = regrow("trials", "kinds", *words, "--state", unfinished_root)
    assert isinstance(done.exception, UserError)
    assert said in str(done.exception)
