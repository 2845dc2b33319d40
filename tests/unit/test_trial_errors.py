"""What a trainable raises, or reports wrongly, becomes the outcome of its attempt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from regrow.search.lifecycle import TrialState
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Unavailable
from regrow.tasks.trial import Trial
from tests.unit.attempting import Attempting, steps
from tests.unit.office import MakeOffice
from tests.unit.told import kept


def raises(error: BaseException) -> Callable[[Trial], None]:
    def train(trial: Trial) -> None:
        trial.report({"score": 1.0})
        raise error

    return train


@pytest.mark.parametrize(
    ("error", "cause", "message"),
    [
        (ValueError("bad shape\nsecond line"), "error", "ValueError: bad shape"),
        (KeyError("lr"), "error", "KeyError: 'lr'"),
        (SystemExit(3), "error", "SystemExit: 3"),
        (MemoryError(), "infrastructure", "out of memory"),
        (UserError("trainable: no such file"), "error", "trainable: no such file"),
        (Unavailable("k", "full"), "infrastructure", "the store failed"),
    ],
)
def test_what_the_trainable_raises_becomes_the_outcome(
    make_office: MakeOffice, attempt: Attempting, error: BaseException, cause: str, message: str
) -> None:
    office = make_office()
    ended = attempt(office, raises(error)).ended
    assert (ended.outcome, ended.cause) == ("failed", cause)
    assert ended.message.startswith(message)
    assert "\n" not in ended.message
    assert steps(office) == [1], "what was reported before counts"
    expected = TrialState.FAILED if cause == "error" else TrialState.RUNNING
    assert office.history.trials[0].state is expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\x1b[36mray::f()\x1b[39m (pid=3, ip=127.0.0.2)\n  File \"a.py\", line 5, in f\n    g()\nKeyError: 'lr'", "KeyError: 'lr'"),
        ("f failed to import:\n\nray::f() (pid=3)\n        ^^^^^^^\nModuleNotFoundError: No module named 'a'\n", "ModuleNotFoundError: No module named 'a'"),
        ("two\nlines", "two lines"),
        ("the caret ^ is not\nallowed", "the caret ^ is not allowed"),
    ],
)
def test_of_a_traceback_of_another_process_the_last_line_is_told(
    text: str, said: str, make_office: MakeOffice, attempt: Attempting
) -> None:
    ended = attempt(make_office(), raises(RuntimeError(text))).ended
    assert ended.message == f"RuntimeError: {said}"


@pytest.mark.parametrize("code", [None, 0])
def test_a_script_that_exits_without_an_error_has_ended(make_office: MakeOffice, attempt: Attempting, code: int | None) -> None:
    office = make_office()
    assert attempt(office, raises(SystemExit(code))).ended.outcome == "done"
    assert office.history.trials[0].state is TrialState.DONE


def test_the_traceback_begins_with_the_users_code(make_office: MakeOffice, attempt: Attempting) -> None:
    office = make_office()
    trace = attempt(office, raises(ValueError("bad shape"))).ended.trace
    frames = [line for line in trace.splitlines() if line.strip().startswith("File")]
    assert len(frames) == 1
    assert Path(__file__).name in frames[0]
    assert trace.rstrip().endswith("ValueError: bad shape")


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (lambda t: t.report({"scores": 1.0}), "did you mean 'scores'?"),
        (lambda t: t.report({}), "'score' was not reported"),
        (lambda t: t.report({"score": float("nan")}), "nan, not a finite number"),
        (lambda t: t.report({"score": float("inf")}), "inf, not a finite number"),
        (lambda t: t.report({"score": "high"}), "not a number"),
        (lambda t: t.report({"score": True}), "not a number"),
        (lambda t: [t.report({"score": 1.0}) for _ in range(2)], "step 1 was reported twice"),
        (lambda _: None, "step 1 was not reported"),
    ],
)
def test_a_report_that_cannot_be_recorded_fails_with_one_line(
    make_office: MakeOffice, attempt: Attempting, report: Callable[[Trial], object], said: str
) -> None:
    office = make_office()

    def train(trial: Trial) -> None:
        for _ in trial.steps():
            report(trial)

    ended = attempt(office, train).ended
    assert (ended.outcome, ended.cause, ended.trace) == ("failed", "error", "")
    assert said in ended.message
    assert "trial 0" not in ended.message, "else no two trials would fail the same way"


def test_a_trainable_that_never_reports_failed(make_office: MakeOffice, attempt: Attempting) -> None:
    assert "without ever reporting 'score'" in attempt(make_office(), lambda _: None).ended.message


def test_other_metrics_may_be_missing_or_not_finite(make_office: MakeOffice, attempt: Attempting) -> None:
    office = make_office(max_steps=2)

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": 1, "loss": float("nan")} if step == 1 else {"score": 1.0})

    assert attempt(office, train).ended.outcome == "done"
    assert [row.metrics for _, row in kept(office.events)[0]] == [{"score": 1.0, "loss": None}, {"score": 1.0}]
