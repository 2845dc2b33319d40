"""What the planner makes of an experiment, whatever happens to its attempts and its driver."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
    Decided,
    Dropped,
    Ended,
    Opened,
    Proposed,
    Reported,
    Row,
    Saved,
    Started,
)
from regrow.search.lifecycle import IllegalMove, TrialState
from regrow.search.planning.planner import Planner, seed_for
from regrow.search.planning.verify import verify
from tests.unit.simulated import MAX_STEPS, Simulation, created, decisions, opened, resumed, score

chances = st.integers(0, 10**6)


def check_whole(run: Simulation, trials: int) -> None:
    """What holds of every log that came to its end."""
    history = run.planner.history
    assert history.closed is not None
    assert not history.running
    assert len(history.trials) == trials == history.total
    assert all(trial.state.final for trial in history.trials)
    assert run.most_running <= run.slots
    for trial in history.trials:
        assert list(trial.values) == [
            score(trial.config, step) for step in range(1, trial.step + 1)
        ]
        if trial.state is TrialState.DONE:
            assert trial.step == MAX_STEPS
    taken = Counter((event.trial, event.step) for event in run.events if isinstance(event, Decided))
    assert set(taken.values()) <= {1}, "a decision was taken twice"
    check_closing(run.events)
    assert verify(run.events).difference is None


def check_closing(events: list[AnyEvent]) -> None:
    closing = False
    for event in events:
        closing = isinstance(event, Closing | Closed) or (closing and not isinstance(event, Opened))
        assert not (closing and isinstance(event, Started | Proposed)), "a start after closing"


@settings(max_examples=60, deadline=None)
@given(
    seed=chances,
    slots=st.integers(1, 5),
    trials=st.integers(1, 12),
    lose=st.sampled_from([0.0, 0.05, 0.2]),
)
def test_the_total_is_exact_whatever_is_lost(
    seed: int, slots: int, trials: int, lose: float
) -> None:
    run = (
        Simulation(seed=seed, slots=slots, trials=trials, lose=lose)
        .open(retries={"infrastructure": 1000})
        .run()
    )
    check_whole(run, trials)


@settings(max_examples=30, deadline=None)
@given(
    seed=chances,
    lose=st.sampled_from([0.0, 0.1]),
    interrupt=st.integers(2, 120),
    more=st.integers(0, 3),
)
def test_an_interrupted_experiment_goes_on_to_the_exact_total(
    seed: int, lose: float, interrupt: int, more: int
) -> None:
    first = (
        Simulation(seed=seed, lose=lose)
        .open(retries={"infrastructure": 1000})
        .run(interrupt_after=interrupt)
    )
    check_closing(first.events)
    assert first.planner.history.closed is not None
    second = resumed(first.events, seed=seed, lose=lose, trials=6 + more)
    check_whole(second, 6 + more)
    before = first.planner.history
    for trial in before.trials:
        if trial.state.final:
            again = second.planner.history.trials[trial.number]
            assert len(again.attempts) == len(trial.attempts), "a finished trial was run again"


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_every_event_and_resumed_nothing_is_lost_or_done_twice(seed: int) -> None:
    whole = Simulation(seed=seed, slots=3).open().run()
    for cut in range(1, len(whole.events)):
        before = Simulation(events=whole.events[:cut])
        for event in before.events:
            before.planner.apply(event)
        run = resumed(whole.events[:cut], seed=seed + cut, slots=3)
        check_whole(run, 6)
        for was, now in zip(
            before.planner.history.trials, run.planner.history.trials, strict=False
        ):
            if was.state.final:
                assert len(now.attempts) == len(was.attempts)


@pytest.mark.parametrize("search", ["random", "tpe"])
def test_with_one_slot_a_killed_run_takes_the_decisions_of_one_that_was_not(search: str) -> None:
    whole = Simulation(slots=1, steady=True, trials=4).open(search=search).run()
    expected = decisions(whole.events)
    assert any("stop" in decision for decision in expected)
    for cut in range(1, len(whole.events), 1 if search == "random" else 7):
        run = resumed(whole.events[:cut], slots=1, steady=True, trials=4)
        assert decisions(run.events) == expected, f"cut at {cut}"
        curves = [trial.values for trial in run.planner.history.trials]
        assert curves == [trial.values for trial in whole.planner.history.trials]


@pytest.mark.parametrize("seed", range(5))
def test_a_coordinator_that_comes_back_goes_on_with_the_attempts_that_run(seed: int) -> None:
    run = Simulation(seed=seed).open()
    for cut in (20, 40, 60):
        while len(run.events) < cut and run.planner.history.closed is None:
            run.act(run.workers[-1], random.Random(cut))
        again = Simulation(events=list(run.events), workers=run.workers, slots=2)
        for event in again.events:
            again.planner.apply(event)
        again.tell(opened(again.now, by="coordinator"))
        run = again
    run.run()
    check_whole(run, 6)
    assert run.planner.history.sessions == 1
    assert run.planner.history.lost_steps == 0


# Stop conditions


@pytest.mark.parametrize(
    ("mode", "target", "reached"), [("max", 0.5, True), ("max", 5.0, False), ("min", 0.05, True)]
)
def test_the_target_ends_the_experiment(mode: str, target: float, reached: bool) -> None:
    run = (
        Simulation(slots=2, trials=40)
        .open(mode=mode, stop={"target": target}, schedule="fifo")
        .run()
    )
    history = run.planner.history
    closing = [event for event in run.events if isinstance(event, Closing)]
    assert bool(closing) == reached
    check_closing(run.events)
    assert verify(run.events).difference is None
    if reached:
        assert closing[0].why == f"the target {target:g} was reached"
        first = next(n for n, event in enumerate(run.events) if isinstance(event, Closing))
        assert isinstance(run.events[first - 1], Reported), (
            "later than at the report that reached it"
        )
        assert history.closed is not None
        assert history.closed.status == "finished"
        assert len(history.trials) < 40


def test_trials_that_wait_when_the_target_is_reached_stay_as_they_are() -> None:
    planner = Planner()
    feed(planner, [created(stop={"target": 0.0}), opened(1.0, slots=2)])
    again = feed(planner, [opened(2.0, slots=1)])
    assert [type(event) for event in again] == [Ended, Ended, Started]
    feed(planner, [Began(t=3.0, trial=0, attempt=2, node="n")])
    after = feed(planner, [report(0, 2, 1, 1)])
    assert [type(event) for event in after] == [Decided, Closing]
    assert feed(planner, [Ended(t=6.0, trial=0, attempt=2, outcome="stopped")]) == [
        Closed(t=6.0, status="finished")
    ]
    assert [trial.state for trial in planner.history.trials] == [
        TrialState.STOPPED,
        TrialState.LOST,
    ]
    assert planner.next(10.0) is None


def test_the_hours_of_all_sessions_count_and_the_time_between_does_not() -> None:
    planner = Planner()
    feed(planner, [created(stop={"hours": 1}), opened(1000.0)])
    assert planner.next(1000.0 + 1799) is None
    feed(planner, [Closing(t=2800.0, status="interrupted", why="", by="user")])
    for trial in (0, 1):
        feed(planner, [Ended(t=2800.0, trial=trial, attempt=1, outcome="paused")])
    feed(planner, [opened(90_000.0)])
    assert planner.next(90_000.0 + 1799) is None
    closing = planner.next(90_000.0 + 1801)
    assert isinstance(closing, Closing)
    assert closing.why == "1 hours are over"


def test_five_failures_without_a_single_report_end_it() -> None:
    run = Simulation(slots=1, trials=20, fails=frozenset(range(20))).open().run()
    history = run.planner.history
    assert len(history.trials) == 5
    assert history.closing is not None
    assert history.closing.why == "5 trials failed and none reported anything"
    assert run.events[-1] == Closed(t=run.events[-1].t, status="failed")


def test_no_number_of_failures_ends_it_where_they_are_unlimited() -> None:
    run = Simulation(slots=1, trials=20, fails=frozenset(range(19)))
    run.open(stop={"failures": "unlimited"}).run()
    assert len(run.planner.history.trials) == 20
    assert run.events[-1] == Closed(t=run.events[-1].t, status="finished")
    assert verify(run.events).difference is None


def test_failures_beside_reports_end_nothing() -> None:
    run = Simulation(slots=1, trials=8, fails=frozenset(range(1, 8))).open().run()
    assert len(run.planner.history.trials) == 8
    assert run.events[-1] == Closed(t=run.events[-1].t, status="finished")


def test_a_grid_ends_when_it_has_no_more_cells() -> None:
    space = {"x": {"grid": [0.1, 0.2, 0.3]}}
    run = Simulation(trials=5).open(search="grid", space=space, trials=None).run()
    assert [trial.config["x"] for trial in run.planner.history.trials] == [0.1, 0.2, 0.3]
    assert verify(run.events).difference is None


# Decisions at rungs


def feed(planner: Planner, events: list[AnyEvent]) -> list[AnyEvent]:
    """Applies observations; returns the decisions after the last one."""
    decided: list[AnyEvent] = []
    for event in events:
        planner.apply(event)
        decided = []
        while (decision := planner.next(event.t)) is not None:
            planner.apply(decision)
            decided.append(decision)
    return decided


def report(trial: int, attempt: int, first: int, last: int, value: float = 1.0) -> Reported:
    rows = [Row(step, 5.0, {"score": value + step}) for step in range(first, last + 1)]
    return Reported(t=5.0, trial=trial, attempt=attempt, rows=rows)


def begun(**changes: Any) -> Planner:
    """An experiment of three trials on three slots whose attempts have begun."""
    planner = Planner()
    feed(planner, [created(**changes), opened(1.0, slots=3, trials=3)])
    feed(planner, [Began(t=2.0, trial=n, attempt=1, node="n") for n in range(3)])
    return planner


def test_a_batch_that_jumps_over_a_rung_is_judged_by_its_value_at_the_rung() -> None:
    planner = begun()
    feed(planner, [report(0, 1, 1, 1, value=10.0)])
    rows = [Row(1, 5.0, {"score": 0.0}), Row(2, 5.0, {"score": 99.0})]
    (verdict,) = feed(planner, [Reported(t=5.0, trial=1, attempt=1, rows=rows)])
    assert isinstance(verdict, Decided)
    assert (verdict.step, verdict.verdict) == (1, "stop")


def test_a_batch_that_jumps_over_several_rungs_is_judged_at_each() -> None:
    planner = begun()
    verdicts = feed(planner, [report(0, 1, 1, 8)])
    assert [(v.step, v.until) for v in verdicts if isinstance(v, Decided)] == [(1, 3), (3, None)]
    assert verdicts == [v for v in verdicts if isinstance(v, Decided)]


def test_an_attempt_that_ends_in_the_report_of_a_rung_is_still_judged_and_counts_there() -> None:
    planner = begun()
    (verdict,) = feed(planner, [report(0, 1, 1, 1)])
    assert isinstance(verdict, Decided)
    assert feed(planner, [Ended(t=6.0, trial=0, attempt=1, outcome="done", step=1)]) == []
    (verdict,) = feed(planner, [report(1, 1, 1, 1, value=0.0)])
    assert isinstance(verdict, Decided)
    assert verdict.why == "place 2 of 2 at rung 1, 1 go on"


@pytest.mark.parametrize(
    ("outcome", "cause", "by"),
    [
        ("paused", "", "attempt"),
        ("stopped", "", "attempt"),
        ("lost", "preempted", "driver"),
        ("lost", "infrastructure", "driver"),
        ("failed", "infrastructure", "attempt"),
    ],
)
def test_a_decision_to_stop_stands_however_the_attempt_ends(
    outcome: Any, cause: Any, by: Any
) -> None:
    planner = begun()
    feed(planner, [report(0, 1, 1, 1, value=10.0), report(1, 1, 1, 1, value=0.0)])
    feed(planner, [Ended(t=6.0, trial=1, attempt=1, outcome=outcome, cause=cause, by=by)])
    assert planner.history.trials[1].state is TrialState.STOPPED


def test_a_decision_to_stop_stands_when_the_driver_is_lost_before_the_attempt_hears_of_it() -> None:
    planner = begun()
    feed(planner, [report(0, 1, 1, 1, value=10.0), report(1, 1, 1, 1, value=0.0)])
    feed(planner, [opened(7.0, slots=3, trials=3)])
    states = [trial.state for trial in planner.history.trials]
    assert states == [TrialState.RUNNING, TrialState.STOPPED, TrialState.RUNNING]


def test_a_decision_that_was_not_written_is_taken_when_the_coordinator_is_back() -> None:
    planner = begun()
    planner.apply(report(0, 1, 1, 1))
    (verdict,) = feed(planner, [opened(6.0, by="coordinator")])
    assert isinstance(verdict, Decided)


def test_a_decision_that_was_not_written_is_taken_by_the_next_attempt_restored_at_the_rung() -> (
    None
):
    planner = begun()
    planner.apply(report(0, 1, 1, 1))
    planner.apply(Saved(t=5.0, trial=0, attempt=1, step=1, manifest="m1", size=1))
    started = next(
        e for e in feed(planner, [opened(6.0, slots=3, trials=3)]) if isinstance(e, Started)
    )
    assert (started.trial, started.attempt, started.until, started.checkpoints) == (0, 2, 1, ["m1"])
    (verdict,) = feed(planner, [Began(t=7.0, trial=0, attempt=2, node="n", restored=1)])
    assert isinstance(verdict, Decided)
    assert verdict.attempt == 2


@pytest.mark.parametrize(
    "event",
    [
        Decided(t=3, trial=0, attempt=1, step=1, verdict="stop"),
        Decided(t=3, trial=0, attempt=1, step=3, verdict="stop"),
        Dropped(t=3, trial=0, manifests=["m"]),
        Dropped(t=3, trial=9, manifests=[]),
        Dropped(t=3, trial=-1, manifests=[]),
        Saved(t=3, trial=0, attempt=1, step=1, manifest="m", size=1),
        Saved(t=3, trial=0, attempt=1, step=0, manifest="m", size=1),
        Began(t=3, trial=0, attempt=1, node="n"),
        Ended(t=3, trial=0, attempt=1, outcome="failed"),
        Ended(t=3, trial=0, attempt=2, outcome="done"),
        Closed(t=3, status="finished"),
    ],
)
def test_an_event_that_cannot_follow_is_refused_and_changes_no_decision(event: AnyEvent) -> None:
    planner, twin = begun(), begun()
    with pytest.raises(IllegalMove):
        planner.apply(event)
    for other in (planner, twin):
        assert feed(other, [report(0, 1, 1, 1)])
    assert planner.history.trials == twin.history.trials
    assert planner.next(9.0) == twin.next(9.0)


# Checkpoints


def kept(values: list[float], *, mode: str, last: int, best: int) -> list[int]:
    planner = begun(schedule="fifo", mode=mode, checkpoint={"keep_last": last, "keep_best": best})
    for step, value in enumerate(values, start=1):
        feed(
            planner, [Reported(t=5.0, trial=0, attempt=1, rows=[Row(step, 5.0, {"score": value})])]
        )
        feed(planner, [Saved(t=5.0, trial=0, attempt=1, step=step, manifest=f"m{step}", size=1)])
    return list(planner.history.trials[0].checkpoints)


@pytest.mark.parametrize(
    ("values", "mode", "last", "best", "expected"),
    [
        ([5, 9, 1, 2, 3], "max", 1, 1, [2, 5]),
        ([5, 9, 1, 2, 3], "min", 1, 1, [3, 5]),
        ([5, 9, 1, 2, 3], "max", 2, 2, [1, 2, 4, 5]),
        ([5, 9, 1, 2, 3], "max", 3, 0, [3, 4, 5]),
        ([7, 7, 7, 7], "max", 1, 1, [1, 4]),
        ([1, 2, 3, 4], "max", 2, 1, [3, 4]),
        ([1], "max", 2, 1, [1]),
    ],
)
def test_the_last_and_the_best_checkpoints_are_kept(
    values: list[float], mode: str, last: int, best: int, expected: list[int]
) -> None:
    assert kept(values, mode=mode, last=last, best=best) == expected


@settings(max_examples=40, deadline=None)
@given(seed=chances, cut=st.integers(2, 200))
def test_no_checkpoint_that_an_attempt_may_restore_is_dropped_before_it_has_begun(
    seed: int, cut: int
) -> None:
    first = Simulation(seed=seed, lose=0.1, slots=3).open(retries={"infrastructure": 1000}).run()
    run = resumed(first.events[:cut], seed=seed, lose=0.1, slots=3)
    listed: dict[int, list[str]] = {}
    for event in run.events:
        match event:
            case Started():
                listed[event.trial] = event.checkpoints
            case Began() | Ended():
                listed.pop(event.trial, None)
            case Dropped():
                assert not set(event.manifests) & set(listed.get(event.trial, []))
            case _:
                pass


# Seeds


def test_a_seed_is_the_same_in_every_process_and_another_for_each_number_and_purpose() -> None:
    assert seed_for(0, 0) == 2600615964
    seeds = {
        seed_for(s, n, p) for s in range(10) for n in range(100) for p in ("proposal", "trial")
    }
    assert len(seeds) == 2000
    assert all(0 <= seed < 2**32 for seed in seeds)
