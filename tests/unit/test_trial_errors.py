"""What a trainable raises, or reports wrongly, becomes the outcome of its attempt."""

from __future__ import annotations

import asyncio
import enum
import os
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regrow.infra.state.places import Places
from regrow.search.lifecycle import TrialState
from regrow.show.live.text import empty_checkpoints
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import Attempting, steps
from tests.unit.office import MakeOffice
from tests.unit.programs import Programs
from tests.unit.told import kept


class Panic(BaseException):
    """As PyO3 makes one of a panic in Rust."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise Panic("no words")

    __repr__ = __str__

    def __reduce__(self) -> str:
        raise Panic("no pickle")


class Odd:
    """What cannot even be shown."""

    def __repr__(self) -> str:
        raise ValueError


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
        (SystemExit("no data"), "error", "SystemExit: no data"),
        (Panic("index out of bounds"), "error", "Panic: index out of bounds"),
        (asyncio.CancelledError("by the client"), "error", "CancelledError: by the client"),
        (KeyboardInterrupt(), "error", "KeyboardInterrupt"),
        (GeneratorExit(), "error", "GeneratorExit"),
        (
            BaseExceptionGroup("two", [Panic("a"), ValueError("b")]),
            "error",
            "BaseExceptionGroup: two (2 sub-exceptions)",
        ),
        (Unspeakable(), "error", "Unspeakable: (its message cannot be shown)"),
        (ValueError("\udc80" * 1_000_000), "error", "ValueError: \\udc80"),
        (SyntaxError("odd", ("f", "one", "two", 3)), "error", "SyntaxError: odd"),  # type: ignore[arg-type]  # as odd as can be
        (MemoryError(), "infrastructure", "out of memory"),
        (
            type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})("CUDA: no room"),
            "oom",
            "OutOfMemoryError: CUDA: no room; the GPU's memory was full",
        ),
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
    assert len(ended.message) <= 300
    assert ("raise error" in ended.trace) == (not isinstance(error, UserError | Unavailable)), (
        "with its own traceback"
    )
    assert len(ended.trace) < 1_000_000
    assert steps(office) == [1], "what was reported before counts"
    expected = TrialState.FAILED if cause in ("error", "oom") else TrialState.RUNNING
    assert office.history.trials[0].state is expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "\x1b[36mray::f()\x1b[39m (pid=3, ip=127.0.0.2)\n  File \"a.py\", line 5, in f\n    g()\nKeyError: 'lr'",
            "KeyError: 'lr'",
        ),
        (
            "f failed to import:\n\nray::f() (pid=3)\n        ^^^^^^^\nModuleNotFoundError: No module named 'a'\n",
            "ModuleNotFoundError: No module named 'a'",
        ),
        ("two\nlines", "two lines"),
        ("the caret ^ is not\nallowed", "the caret ^ is not allowed"),
    ],
)
def test_of_a_traceback_of_another_process_the_last_line_is_told(
    text: str, said: str, make_office: MakeOffice, attempt: Attempting
) -> None:
    ended = attempt(make_office(), raises(RuntimeError(text))).ended
    assert ended.message == f"RuntimeError: {said}"


def test_a_chain_deeper_than_calls_may_be_is_shown(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    first = error = ValueError("the last")
    for _ in range(3000):
        error.__context__ = error = ValueError("before")
    trace = attempt(make_office(), raises(first)).ended.trace
    assert trace.rstrip().endswith("ValueError: the last")


def test_the_end_of_a_trial_passes_through_a_group_of_tasks(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    async def step(trial: Trial) -> None:
        trial.report({"score": 1.0})

    async def steps_on(trial: Trial) -> None:
        while True:
            async with asyncio.TaskGroup() as group:
                group.create_task(step(trial))

    assert (
        attempt(make_office(), lambda trial: asyncio.run(steps_on(trial))).ended.outcome == "done"
    )


@pytest.mark.parametrize("code", [None, 0])
def test_a_script_that_exits_without_an_error_has_ended(
    make_office: MakeOffice, attempt: Attempting, code: int | None
) -> None:
    office = make_office()
    assert attempt(office, raises(SystemExit(code))).ended.outcome == "done"
    assert office.history.trials[0].state is TrialState.DONE


def test_the_traceback_begins_with_the_users_code(
    make_office: MakeOffice, attempt: Attempting
) -> None:
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
        (lambda t: t.report({"score": 10**400}), "inf, not a finite number"),
        (
            lambda t: t.report({"score": 1.0, **{str(n): 1.0 for n in range(100_000)}}),
            "100,001 metrics were reported",
        ),
        (
            lambda t: t.report({"score": 1.0, "x" * 10_000_000: 1.0}),
            "a metric's name has 10,000,000 characters ('xxx",
        ),
        (
            lambda t: t.report({"score": 1.0, "\udc80": 1.0}),
            "the metric '\\udc80' has half of a surrogate pair",
        ),
        (lambda t: t.report({"score": 1.0, 7: 1.0}), "7 (int) is no name"),
        (lambda t: t.report({"score": Odd()}), "a value of type Odd, not a number"),
        (
            lambda t: t.note({"a": "x" * 2_000_000}),
            "what is to be noted has 2,000,008 bytes, and 1,048,576 are the most",
        ),
        (lambda t: t.note({"a": {1, object()}}), "only plain JSON can be noted"),
        (lambda t: t.note({"\udc80": 1}), "only plain JSON can be noted"),
        (lambda t: [t.report({"score": 1.0}) for _ in range(2)], "step 1 was reported twice"),
        (lambda _: None, "step 1 was not reported"),
    ],
)
def test_a_report_that_cannot_be_recorded_fails_with_one_line_and_where_it_was(
    make_office: MakeOffice, attempt: Attempting, report: Callable[[Trial], object], said: str
) -> None:
    office = make_office()

    def train(trial: Trial) -> None:
        for _ in trial.steps():
            report(trial)

    ended = attempt(office, train).ended
    assert (ended.outcome, ended.cause) == ("failed", "error")
    assert said in ended.message
    assert Path(__file__).name in ended.trace
    assert "trial 0" not in ended.message, "else no two trials would fail the same way"


def test_a_trainable_that_never_reports_failed(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    silent = "it ended without ever reporting 'score'"
    assert attempt(make_office(), lambda _: None).ended.message == silent
    assert attempt(make_office(), lambda _: 0.5).ended.message == (
        f"{silent}; it returned 0.5 (float): call trial.report({{'score': ...}}) instead"
    )


def test_other_metrics_that_are_no_numbers_are_left_out_and_told_once(
    make_office: MakeOffice, attempt: Attempting, caplog: pytest.LogCaptureFixture
) -> None:
    office = make_office(max_steps=2)
    numbers: dict[str, Any] = {
        "array": np.array(0.5),
        "single": np.array([2]),
        "float32": np.float32(0.25),
        "decimal": Decimal("0.5"),
        "fraction": Fraction(1, 4),
        "huge": 10**400,
        "least": -(10**400),
        "decimal nan": Decimal("nan"),
    }
    others: dict[str, Any] = {
        "text": "high",
        "digits": "3",
        "none": None,
        "bool": True,
        "np.bool": np.bool_(True),
        "array bool": np.array(True),
        "array text": np.array("3"),
        "several": np.ones(2),
        "list": [1],
        "map": {"a": 1},
        "complex": 1j,
        "snan": Decimal("snan"),
        "bytes": b"1",
        "object": object(),
    }

    def train(trial: Trial) -> None:
        for _ in trial.steps():
            trial.report({"score": 1, **numbers, **others})

    assert attempt(office, train).ended.outcome == "done"
    step = {
        "score": 1.0,
        "array": 0.5,
        "single": 2.0,
        "float32": 0.25,
        "decimal": 0.5,
        "fraction": 0.25,
        "huge": None,
        "least": None,
        "decimal nan": None,
    }
    assert [row.metrics for _, row in kept(office.events)[0]] == [step, step]
    told = [line for line in caplog.messages if "is not recorded" in line]
    assert [line.split("'")[1] for line in told] == list(others)
    assert told[0] == "trial 0: 'text' is not recorded: it is 'high' (str), not a number"


def test_text_of_numpy_or_of_an_enumeration_names_a_metric(
    make_office: MakeOffice, attempt: Attempting, programs: Programs
) -> None:
    office = make_office(max_steps=1)
    Name = enum.Enum("Name", {"SCORE": "score"}, type=str)  # noqa: N806 - a class

    def train(trial: Trial) -> None:
        odd: dict[Any, float] = {Name.SCORE: 1.0, np.str_("loss"): 2.0}
        trial.report(odd)

    assert attempt(office, train).ended.outcome == "done"
    assert [row.metrics for _, row in kept(office.events)[0]] == [{"score": 1.0, "loss": 2.0}]
    office = programs.done(
        """
        import enum, regrow as rg
        Name = enum.Enum("Name", {"SCORE": "score"}, type=str)
        rg.report({Name.SCORE: 1.0})
        """
    )


def test_other_metrics_may_be_missing_or_not_finite(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(max_steps=2)

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": 1, "loss": float("nan")} if step == 1 else {"score": 1.0})

    assert attempt(office, train).ended.outcome == "done"
    assert [row.metrics for _, row in kept(office.events)[0]] == [
        {"score": 1.0, "loss": None},
        {"score": 1.0},
    ]


def test_a_checkpoint_without_files_is_saved_with_one_warning(
    make_office: MakeOffice, attempt: Attempting, caplog: pytest.LogCaptureFixture
) -> None:
    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": 1.0}, checkpoint=empty if step < 4 else full)

    def empty(folder: Path) -> None:
        (folder / "b").mkdir()

    def full(folder: Path) -> None:
        (folder / "a").touch()

    office = make_office(max_steps=4)
    assert attempt(office, train).ended.outcome == "done"
    (line,) = empty_checkpoints(office.history, Places.at("/nowhere"))
    assert line.startswith("the checkpoints of trial 0 hold no data (0 bytes); see regrow logs ")
    warned = [line for line in caplog.messages if "holds no file" in line]
    assert warned == ["trial 0: the checkpoint of step 1 is saved, but holds no file"]


def test_a_checkpoint_whose_folder_is_gone_is_the_users_error(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    def train(trial: Trial) -> None:
        for _ in trial.steps():
            trial.report({"score": 1.0}, checkpoint=Path.rmdir)

    ended = attempt(make_office(max_steps=4), train).ended
    assert (ended.outcome, ended.cause, ended.step) == ("failed", "error", 1)
    assert ended.message.startswith("the checkpoint of step 1 cannot be saved: its folder is gone;")


def test_a_forked_child_that_comes_back_without_its_output_ends(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    def train(trial: Trial) -> None:
        if (child := os.fork()) == 0:
            sys.stdout = None
            return
        trial.report({"score": os.waitpid(child, 0)[1]})

    office = make_office(max_steps=1)
    assert attempt(office, train).ended.outcome == "done"
    assert [row.metrics for _, row in kept(office.events)[0]] == [{"score": 0.0}]
