"""What MLflow ends up with: a fold of the log, however often the writing was cut off and taken up
again.
"""

from __future__ import annotations

import math
import posixpath
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.infra.mlflow.trial_runs import PARENT, TrialRuns
from regrow.infra.mlflow.updates import RunUpdate, cut_params, cut_tags, legal_name
from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
    Decided,
    Ended,
    Excluded,
    Opened,
    Proposed,
    Reported,
    Row,
    Saved,
    Started,
)
from regrow.tasks.trial.names import task_name
from tests.unit.simulated import SPEC, Simulation, created, opened, resumed
from tests.unit.told import folded, kept


@dataclass(slots=True)
class Run:
    """A run as MLflow holds it."""

    name: str
    params: dict[str, str]
    tags: dict[str, str] = field(default_factory=dict)
    points: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    status: str | None = None
    end_ms: int | None = None
    deleted: bool = False


def write(runs: dict[str, Run], updates: list[RunUpdate]) -> None:
    """What the sink does with them."""
    for update in updates:
        run = runs.setdefault(update.key, Run(update.name, dict(update.params)))
        run.tags |= update.tags
        for metric, value, step, t in update.metrics:
            point = (repr(value), t)
            assert run.points.setdefault((metric, step), point) == point, (
                "a point was written with two values"
            )
        if update.status is not None:
            run.status, run.end_ms = update.status, update.end_ms
        run.deleted = run.deleted or update.deleted


def reports(segments: list[list[AnyEvent]], after: int = 0) -> Iterator[Reported]:
    """What was reported in the segments after a number, as the log tells it."""
    return (
        event for segment in segments[after:] for event in segment if isinstance(event, Reported)
    )


def recorded(segments: list[list[AnyEvent]], cuts: set[int], gathered: int = 1) -> dict[str, Run]:
    """MLflow after a recorder that took up to `gathered` segments at a time, and was killed after
    each of `cuts`.
    """
    mlflow: dict[str, Run] = {}
    runs, cursor, held = TrialRuns(partial(reports, segments)), 0, 0
    for number, events in enumerate(segments, start=1):
        for event in events:
            runs.apply(event, number)
        held += 1
        if held < gathered and number not in cuts and number < len(segments):
            continue
        write(mlflow, runs.drain())
        cursor, held = number, 0
        if number in cuts:
            runs = TrialRuns(partial(reports, segments))
            for before, segment in enumerate(segments[:cursor], start=1):
                for event in segment:
                    runs.apply(event, before)
                    runs.drain()
    return mlflow


def whole(events: list[AnyEvent]) -> dict[str, Run]:
    return recorded([events], set())


def one(events: list[AnyEvent], key: str = "trial-0000") -> Run:
    """A run, written event by event and all at once."""
    runs = recorded([[event] for event in events], set())
    assert runs == whole(events)
    return runs[key]


def at_work(**changes: Any) -> list[AnyEvent]:
    """Trial 0 has begun."""
    return [
        created(**changes),
        opened(1.0),
        Proposed(t=2.0, trial=0, config={"x": 0.5, "kind": "a", "deep.n": 3}),
        Started(t=3.0, trial=0, attempt=1),
        Began(t=4.0, trial=0, attempt=1, node="node-1"),
    ]


def rows(first: int, *values: float, attempt: int = 1, loss: float | None = 1.0) -> Reported:
    made = [
        Row(step, float(step), {"score": value, "loss": loss})
        for step, value in enumerate(values, start=first)
    ]
    return Reported(t=5.0, trial=0, attempt=attempt, rows=made)


def ended(outcome: Any, cause: Any = "", attempt: int = 1, **more: Any) -> Ended:
    return Ended(t=7.0, trial=0, attempt=attempt, outcome=outcome, cause=cause, **more)


