"""Messages that the log cannot hold, or that cannot follow: refused before anything is written, as
their trial's own error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from regrow.infra.log.reading import replay
from regrow.search.curve import Curve
from regrow.search.events import Ended, Place, Row, Saved
from regrow.search.lifecycle import TrialState
from regrow.tasks.ports.messages import Progress, Question
from tests.unit.office import Office, began_at, offices

Make = Callable[..., Office]


@pytest.fixture
def make() -> Iterator[Make]:
    with offices(schedule="fifo", trials=4) as make:
        yield make


def arrival(trial: int, *, rows: int = 0) -> Progress:
    return Progress(
        trial=trial,
        attempt=1,
        began=began_at(Place("node"), task_run=f"run-{trial}"),
        rows=tuple(Row(step, 0.0, {"score": 1.0}) for step in range(1, rows + 1)),
    )


def end(trial: int) -> Progress:
    return Progress(
        trial=trial, attempt=1, ended=Ended(t=0.0, trial=trial, attempt=1, outcome="done")
    )


def leases(office: Office) -> list[tuple[int, int]]:
    return [(a.trial, a.attempt) for a in office.instructions().submit]


def bad(**changes: Any) -> Progress:
    return msgspec.structs.replace(arrival(0, rows=1), **changes)


LEASE: dict[str, Any] = {"trial": 0, "attempt": 1}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (bad(rows=(Row(1, 0.0, {"score": math.nan}),)), "report a step without score"),
        (bad(rows=(Row(1, math.nan, {"score": 1.0}),)), "Expected `float`, got `null`"),
        (bad(rows=(Row(1, 1e12, {"score": 1.0}),)), "Expected `float` <= 32503680000.0"),
        (bad(rows=(Row(2**64, 0.0, {"score": 1.0}),)), "Expected `int`"),
        (bad(rows=(Row(3, 0.0, {"score": 1.0}),)), "report steps that do not follow 0"),
        (
            bad(rows=(Row(1, 0.0, {"score": 1.0, "epoch": 2.0**64}),)),
            "report 1.8446744073709552e+19 as a step",
        ),
        (bad(rows=(Row(1, 0.0, {"score": "high"}),)), "Expected `float | null`"),  # type: ignore[dict-item]  # it is what is wrong
        (bad(rows=(Row(1, 0.0, {"score": 1.0, "\udc80": 1.0}),)), "surrogates not allowed"),
        (
            bad(rows=(Row(1, 0.0, {"score": 1.0, "x" * (33 << 20): 1.0}),)),
            "bytes, and 33,554,432 are the most",
        ),
        (bad(saved=(Saved(t=0.0, **LEASE, step=1, manifest="m", size=-1),)), "Expected `int` >= 0"),
        (bad(noted={"a": object()}), "noted: Encoding objects of type object is unsupported"),
        (
            bad(began=began_at(Place("node"), task_run="run-0", restored=2**70)),
            "Expected `int`",
        ),
        (
            bad(began=began_at(Place("node"), task_run="run-0", restored=7)),
            "go on after step 7, which the trial never reached",
        ),
        (
            bad(began=began_at(Place("node", price=-1.0), task_run="run-0")),
            "Expected `float` >= 0",
        ),
        (
            bad(ended=Ended(t=0.0, **LEASE, outcome="failed")),
            "have ended as failed without a cause",
        ),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_a_message_that_cannot_be_recorded_is_its_trials_own_error_alone(
    make: Make, message: Progress, said: str, together: bool
) -> None:
    office = make(slots=2, step_metric="epoch")
    assert leases(office) == [(0, 1), (1, 1)]
    office.report(arrival(1, rows=1))
    if together:
        (reply,) = office.wait(office.coordinator.report_all([message], "relay"))
    else:
        reply = office.report(message)
    assert reply.reason == "fenced"
    assert said in reply.why
    assert office.report(arrival(0)).reason == "fenced", "the lease is gone"
    assert office.report(end(1)).reason == ""
    first, second = office.history.trials[:2]  # which verifies
    assert (first.state, first.attempts[0].cause, first.attempts[0].message) == (
        TrialState.FAILED,
        "error",
        reply.why,
    )
    assert second.state is TrialState.DONE


def test_whose_a_checkpoint_or_an_end_is_says_the_message_alone(make: Make) -> None:
    office = make(slots=2)
    assert leases(office) == [(0, 1), (1, 1)]
    office.report(arrival(1, rows=1))
    office.report(bad(saved=(Saved(t=0.0, trial=1, attempt=1, step=1, manifest="m", size=1),)))
    office.report(
        Progress(
            trial=0, attempt=1, ended=Ended(t=0.0, trial=1, attempt=1, outcome="done", by="planner")
        )
    )
    first, second = office.history.trials[:2]
    assert (list(first.checkpoints), first.state) == ([1], TrialState.DONE)
    assert (list(second.checkpoints), second.state) == ([], TrialState.RUNNING)


def test_what_a_reader_will_find_is_what_is_known_here(make: Make) -> None:
    office = make()
    assert leases(office) == [(0, 1)]
    office.report(bad(rows=(Row(1, 0, {"score": 1, "loss": math.inf, "count": 2**60}),)))
    trial = office.coordinator._ledger.history.trials[0]
    assert (
        trial.curve.row(1)
        == replay(office.store).trials[0].curve.row(1)
        == Row(1, 0.0, {"score": 1.0, "loss": None, "count": 2.0**60})
    )


def test_an_event_that_breaks_the_search_ends_the_log_before_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = make()
    assert leases(office) == [(0, 1)]
    before = len(office.events)

    def breaks(*_: Any) -> bool:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Curve, "extend", breaks)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            office.report(arrival(0, rows=1))
    monkeypatch.undo()
    assert len(office.events) == before
    office.open("driver-2")
    assert office.history.trials[0].state in (TrialState.LOST, TrialState.RUNNING)


def test_values_are_asked_for_where_the_search_gives_any(make: Make) -> None:
    office = make()
    assert leases(office) == [(0, 1)]
    question = Question(
        name="lr",
        distribution={"name": "FloatDistribution", "attributes": {"low": 0.0, "high": 1.0}},
    )
    assert "`search: define_by_run` alone" in office.report(bad(asked=(question,))).refused["lr"]


@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 2**70), (-(2**53) - 2, 0), (0.0, math.inf), (-1e308, 1e308), (math.nan, 1.0)],
)
def test_what_nothing_can_be_drawn_from_is_refused_where_it_is_asked_for(
    make: Make, low: float, high: float
) -> None:
    office = make(search="define_by_run", space={})
    assert leases(office) == [(0, 1)]
    kind = "IntDistribution" if isinstance(low, int) else "FloatDistribution"
    distribution = {
        "name": kind,
        "attributes": {
            "low": low,
            "high": high,
            "log": False,
            "step": 1 if isinstance(low, int) else None,
        },
    }
    reply = office.report(bad(asked=(Question(name="x", distribution=distribution),)))
    assert reply.reason == ""
    assert "nothing can be drawn from" in reply.refused["x"]
    assert office.report(end(0)).reason == ""
    assert office.history.trials[0].state is TrialState.DONE
