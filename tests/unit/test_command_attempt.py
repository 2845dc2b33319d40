"""A program as a trial: what it reports and saves."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import regrow
from regrow.tasks.errors import UserError
from regrow.tasks.program.reported import ReportFile
from regrow.tasks.program.saved_folder import SavedFolder
from regrow.tasks.trial.trial import NotSaved
from tests.unit.fresh import fresh
from tests.unit.programs import COUNTING, Programs, rows

# Reports


def test_lines_of_json_are_reports_and_all_else_is_output(
    programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    office = programs.done("""
        import json, sys
        print("hello")
        print('{"loss": 1}')
        print("{not json}")
        for epoch in (0, 10):
            print(json.dumps({"score": epoch / 10, "epoch": epoch, "phase": "train", "done": True}))
        print("a complaint", file=sys.stderr)
        print("bye", end="")
    """)
    assert rows(office) == [(1, 0.0), (2, 1.0)]
    assert office.history.trials[0].curve.shown(2) == {"score": 1.0, "epoch": 10.0}, (
        "an epoch of its own is a metric"
    )
    said = capsys.readouterr()
    assert said.out.split("\n") == ["hello", '{"loss": 1}', "{not json}", "bye", ""]
    assert [line for line in said.err.splitlines() if "is not recorded" not in line] == [
        "a complaint"
    ]


@pytest.mark.parametrize(
    ("file", "lines"),
    [
        ("out/metrics.jsonl", ['{"score": 0.1}', '{"lr": 3}', '{"score": 0.2, "lr": 3}']),
        ("metrics.csv", ["epoch,score,name", "0,0.1,a", "1,,b", "1,0.2,c"]),
    ],
)
def test_a_file_is_followed(programs: Programs, file: str, lines: list[str]) -> None:
    office = programs.done(
        f"""
        import os, sys
        print('{{"score": 9}}')  # a report elsewhere, here a line as any other
        with open(sys.argv[1], "w") as file:
            file.write({chr(10).join(lines)!r})  # the last line has no end
        assert sys.argv[1] == os.environ["REGROW_REPORT"]
    """,
        run=("python", "train.py", "{report}"),
        report={"file": file},
    )
    assert rows(office) == [(1, 0.1), (2, 0.2)]


def test_a_file_that_is_written_anew_tells_only_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    followed = ReportFile(path)
    assert list(followed.new()) == []
    path.write_text("a\n1\n2\n3")
    assert list(followed.new()) == [{"a": 1.0}, {"a": 2.0}]
    path.write_text("a,b\n1,5\n2,6\n3,7\n4,8\n")
    assert list(followed.new()) == [{"a": 3.0, "b": 7.0}, {"a": 4.0, "b": 8.0}]
    with path.open("a") as file:
        file.write("5,9\n")
    assert list(followed.new()) == [{"a": 5.0, "b": 9.0}]
    with path.open("a") as file:
        file.write(f"6,{'x' * 200_000}\n")  # a text beside the numbers
    assert list(followed.new()) == [{"a": 6.0}]
    path.write_text("a\n1\n2\n")  # anew, and not finished when it is read
    assert list(followed.new()) == []
    with path.open("a") as file:
        file.write("3\n4\n5\n6\n7\n")
    assert list(followed.new()) == [{"a": 7.0}]


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("open(path, 'w').write('9' * (17 << 20))", "a line has more than 16 MB"),
        ("os.mkfifo(path)", "it is no file"),
        ("os.mkdir(path)", "it is no file"),
        ("os.symlink(path, path)", "symbolic links"),
    ],
)
def test_what_is_no_report_file_fails_the_attempt_with_the_reason(
    programs: Programs, code: str, wrong: str
) -> None:
    office = programs.office(
        f"import os; path = os.environ['REGROW_REPORT']; {code}", report={"file": "m.jsonl"}
    )
    assert wrong in programs.attempt(office).ended.message


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("x" * 200_000, "longer than this system takes; read the file $REGROW_CONFIG_FILE"),
        ("a\0b", "has a NUL, which no argument of a program can have"),
    ],
    ids=["long", "NUL"],
)
def test_a_parameter_that_no_argument_can_be_fails_the_attempt_with_the_reason(
    programs: Programs, text: str, wrong: str
) -> None:
    space = {"text": {"choice": [text]}}
    office = programs.office("", run=("python", "train.py", "{text}"), space=space)
    ended = programs.attempt(office).ended
    assert wrong in ended.message
    assert (ended.cause, ended.trace) == ("error", "")


def test_report_is_exact_and_in_order_and_its_checkpoints_are_of_their_step(
    programs: Programs,
) -> None:
    office = programs.done(COUNTING, checkpoint={"keep_last": 9})
    assert rows(office) == [(n, n / 10) for n in range(1, 6)]
    trial = office.history.trials[0]
    assert sorted(trial.checkpoints) == [1, 2, 3, 4, 5]
    for step, saved in trial.checkpoints.items():
        manifest = office.store.read(saved.manifest).decode()
        assert f'"step":{step}' in manifest.replace(" ", "")


def test_outside_of_a_trial_report_does_nothing_and_costs_nothing() -> None:
    code = (
        "import sys, regrow as rg; rg.report({'loss': 0.5});"
        "print(*sorted({m.partition('.')[0] for m in sys.modules} & {'ray', 'prefect', 'mlflow', 'pydantic', 'msgspec', 'typer', 'yaml'}))"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REGROW_")}
    done = fresh(code, env=environment, check=True)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_every_public_name_is_there_when_it_is_asked_for() -> None:
    assert all(getattr(regrow, name) is not None for name in (*regrow.__all__, "open"))
    assert set(regrow.__all__) <= set(dir(regrow))
    with pytest.raises(AttributeError, match="'regrow' has no attribute 'nothing'"):
        _ = regrow.nothing  # type: ignore[attr-defined]  # as somebody would misspell it


def test_the_program_is_told_what_its_trial_is(programs: Programs) -> None:
    programs.done(
        """
        import json, os, sys
        told = {k: v for k, v in os.environ.items() if k.startswith("REGROW_")}
        print(json.dumps({"score": 1, **{k: len(v) for k, v in told.items()}}))
        print(sys.executable, os.getcwd(), sys.argv[1:], json.loads(told["REGROW_CONFIG"])["x"], told["REGROW_MAX_STEPS"])
        open("told.json", "w").write(json.dumps(told))
    """,
        run=("python", "train.py", "--x", "{x}"),
    )
    told = json.loads((programs.folder / "told.json").read_text())
    assert (told["REGROW_RESTORED"], told["REGROW_EVENT"]) == ("", "")
    assert (
        told["REGROW_TRIAL"],
        told["REGROW_ATTEMPT"],
        told["REGROW_STEP"],
        told["REGROW_MAX_STEPS"],
    ) == ("0", "1", "0", "5")
    assert not Path(told["REGROW_SCRATCH"]).exists(), "it is gone afterwards"


def test_a_program_finds_what_started_the_run_in_a_file_however_long_it_is(
    programs: Programs,
) -> None:
    # more than a variable can hold
    event = {"files": [f"s3://bucket/{number:09}.parquet" for number in range(10_000)]}
    office = programs.done(
        """
        import json, os
        print(json.dumps({"score": len(json.load(open(os.environ["REGROW_EVENT"]))["files"])}))
    """,
        event=event,
    )
    assert rows(office) == [(1, 10_000.0)]


# Checkpoints


def test_a_killed_program_goes_on_from_its_checkpoint(programs: Programs) -> None:
    office = programs.office(
        COUNTING
        + """
        if step == 3 and not restored:
            os.kill(os.getpid(), 9)
    """
    )
    first = programs.attempt(office).ended
    assert (first.outcome, first.cause, first.message) == (
        "failed",
        "infrastructure",
        "python train.py was killed by SIGKILL",
    )
    second = programs.attempt(office)
    assert second.restored == 3
    assert second.ended.outcome == "done"
    assert rows(office) == [(n, n / 10) for n in range(1, 6)]
    assert office.history.lost_steps == 0


def test_what_was_saved_before_is_no_checkpoint_of_a_later_step(programs: Programs) -> None:
    office = programs.office(
        """
        import os, regrow as rg
        for step in range(1, 6):
            if step in (2, 4):
                open(os.environ["REGROW_CHECKPOINT"] + "/step", "w").write(str(step))
            rg.report({"score": step})
    """,
        checkpoint={"keep_last": 9},
    )
    programs.attempt(office)
    assert sorted(office.history.trials[0].checkpoints) == [2, 4]


def test_a_folder_that_is_written_to_while_it_is_copied_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    folder = SavedFolder(saved)
    assert not folder.changed(), "an empty folder is no checkpoint"
    (saved / "model").write_text("half")
    assert folder.changed()
    copytree = shutil.copytree

    def writing(source: Path, target: Path, **options: Any) -> None:
        copytree(source, target, **options)
        (saved / "model").write_text("whole")

    monkeypatch.setattr("regrow.tasks.program.saved_folder.shutil.copytree", writing)
    with pytest.raises(NotSaved, match="save first, then report"):
        folder.copy(tmp_path / "a")
    monkeypatch.undo()
    assert folder.changed()
    folder.copy(tmp_path / "b")
    assert (tmp_path / "b" / "model").read_text() == "whole"
    assert not folder.changed()


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (os.mkfifo, "'bad' is neither a file nor a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "'bad' is neither a file nor a folder"),
        (lambda path: path.symlink_to("nowhere"), "No such file or directory: 'bad'"),
        (lambda path: path.symlink_to("."), "Too many levels of symbolic links"),
    ],
)
def test_what_cannot_be_copied_is_refused_and_named(
    bad: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    (tmp_path / "of").mkdir()
    (tmp_path / "of" / "weights").write_text("w")
    bad(tmp_path / "of" / "bad")
    folder = SavedFolder(tmp_path / "of")
    folder.changed()
    with pytest.raises(UserError, match=f"the checkpoint cannot be saved: .*{said}"):
        folder.copy(tmp_path / "copy")