def test_there_is_a_parent_and_one_run_a_trial() -> None:
    run = Simulation(slots=3).open().run()
    mlflow = whole(run.events)
    assert set(mlflow) == {PARENT, *(task_name(n) for n in range(6))}
    assert mlflow[PARENT].name == SPEC["name"]
    assert {name for name, _ in mlflow[PARENT].points} == {"best_score", "best_step"}
    for trial in run.planner.history.trials:
        points = mlflow[task_name(trial.number)].points
        assert {
            step: float(value) for (name, step), (value, _) in points.items() if name == "score"
        } == {row.step: row.metrics["score"] for _, row in kept(run.events)[trial.number]}


def test_the_parent_comes_first() -> None:
    runs = TrialRuns(partial(reports, []))
    for event in at_work():
        runs.apply(event)
    assert [(update.key, update.parent) for update in runs.drain()] == [
        (PARENT, True),
        ("trial-0000", False),
    ]
    assert runs.drain() == []


def test_a_run_has_its_parameters_its_points_and_where_it_ran() -> None:
    events = [
        *at_work(),
        rows(1, 0.5, loss=None),
        rows(2, 0.6),
        Saved(t=6.0, trial=0, attempt=1, step=2, manifest="m2", size=1),
        ended("done"),
    ]
    run = one(events)
    assert run.params == {"x": "0.5", "kind": "a", "deep.n": "3"}
    assert run.points[("score", 1)] == ("0.5", 1000)
    assert run.points[("loss", 1)] == (repr(math.nan), 1000)
    assert run.tags["regrow.node"] == "node-1"
    assert run.tags["regrow.checkpoint"] == "m2"
    assert (run.status, run.end_ms) == ("FINISHED", 7000)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ([], "RUNNING"),
        ([ended("done")], "FINISHED"),
        (
            [Decided(t=6.0, trial=0, attempt=1, step=1, verdict="stop", why="w"), ended("stopped")],
            "FINISHED",
        ),
        ([ended("failed", "error")], "FAILED"),
        ([ended("paused")], "KILLED"),
        ([ended("lost", "preempted")], "RUNNING"),
        ([ended("lost", "preempted"), Closed(t=8.0, status="stopped")], "KILLED"),
        ([ended("lost", "preempted"), Closed(t=8.0, status="stopped"), opened(9.0)], "RUNNING"),
    ],
)
def test_the_status_says_what_became_of_it(ending: list[AnyEvent], status: str) -> None:
    events = at_work()
    events[3] = Started(t=3.0, trial=0, attempt=1, until=1)
    run = one([*events, rows(1, 0.5), *ending])
    assert run.status == status
    assert (run.end_ms is None) == (status == "RUNNING")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("finished", "FINISHED"),
        ("failed", "FAILED"),
        ("stopped", "KILLED"),
        ("interrupted", "KILLED"),
    ],
)
def test_the_parent_ends_as_the_experiment_does(status: Any, expected: str) -> None:
    closing: list[AnyEvent] = [
        Closing(t=6.0, status=status, why="", by="user"),
        ended("done"),
        Closed(t=8.0, status=status),
    ]
    parent = one([*at_work(), rows(1, 0.5), *closing], PARENT)
    assert (parent.status, parent.end_ms) == (expected, 8000)
    assert (parent.tags["regrow.best_trial"], parent.tags["regrow.best_value"]) == ("0", "0.5")
    again = one([*at_work(), rows(1, 0.5), *closing, opened(9.0)], PARENT)
    assert (again.status, again.tags["regrow.sessions"]) == ("RUNNING", "2")


def rewound() -> list[AnyEvent]:
    lost: list[AnyEvent] = [
        ended("lost", "preempted", message="the node was lost"),
        Started(t=8.0, trial=0, attempt=2),
    ]
    saved = Saved(t=5.0, trial=0, attempt=1, step=2, manifest="m2", size=1)
    back = Began(t=9.0, trial=0, attempt=2, node="node-2", restored=2)
    return [
        *at_work(),
        rows(1, 0.1, 0.2),
        saved,
        rows(3, 0.9, 0.8),
        *lost,
        back,
        rows(3, 0.3, 0.4, 0.5, attempt=2),
    ]


