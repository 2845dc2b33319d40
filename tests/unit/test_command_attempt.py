"""A program as a trial: real processes, run by an attempt against a real coordinator, with a store in memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import regrow
from regrow.search.lifecycle import TrialState
from regrow.tasks import command, supervisor
from regrow.tasks.attempt import Finished, run_attempt
from regrow.tasks.messages import Assignment
from regrow.tasks.reported import ReportFile
from regrow.tasks.saved_folder import SavedFolder
from regrow.tasks.trial import NotSaved
from tests.unit.office import Bench, Office

COUNTING = """
    import json, os
    from pathlib import Path

    import regrow as rg

    restored, step = os.environ["REGROW_RESTORED"], 0
    if restored:
        step = int((Path(restored) / "step").read_text())
    while step < 5:
        step += 1
        (Path(os.environ["REGROW_CHECKPOINT"]) / "step").write_text(str(step))
        rg.report({"score": step / 10})
"""
"""A script that saves and reports five steps."""


class Desk:
    """A folder with a program, and attempts that run it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.offices: list[Office] = []
        self.bench = Bench()

    def office(self, program: str, *, run: tuple[str, ...] = ("python", "train.py"), **changes: Any) -> Office:
        (self.folder / "train.py").write_text(textwrap.dedent(program))
        given = {
            "trainable": "command", "command": list(run), "working_dir": str(self.folder), "schedule": "fifo", "max_steps": 5, **changes
        }
        self.offices.append(Office(**given))
        return self.offices[-1]

    def attempt(self, office: Office, assignment: Assignment | None = None) -> Finished:
        return run_attempt(
            office.job, assignment or office.submitted(), office, office.store, host=self.bench, task_run="run",
            carry_on=lambda: False,
        )


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    for office in desk.offices:
        office.close()


def rows(office: Office, trial: int = 0) -> list[tuple[int, float]]:
    return list(enumerate(office.history.trials[trial].values, start=1))


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def children_of(pid: int) -> str:
    """The processes that this one has, as text; none once they were waited for."""
    return "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))


