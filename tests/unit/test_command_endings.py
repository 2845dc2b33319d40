"""How a program that is a trial ends: by itself, by a decision, by a signal, with all that it
started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from regrow.search.lifecycle import TrialState
from regrow.tasks.program import command, supervisor
from tests.unit.programs import Programs, alive, await_true, children_of, rows


def test_an_exit_code_fails_the_trial_with_what_it_said_last(programs: Programs) -> None:
    office = programs.office("""
        print('{"score": 1}')
        raise ValueError("no such optimizer")
    """)
    ended = programs.attempt(office).ended
    assert (ended.outcome, ended.cause, ended.step) == ("failed", "error", 1)
    assert ended.message == "python train.py exited with 1: ValueError: no such optimizer"
    assert ended.trace.startswith("Traceback")
    assert 'train.py", line 3' in ended.trace
    assert office.history.trials[0].state is TrialState.FAILED


def test_a_program_that_never_reports_the_metric_is_told_what_it_did_report(
    programs: Programs,
) -> None:
    office = programs.office('print(\'{"accuracy": 1, "loss": 2}\')')
    ended = programs.attempt(office).ended
    assert ended.outcome == "failed"
    assert (
        "ended without ever reporting 'score' (its output: seen were: accuracy, loss)"
        in ended.message
    )


def test_a_report_that_is_no_number_fails_the_trial_and_ends_the_program(
    programs: Programs,
) -> None:
    office = programs.office("""
        import regrow as rg, time
        rg.report({"score": "good"})
        time.sleep(1000)
    """)
    assert "metric 'score' is 'good' (str), not a number" in programs.attempt(office).ended.message


def test_a_program_that_goes_on_after_its_last_step_is_ended_and_one_that_finishes_is_not(
    programs: Programs,
) -> None:
    office = programs.done("""
        import itertools
        import regrow as rg
        for step in itertools.count():
            rg.report({"score": 1})
    """)
    assert len(rows(office)) == 5
    office = programs.done("""
        import time
        import regrow as rg
        for step in range(5):
            rg.report({"score": 1})
        time.sleep(0.5)
        open("finished", "w")
    """)
    assert (programs.folder / "finished").exists()


def test_a_decision_ends_the_program_by_sigterm_and_nothing_beyond_it_counts(
    programs: Programs,
) -> None:
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
    office = programs.done(program, schedule="asha", max_steps=9, trials=2)
    ended = programs.attempt(office).ended
    assert (ended.outcome, ended.step) == ("stopped", 1)
    assert [p.name for p in programs.folder.glob("left-*")] == ["left-1"]
    assert rows(office, 1) == [(1, 0.0)]


def test_lines_that_ran_ahead_of_a_decision_do_not_count(programs: Programs) -> None:
    office = programs.done(
        """
        import os, time
        score = 1 - int(os.environ["REGROW_TRIAL"])
        print("\\n".join(f'{{"score": {score}}}' for _ in range(9)))
        time.sleep(1000 * (1 - score))
    """,
        schedule="asha",
        max_steps=9,
        trials=2,
    )
    ended = programs.attempt(office).ended
    assert (ended.outcome, ended.step) == ("stopped", 1)
    assert rows(office, 1) == [(1, 0.0)]


def test_a_sigterm_for_the_whole_machine_is_no_fault_of_the_program(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program dies of it before the attempt hears of the notice."""
    # the notice comes as soon as the program is gone
    monkeypatch.setattr(command, "NOTICE_SECONDS", 60.0)
    office = programs.office("""
        import os, regrow as rg
        rg.report({"score": 1})
        os.kill(os.getpid(), 15)
    """)

    def tell() -> None:
        await_true(lambda: any(news.rows for news in office.told) and not children_of(os.getpid()))
        programs.bench.notice("the machine goes away", True)

    telling = threading.Thread(target=tell)
    telling.start()
    ended = programs.attempt(office).ended
    telling.join()
    assert (ended.outcome, ended.cause) == ("preempted", "preempted")


def test_a_program_that_ignores_sigterm_is_killed_with_all_that_it_started(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
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
    office = programs.office(program, max_steps=9)
    told: list[None] = []

    def notice() -> bool:
        if office.told and any(news.rows for news in office.told) and not told:
            programs.bench.notice("the node goes away", True)
            told.append(None)
        return bool(told)

    telling = threading.Thread(target=await_true, args=(notice,))
    telling.start()
    ended = programs.attempt(office).ended
    telling.join()
    assert (ended.outcome, ended.message) == ("preempted", "the node goes away")
    assert [
        pid for pid in map(int, (programs.folder / "pids").read_text().split()) if alive(pid)
    ] == []


def test_a_program_that_hears_of_the_end_may_save_and_report_once_more(programs: Programs) -> None:
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
    office = programs.office(program)

    def tell() -> None:
        await_true((programs.folder / "ready").exists)
        programs.bench.notice("the node goes away", True)

    telling = threading.Thread(target=tell)
    telling.start()
    ended = programs.attempt(office).ended
    telling.join()
    assert (ended.outcome, ended.step) == ("preempted", 2)
    assert sorted(office.history.trials[0].checkpoints) == [2]


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_outlives_the_one_who_started_it(tmp_path: Path, stopped: bool) -> None:
    """The supervisor, as an attempt starts it, from a process that is killed; its program may even
    be stopped (SIGSTOP).
    """
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


def test_a_shell_script_is_a_program(programs: Programs) -> None:
    (programs.folder / "train.sh").write_text("""
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
    office = programs.office("", run=("bash", "train.sh", "{x}"))
    assert programs.attempt(office).ended.cause == "infrastructure"
    assert programs.attempt(office).ended.outcome == "done"
    assert rows(office) == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