def test_a_rewind_makes_a_new_run_with_exactly_the_surviving_points_and_retires_the_old() -> None:
    mlflow = whole([*rewound(), ended("done", attempt=2)])
    assert set(mlflow) == {PARENT, "trial-0000", "trial-0000.1"}
    old, new = mlflow["trial-0000"], mlflow["trial-0000.1"]
    assert {step: value for (metric, step), (value, _) in new.points.items() if metric == "score"} == {
        1: "0.1", 2: "0.2", 3: "0.3", 4: "0.4", 5: "0.5",
    }  # fmt: skip
    assert {step for _, step in old.points} == {1, 2, 3, 4}
    assert (old.deleted, old.status, old.tags["regrow.superseded"]) == (True, "KILLED", "true")
    assert old.tags["mlflow.runName"] == "trial-0000 (until attempt 1, superseded)"
    assert (new.deleted, new.name, new.status) == (False, "trial-0000", "FINISHED")
    assert new.params == old.params


def last(run: Run, metric: str) -> float:
    """The value that MLflow shows in its table and sorts by."""
    return float(
        max((step, value) for (name, step), (value, _) in run.points.items() if name == metric)[1]
    )


def test_the_best_value_and_its_step_are_what_mlflow_takes_for_the_last() -> None:
    events = [*at_work(), rows(1, 0.5), rows(2, 0.9, 0.7), rows(4, 0.6), rows(5, 0.8, 0.4)]
    for key in ("trial-0000", PARENT):
        assert (last(one(events, key), "best_score"), last(one(events, key), "best_step")) == (
            0.9,
            2,
        )
    assert last(one(events), "score") == 0.4


def test_a_value_that_a_rewind_superseded_does_not_stay_the_best() -> None:
    mlflow = whole(rewound()[:-1])
    assert last(mlflow["trial-0000"], "best_score") == 0.9, (
        "it is kept in the run that is out of MLflow's view"
    )
    for key in ("trial-0000.1", PARENT):
        assert (last(mlflow[key], "best_score"), last(mlflow[key], "best_step")) == (0.2, 2)
    mlflow = whole([*rewound()[:-2], Began(t=9.0, trial=0, attempt=2, node="node-2", restored=0)])
    assert "best_score" not in {name for name, _ in mlflow["trial-0000.1"].points}
    assert math.isnan(last(mlflow[PARENT], "best_score"))


def test_every_runs_best_is_that_of_the_history_after_any_losses() -> None:
    first = (
        Simulation(seed=4, lose=0.1, slots=3)
        .open(retries={"infrastructure": 1000})
        .run(interrupt_after=60)
    )
    run = resumed(first.events, seed=5, lose=0.1, slots=2)
    history, mlflow = run.planner.history, whole(run.events)
    current = {r.name: r for r in mlflow.values() if not r.deleted}
    assert history.lost_steps > 0
    for trial in history.trials:
        if trial.best is not None:
            shown = current[task_name(trial.number)]
            assert (last(shown, "best_score"), last(shown, "best_step")) == trial.best
    assert history.best is not None
    assert (
        last(mlflow[PARENT], "best_score"),
        last(mlflow[PARENT], "best_step"),
    ) == history.trials[history.best].best


def test_a_metric_that_the_user_calls_so_is_theirs() -> None:
    report = Reported(
        t=5.0,
        trial=0,
        attempt=1,
        rows=[Row(1, 1.0, {"score": 0.5, "best_score": 7.0, "loss": 1.0})],
    )
    assert one([*at_work(), report]).points[("best_score", 1)] == ("7.0", 1000)


def test_a_retry_that_repeats_nothing_goes_on_in_the_same_run() -> None:
    lost: list[AnyEvent] = [ended("lost", "preempted"), Started(t=8.0, trial=0, attempt=2)]
    saved = Saved(t=5.0, trial=0, attempt=1, step=2, manifest="m2", size=1)
    back = Began(t=9.0, trial=0, attempt=2, node="node-2", restored=2)
    mlflow = whole(
        [
            *at_work(),
            rows(1, 0.1, 0.2),
            saved,
            *lost,
            back,
            rows(3, 0.3, attempt=2),
            ended("done", attempt=2),
        ]
    )
    assert set(mlflow) == {PARENT, "trial-0000"}
    assert {step for _, step in mlflow["trial-0000"].points} == {1, 2, 3}