def await_true(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


# Reports


def test_lines_of_json_are_reports_and_all_else_is_output(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    office = desk.office("""
        import json, sys
        print("hello")
        print('{"loss": 1}')
        print("{not json}")
        for epoch in (0, 10):
            print(json.dumps({"score": epoch / 10, "epoch": epoch, "phase": "train", "done": True}))
        print("a complaint", file=sys.stderr)
        print("bye", end="")
    """)
    assert desk.attempt(office).ended.outcome == "done"
    assert rows(office) == [(1, 0.0), (2, 1.0)]
    assert office.history.trials[0].curve.shown(2) == {"score": 1.0, "epoch": 10.0}, "an epoch of its own is a metric"
    said = capsys.readouterr()
    assert said.out.split("\n") == ["hello", '{"loss": 1}', "{not json}", "bye", ""]
    assert said.err == "a complaint\n"


@pytest.mark.parametrize(("file", "lines"), [
    ("out/metrics.jsonl", ['{"score": 0.1}', '{"lr": 3}', '{"score": 0.2, "lr": 3}']),
    ("metrics.csv", ["epoch,score,name", "0,0.1,a", "1,,b", "1,0.2,c"]),
])
def test_a_file_is_followed(desk: Desk, file: str, lines: list[str]) -> None:
    office = desk.office(f"""
        import os, sys
        print('{{"score": 9}}')  # a report elsewhere, here a line as any other
        with open(sys.argv[1], "w") as file:
            file.write({chr(10).join(lines)!r})  # the last line has no end
        assert sys.argv[1] == os.environ["REGROW_REPORT"]
    """, run=("python", "train.py", "{report}"), report={"file": file})
    assert desk.attempt(office).ended.outcome == "done"
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


def test_report_is_exact_and_in_order_and_its_checkpoints_are_of_their_step(desk: Desk) -> None:
    office = desk.office(COUNTING, checkpoint={"keep_last": 9})
    assert desk.attempt(office).ended.outcome == "done"
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert (done.stdout, done.stderr) == ("\n", "")


def test_every_public_name_is_there_when_it_is_asked_for() -> None:
    assert all(getattr(regrow, name) is not None for name in (*regrow.__all__, "open"))
    assert set(regrow.__all__) <= set(dir(regrow))
    with pytest.raises(AttributeError, match="'regrow' has no attribute 'nothing'"):
        _ = regrow.nothing  # type: ignore[attr-defined]  # as somebody would misspell it


def test_the_program_is_told_what_its_trial_is(desk: Desk) -> None:
    office = desk.office("""
        import json, os, sys
        told = {k: v for k, v in os.environ.items() if k.startswith("REGROW_")}
        print(json.dumps({"score": 1, **{k: len(v) for k, v in told.items()}}))
        print(sys.executable, os.getcwd(), sys.argv[1:], json.loads(told["REGROW_CONFIG"])["x"], told["REGROW_MAX_STEPS"])
        open("told.json", "w").write(json.dumps(told))
    """, run=("python", "train.py", "--x", "{x}"))
    assert desk.attempt(office).ended.outcome == "done"
    told = json.loads((desk.folder / "told.json").read_text())
    assert told["REGROW_RESTORED"] == ""
    assert (told["REGROW_TRIAL"], told["REGROW_ATTEMPT"], told["REGROW_STEP"], told["REGROW_MAX_STEPS"]) == ("0", "1", "0", "5")
    assert not Path(told["REGROW_SCRATCH"]).exists(), "it is gone afterwards"


# Checkpoints


def test_a_killed_program_goes_on_from_its_checkpoint(desk: Desk) -> None:
    office = desk.office(COUNTING + """
        if step == 3 and not restored:
            os.kill(os.getpid(), 9)
    """)
    first = desk.attempt(office).ended
    assert (first.outcome, first.cause, first.message) == ("failed", "infrastructure", "python train.py was killed by SIGKILL")
    second = desk.attempt(office)
    assert second.restored == 3
    assert second.ended.outcome == "done"
    assert rows(office) == [(n, n / 10) for n in range(1, 6)]
    assert office.history.lost_steps == 0


def test_what_was_saved_before_is_no_checkpoint_of_a_later_step(desk: Desk) -> None:
    office = desk.office("""
        import os, regrow as rg
        for step in range(1, 6):
            if step in (2, 4):
                open(os.environ["REGROW_CHECKPOINT"] + "/step", "w").write(str(step))
            rg.report({"score": step})
    """, checkpoint={"keep_last": 9})
    desk.attempt(office)
    assert sorted(office.history.trials[0].checkpoints) == [2, 4]


def test_a_folder_that_is_written_to_while_it_is_copied_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr("regrow.tasks.saved_folder.shutil.copytree", writing)
    with pytest.raises(NotSaved, match="save first, then report"):
        folder.copy(tmp_path / "a")
    monkeypatch.undo()
    assert folder.changed()
    folder.copy(tmp_path / "b")
    assert (tmp_path / "b" / "model").read_text() == "whole"
    assert not folder.changed()


# Endings


def test_an_exit_code_fails_the_trial_with_what_it_said_last(desk: Desk) -> None:
    office = desk.office("""
        print('{"score": 1}')
        raise ValueError("no such optimizer")
    """)
    ended = desk.attempt(office).ended
    assert (ended.outcome, ended.cause, ended.step) == ("failed", "error", 1)
    assert ended.message == "python train.py exited with 1: ValueError: no such optimizer"
    assert ended.trace.startswith("Traceback")
    assert 'train.py", line 3' in ended.trace
    assert office.history.trials[0].state is TrialState.FAILED


def test_a_program_that_never_reports_the_metric_is_told_what_it_did_report(desk: Desk) -> None:
    office = desk.office("print('{\"accuracy\": 1, \"loss\": 2}')")
    ended = desk.attempt(office).ended
    assert ended.outcome == "failed"
    assert "ended without ever reporting 'score' (its output: seen were: accuracy, loss)" in ended.message


def test_a_report_that_is_no_number_fails_the_trial_and_ends_the_program(desk: Desk) -> None:
    office = desk.office("""
        import regrow as rg, time
        rg.report({"score": "good"})
        time.sleep(1000)
    """)
    assert "metric 'score' is 'good' (str), not a number" in desk.attempt(office).ended.message


def test_a_program_that_goes_on_after_its_last_step_is_ended_and_one_that_finishes_is_not(desk: Desk) -> None:
    office = desk.office("""
        import itertools
        import regrow as rg
        for step in itertools.count():
            rg.report({"score": 1})
    """)
    assert desk.attempt(office).ended.outcome == "done"
    assert len(rows(office)) == 5
    office = desk.office("""
        import time
        import regrow as rg
        for step in range(5):
            rg.report({"score": 1})
        time.sleep(0.5)
        open("finished", "w")
    """)
    assert desk.attempt(office).ended.outcome == "done"
    assert (desk.folder / "finished").exists()


def test_a_decision_ends_the_program_by_sigterm_and_nothing_beyond_it_counts(desk: Desk) -> None:
    program = """
        import os, signal, sys, time
        import regrow as rg

        def leave(*_):
            open(f"left-{os.environ['REGROW_TRIAL']}", "w")
            sys.exit(0)

        signal.signal(signal.SIGTERM, leave)
        for step in range(9):
            rg.report({"score": 1 - int(os.environ["REGROW_TRIAL"])})
        time.sleep(0 if os.environ["REGROW_TRIAL"] == "0" else 1000)
    """
    office = desk.office(program, schedule="asha", max_steps=9, trials=2)
    assert desk.attempt(office).ended.outcome == "done"
    ended = desk.attempt(office).ended
    assert (ended.outcome, ended.step) == ("stopped", 1)
    assert [p.name for p in desk.folder.glob("left-*")] == ["left-1"]
    assert rows(office, 1) == [(1, 0.0)]


def test_lines_that_ran_ahead_of_a_decision_do_not_count(desk: Desk) -> None:
    office = desk.office("""
        import os, time
        score = 1 - int(os.environ["REGROW_TRIAL"])
        print("\\n".join(f'{{"score": {score}}}' for _ in range(9)))
        time.sleep(1000 * (1 - score))
    """, schedule="asha", max_steps=9, trials=2)
    assert desk.attempt(office).ended.outcome == "done"
    ended = desk.attempt(office).ended
    assert (ended.outcome, ended.step) == ("stopped", 1)
    assert rows(office, 1) == [(1, 0.0)]


def test_a_sigterm_for_the_whole_machine_is_no_fault_of_the_program(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program dies of it before the attempt hears of the notice."""
    monkeypatch.setattr(command, "NOTICE_SECONDS", 60.0)  # the notice comes as soon as the program is gone
    office = desk.office("""
        import os, regrow as rg
        rg.report({"score": 1})
        os.kill(os.getpid(), 15)
    """)

    def tell() -> None:
        await_true(lambda: any(news.rows for news in office.told) and not children_of(os.getpid()))
        desk.bench.notice("the machine goes away", True)

    telling = threading.Thread(target=tell)
    telling.start()
    ended = desk.attempt(office).ended
    telling.join()
    assert (ended.outcome, ended.cause) == ("preempted", "preempted")


def test_a_program_that_ignores_sigterm_is_killed_with_all_that_it_started(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "GRACE_SECONDS", 0.3)
    program = """
        import os, signal, subprocess, sys, time
        import regrow as rg
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        open("pids", "w").write(f"{os.getpid()} {child.pid}")
        rg.report({"score": 1})
        while True:
            time.sleep(1000)
    """
    office = desk.office(program, max_steps=9)
    told: list[None] = []

    def notice() -> bool:
        if office.told and any(news.rows for news in office.told) and not told:
            desk.bench.notice("the node goes away", True)
            told.append(None)
        return bool(told)

    telling = threading.Thread(target=await_true, args=(notice,))
    telling.start()
    ended = desk.attempt(office).ended
    telling.join()
    assert (ended.outcome, ended.message) == ("preempted", "the node goes away")
    assert [pid for pid in map(int, (desk.folder / "pids").read_text().split()) if alive(pid)] == []


def test_a_program_that_hears_of_the_end_may_save_and_report_once_more(desk: Desk) -> None:
    program = """
        import os, signal, sys, time
        import regrow as rg

        def leave(*_):
            open(os.environ["REGROW_CHECKPOINT"] + "/step", "w").write("2")
            rg.report({"score": 2})
            sys.exit(0)

        signal.signal(signal.SIGTERM, leave)
        rg.report({"score": 1})
        open("ready", "w")
        time.sleep(1000)
    """
    office = desk.office(program)
    def tell() -> None:
        await_true((desk.folder / "ready").exists)
        desk.bench.notice("the node goes away", True)

    telling = threading.Thread(target=tell)
    telling.start()
    ended = desk.attempt(office).ended
    telling.join()
    assert (ended.outcome, ended.step) == ("preempted", 2)
    assert sorted(office.history.trials[0].checkpoints) == [2]


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_outlives_the_one_who_started_it(tmp_path: Path, stopped: bool) -> None:
    """The supervisor, as an attempt starts it, from a process that is killed; its program may even be stopped (SIGSTOP)."""
    pids = tmp_path / "pids"
    inner = f"sleep 1000 & setsid sleep 1001 & echo $$ $! $(jobs -p) > {pids}.tmp; mv {pids}.tmp {pids}; sleep 1002"
    starter = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-I", "-S", {supervisor.__file__!r}, "10", "bash", "-c", {inner!r}], stdin=subprocess.PIPE,
                 start_new_session=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", starter]) as attempt:
        assert await_true(pids.exists)
        started = [int(pid) for pid in pids.read_text().split()]
        assert len(started) >= 3
        assert all(map(alive, started))
        if stopped:
            os.kill(started[0], signal.SIGSTOP)
        attempt.kill()
        gone = await_true(lambda: not any(map(alive, started)))
    for pid in filter(alive, started):  # where the test fails
        os.kill(pid, signal.SIGKILL)
    assert gone


def test_a_shell_script_is_a_program(desk: Desk) -> None:
    (desk.folder / "train.sh").write_text("""
step=${REGROW_STEP}
if [ -n "$REGROW_RESTORED" ]; then step=$(cat "$REGROW_RESTORED/step"); fi
while [ "$step" -lt 4 ]; do
  step=$((step + 1))
  echo $step > "$REGROW_CHECKPOINT/step"
  echo "{\\"score\\": $step, \\"x\\": $1}"
  sleep 0.3
  if [ "$step" = 2 ] && [ "$REGROW_ATTEMPT" = 1 ]; then kill -9 $$; fi
done
""")
    office = desk.office("", run=("bash", "train.sh", "{x}"))
    assert desk.attempt(office).ended.cause == "infrastructure"
    assert desk.attempt(office).ended.outcome == "done"
    assert rows(office) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
