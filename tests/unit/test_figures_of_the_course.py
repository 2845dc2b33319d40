"""What the figures say of decisions, attempts and losses: rungs, lineage, timeline, scaling, wasted
work.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from regrow.search.events import AnyEvent, Began, Decided, Ended, Proposed, Reported, Row, Started
from regrow.search.history import History, waste
from regrow.search.lifecycle import TrialState
from regrow.search.planning.simulator import Availability, FunctionObjective, Simulation
from regrow.search.spec import Spec
from regrow.show.figures import lineage, rungs, scaling, series, timeline, wasted_work
from tests.unit.figured import ASHA, SPEC, begun, folded, groups, made_by, metrics, run, traces
from tests.unit.told import rows_of

# Schedules


def test_rungs_say_who_was_stopped_where() -> None:
    done = run(schedule=ASHA, trials=30)
    decided: dict[int, list[str]] = {}
    for event in done.events:
        if isinstance(event, Decided):
            decided.setdefault(event.step, []).append(event.verdict)
    found = {
        rung.step: (len(rung.reached), len(rung.stopped)) for rung in rungs.rungs(done.history)
    }
    assert found == {
        step: (len(all_), all_.count("stop")) for step, all_ in decided.items() if "stop" in all_
    }
    made = made_by(rungs, done.history)
    (stopped,) = traces(made, name="stopped here")
    places = list(found)
    for x, y, number in zip(stopped.x, stopped.y, stopped.customdata, strict=True):
        trial = done.history.trials[number]
        assert (trial.state, trial.step) == (TrialState.STOPPED, places[round(x)])
        assert y == trial.values[-1]


def test_rungs_show_those_that_wait_to_be_promoted() -> None:
    spec = Spec.parse({**SPEC, "schedule": {"asha": {"type": "promotion"}}})
    done = (
        Simulation(spec=spec, objective=FunctionObjective(function=metrics, spec=spec), workers=2)
        .open()
        .run(most_events=120)
    )
    assert done.history.held
    waiting = {t.number for rung in rungs.rungs(done.history) for t in rung.waiting}
    assert waiting == done.history.held


def test_the_lineage_has_each_clone_and_the_way_of_the_best(histories: dict[str, History]) -> None:
    history = histories["pbt"]
    made = made_by(lineage, history)
    clones = {(t.number, c.step) for t in history.trials for c in t.changes if c.source is not None}
    (marks,) = traces(made, mode="markers")
    assert {(n, x - 0.5) for n, x in zip(marks.customdata, marks.x, strict=True)} == clones
    assert history.best is not None
    best = history.trials[history.best].best
    assert best is not None
    way = series.ancestry(history, history.best, best[1])
    assert sum(until - after for _, after, until in way) == len(history.path(history.best, best[1]))
    assert way[-1][1] == 0, "it leads back to the first step of a trial"


def test_in_the_lineage_the_best_trial_of_a_step_is_the_darkest(
    histories: dict[str, History],
) -> None:
    history = histories["pbt"]
    heat = next(trace for trace in made_by(lineage, history).data if trace.type == "heatmap")
    ranks, values = np.asarray(heat.z), np.asarray(heat.customdata)[..., 1]
    for step in range(ranks.shape[1]):
        assert values[np.argmax(ranks[:, step]), step] == np.max(values[:, step])
        assert values[np.argmin(ranks[:, step]), step] == np.min(values[:, step])


# Losses


def test_the_timeline_has_each_attempt_on_its_node_and_no_two_in_one_place(
    histories: dict[str, History],
) -> None:
    history = histories["lossy"]
    made = made_by(timeline, history)
    bars = [
        (number, y, base, base + x)
        for trace in made.data
        if trace.type == "bar"
        for number, y, base, x in zip(trace.customdata, trace.y, trace.base, trace.x, strict=True)
    ]
    attempts = [(t.number, a) for t in history.trials for a in t.attempts]
    assert sorted(n for n, *_ in bars) == sorted(n for n, _ in attempts)
    for lane in {y for _, y, *_ in bars}:
        spans = sorted((begin, end) for _, y, begin, end in bars if y == lane)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(spans))
    outcomes = {
        trace.name.split(" ")[0]: len(trace.y) for trace in made.data if trace.type == "bar"
    }
    assert outcomes == {
        o: sum(a.outcome == o for _, a in attempts) for o in {a.outcome for _, a in attempts}
    }


def test_the_timeline_leads_from_a_loss_to_where_the_trial_went_on(
    histories: dict[str, History],
) -> None:
    history = histories["lossy"]
    made = made_by(timeline, history)
    lost = [(t.number, a) for t in history.trials for a in t.attempts if a.outcome == "lost"]
    assert lost
    (marks,) = (trace for trace in made.data if (trace.name or "").startswith("loss"))
    assert sorted(marks.customdata) == sorted(n for n, _ in lost)
    number, attempt = lost[0]
    text = next(text for n, text in zip(marks.customdata, marks.text, strict=True) if n == number)
    after = history.trials[number].attempts[attempt.number]
    assert attempt.message in text
    assert f"on {after.node}, from step {after.from_step + 1}" in text
    (way,) = traces(made, name="continued")
    assert list(way.y).count(None) == len(lost)


def test_the_timeline_leaves_out_pauses_in_which_nothing_ran() -> None:
    clock = timeline.clock(
        [(1000.0, 1100.0), (1050.0, 1200.0), (90_000.0, 90_100.0), (90_100.5, 90_200.0)]
    )
    assert clock.pauses == [(1200.0, 90_000.0)]
    assert [clock.at(t) for t in (1000.0, 1200.0, 50_000.0, 90_000.0, 90_200.0)] == [
        0.0,
        200.0,
        200.0,
        200.0,
        400.0,
    ]


def test_an_attempt_that_was_lost_before_it_began_is_said_to_be_missing() -> None:
    lost = Ended(t=104.0, trial=2, attempt=1, outcome="lost", cause="infrastructure", by="driver")
    events = [
        *begun(2),
        Proposed(t=101.0, trial=2, config={}),
        Started(t=101.0, trial=2, attempt=1),
        lost,
    ]
    made = made_by(timeline, folded(events))
    assert made.layout.meta["note"] == "Not drawn: 1 attempt that ended before beginning on a node."
    bars = [
        pair
        for trace in made.data
        if trace.type == "bar"
        for pair in zip(trace.customdata, trace.y, strict=True)
    ]
    assert sorted(bars) == [(0, 0), (1, 1)], "two at a time on one node have a place each"


def test_only_attempts_that_ended_alike_and_well_become_one_bar() -> None:
    ends = ["done", "done", "lost", "lost", "done", "stopped"]
    bars = [
        timeline.Bar(trial=n, lane=0, begin=float(n), end=n + 0.9, outcome=end, text="")
        for n, end in enumerate(ends)
    ]
    merged = timeline._merged(bars, 3.0)
    assert [(bar.trial, bar.outcome, bar.count, bar.end) for bar in merged] == [
        (0, "done", 2, 1.9),
        (2, "lost", 1, 2.9),
        (3, "lost", 1, 3.9),
        (4, "done", 1, 4.9),
        (5, "stopped", 1, 5.9),
    ]


def test_a_thousand_short_attempts_are_fewer_bars_and_all_losses_stay() -> None:
    history = run(
        trials=2500, max_steps=1, workers=4, machines=(Availability(changes=(0.0, 30.5, 33.0)),)
    ).history
    made = made_by(timeline, history)
    drawn = sum(len(trace.y) for trace in made.data if trace.type == "bar")
    assert drawn < 2 * timeline.BARS
    assert "are one bar" in made.layout.meta["note"]
    lost = sum(a.outcome == "lost" for t in history.trials for a in t.attempts)
    (marks,) = (trace for trace in made.data if (trace.name or "").startswith("loss"))
    assert len(marks.x) == lost
    assert lost


# Workers


def test_scaling_has_the_pace_of_each_attempt_and_what_is_left_of_a_workers_speed() -> None:
    made = made_by(scaling, folded(groups(1, 2, 4, 4)))
    steps, each = traces(made, name="an attempt")
    assert list(steps.y) == [2.0] * 4, "from the first report on, not from the beginning"
    assert list(each.y) == pytest.approx([128.0, 115.2, 89.6, 89.6])
    assert [text.partition(":")[0] for text in each.customdata] == [
        f"trial {n}, attempt 1" for n in range(4)
    ]
    (bars,) = (trace for trace in made.data if trace.type == "bar")
    assert list(bars.text) == ["100%", "90%", "70%"]
    assert list(made.layout.xaxis.ticktext) == ["1", "2", "4"]
    assert "of 1 worker;" in made.layout.meta["note"]


def test_scaling_is_of_each_attempt_apart_and_of_steps_whose_samples_are_known() -> None:
    events: list[AnyEvent] = [
        event for event in groups(2) if not isinstance(event, Ended | Reported)
    ]
    first = [
        Row(1, 160.0, {"score": 0.1}),
        Row(2, 164.0, {"score": 0.1}),
        Row(3, 166.0, {"score": 0.2, "samples": 8.0}),
    ]
    lost = Ended(
        t=170.0, trial=0, attempt=1, outcome="lost", cause="preempted", step=3, by="driver"
    )
    events += [
        Reported(t=166.0, trial=0, attempt=1, rows=first),
        lost,
        Started(t=171.0, trial=0, attempt=2, width=4),
    ]
    events += [
        Began(t=900.0, trial=0, attempt=2, node="n1", restored=3),
        Reported(
            t=960.0,
            trial=0,
            attempt=2,
            rows=[Row(n, 955.0 + n, {"score": 0.3, "samples": 24.0}) for n in (4, 5)],
        ),
    ]
    history = folded(events)
    found = [
        (pace.attempt, pace.workers, pace.rate, pace.each)
        for pace in scaling.paces(rows_of(history))
    ]
    assert found == [(1, 2, 2 / 6, 2.0), (2, 4, 1.0, 6.0)]
    assert "of 2 workers;" in made_by(scaling, history).layout.meta["note"]


def test_without_samples_or_with_one_number_of_workers_no_efficiency_is_told() -> None:
    unknown = made_by(scaling, folded(groups(1, 2, samples=False)))
    assert not [trace for trace in unknown.data if trace.type == "bar"]
    assert "metric samples" in unknown.layout.meta["note"]
    alike = made_by(scaling, folded(groups(2, 2)))
    assert not [trace for trace in alike.data if trace.type == "bar"]
    assert scaling.figure(rows_of(folded(groups(1, 1)))) is None
    assert scaling.figure(rows_of(folded(groups(1, resources={"cpu": 1})))) is None


def test_wasted_work_is_that_of_the_ledger(histories: dict[str, History]) -> None:
    history = histories["lossy"]
    made = made_by(wasted_work, history)
    left = {trace.y[0]: trace.x[0] for trace in made.data if trace.xaxis == "x"}
    assert left == {kind: one.seconds for kind, one in waste.of_all(history).items()}
    right: dict[str, float] = {}
    for trace in made.data:
        if trace.xaxis == "x2":
            for name, seconds in zip(trace.y, trace.x, strict=True):
                right[name] = right.get(name, 0.0) + seconds
    assert right == {
        f"trial {t.number}": sum(one.seconds for one in parts.values())
        for t in history.trials
        if (parts := waste.of_trial(t))
    }