def test_the_reason_of_an_earlier_attempt_does_not_stay_with_a_trial_that_is_done() -> None:
    events = [*rewound(), ended("done", attempt=2)]
    assert one(events, "trial-0000.1").tags["regrow.reason"] == "-"


def segmented(events: list[AnyEvent], chance: random.Random) -> list[list[AnyEvent]]:
    segments: list[list[AnyEvent]] = []
    rest = list(events)
    while rest:
        count = chance.randint(1, 6)
        segments.append(rest[:count])
        del rest[:count]
    return segments


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(20, 150), st.integers(0, 60), st.integers(1, 5))
def test_written_in_any_portions_and_from_any_cursor_it_is_the_same(
    seed: int, cut: int, more: int, gathered: int
) -> None:
    chance = random.Random(seed)
    first = Simulation(seed=seed, lose=0.1, slots=3).open(retries={"infrastructure": 1000})
    first.run(interrupt_after=chance.choice([40, None]))
    events = resumed(first.events[:cut], seed=seed, lose=0.1, slots=2).events[: cut + more]
    segments = segmented(events, chance)
    cuts = {n for n in range(1, len(segments) + 1) if chance.random() < 0.2}
    assert recorded(segments, cuts, gathered) == whole(events)


def test_a_write_that_is_repeated_changes_nothing() -> None:
    events = [*rewound(), ended("done", attempt=2)]
    mlflow: dict[str, Run] = {}
    for cursor in range(len(events)):
        runs = TrialRuns(partial(reports, [[event] for event in events]))
        for number, event in enumerate(events[:cursor], start=1):
            runs.apply(event, number)
            runs.drain()
        for number, event in enumerate(events[cursor:], start=cursor + 1):
            runs.apply(event, number)
        write(mlflow, runs.drain())
    assert mlflow == whole(events)
    assert isinstance(events[1], Opened)


def test_names_keep_letters_of_any_script_and_never_become_the_same() -> None:
    taken = ["学习率", "损失", "café", "a/b", "recall_1", "x" * 250]
    changed = [
        "recall@1",
        "recall#1",
        "acc@5",
        "../x",
        "..",
        "",
        "😀",
        "हिन्दी",
        "cafe\u0301",
        "x" * 251,
        "x" * 300,
        "\ud800",
        "a//b",
        "a\n",
    ]
    names = {name: legal_name(name) for name in [*taken, *changed]}
    assert [names[name] for name in taken] == taken
    assert len(set(names.values())) == len(names)
    for legal in names.values():
        assert re.fullmatch(r"[/\w.\- :]{1,250}", legal), "what mlflow.utils.validation takes"
        assert posixpath.normpath(legal) == legal
    assert names["acc@5"] == "acc_5-c4e871ab", "a resumed experiment has to find its curve"


def test_no_text_has_a_nul_which_postgresql_refuses() -> None:
    update = RunUpdate(key="k", name="n", start_ms=0, tags={"a": "x\0y"}, params={"b": "\0"})
    assert (cut_tags(update)["a"], cut_params(update)["b"]) == ("x\\0y", "\\0")


def test_a_dropped_trial_has_a_tag_and_the_experiment_another_best() -> None:
    events = Simulation(seed=1).open().run().events
    best = folded(events)
    assert best.leader is not None
    assert best.leader.best is not None
    key, value = task_name(best.leader.number), repr(best.leader.best[0])
    order = Excluded(t=events[-1].t + 1, trial=best.leader.number)
    dropped = [*events, order]
    assert one(dropped, key).tags["regrow.dropped"] == "true"
    assert value not in one(dropped, PARENT).tags.values()
    back = Excluded(t=order.t + 1, trial=order.trial, excluded=False)
    assert one([*dropped, back], key).tags["regrow.dropped"] == "false"
    assert one([*dropped, back], PARENT).tags == one(events, PARENT).tags
    assert "regrow.dropped" not in one(events, key).tags
