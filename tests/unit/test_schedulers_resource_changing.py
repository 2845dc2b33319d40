"""Trials that get the slots of those that are over."""

from __future__ import annotations

from typing import Any

import pytest

from regrow.search.errors import SpecError
from regrow.search.schedulers.base import (
    Candidate,
    Decision,
    End,
    Opening,
    Start,
    Verdict,
)
from tests.unit.scheduling import Run, scheduler


def changing(
    schedule: Any = "fifo",
    trials: int | None = 4,
    slots: int = 4,
    interval: int | None = 2,
    **options: Any,
) -> Any:
    made = scheduler(
        {"resource_changing": {"schedule": schedule, "interval": interval}},
        trials=trials,
        **options,
    )
    made.apply(Opening(slots=slots, widest=slots))
    return made


def begin(made: Any, *trials: int) -> None:
    for trial in trials:
        made.apply(Candidate(trial=trial, config={"x": 0.5}))
        assert made.width(trial) == 1 or made.setting.trials == len(trials)
        made.apply(Start(trial=trial, width=made.width(trial)))


def test_those_that_are_left_share_the_slots() -> None:
    made = changing()
    begin(made, 0, 1, 2, 3)
    assert made.decide(0, [0.5] * 2) == Verdict(until=4, why="resources are looked at")
    made.apply(End(trial=1, how="done"))
    assert made.decide(0, [0.5] * 4).action == "continue"  # 4 slots // 3 trials
    made.apply(End(trial=2, how="failed"))
    verdict = made.decide(0, [0.5] * 4)
    assert (verdict.action, verdict.why) == (
        "restart",
        "goes on with 2 slots instead of 1: 2 of 4 trials run",
    )
    made.apply(Decision(trial=0, values=[0.5] * 4, verdict=verdict))
    assert made.width(0) == 2
    made.apply(Start(trial=0, width=made.width(0)))
    assert made.decide(0, [0.5] * 6).action == "continue"
    made.apply(End(trial=3, how="done"))
    assert made.decide(0, [0.5] * 6).why == "goes on with 4 slots instead of 2: 1 of 4 trials run"


def test_nothing_changes_while_new_trials_come() -> None:
    made = changing(trials=5)
    begin(made, 0, 1)
    made.apply(End(trial=1, how="done"))
    assert made.decide(0, [0.5] * 2).action == "continue"
    assert made.width(0) == 1
    endless = changing(trials=None)
    begin(endless, 0)
    assert endless.width(0) == 1


def test_one_trial_alone_has_all_slots_from_the_start() -> None:
    made = changing(trials=1)
    begin(made, 0)
    assert made.width(0) == 4
    assert made.decide(0, [0.5] * 2).action == "continue"


def test_the_decisions_are_those_of_the_schedule() -> None:
    def go(made: Any) -> Run:
        return Run(made, lambda t, s, c: float(-t if t < 8 else t), 10, 2, ends={8: 3}).go()

    plain = go(scheduler("asha", max_steps=9, trials=10))
    wide = go(changing("asha", trials=10, slots=2, interval=None, max_steps=9))
    assert wide.outcome == plain.outcome
    assert [(t, s) for t, s, _ in wide.log] == [(t, s) for t, s, _ in plain.log]
    assert [t for t, _, verdict in wide.log if verdict.action == "restart"] == [9], (
        "8 has ended: both slots are its own"
    )
    both = go(changing("asha", trials=10, slots=2, interval=2, max_steps=9))
    assert both.outcome == plain.outcome


def test_the_schedule_is_told_its_own_verdict_where_a_trial_only_gets_wider() -> None:
    made = changing("asha", trials=2, slots=2, interval=None, max_steps=9)
    begin(made, 0, 1)
    made.apply(End(trial=1, how="failed"))
    told: list[Verdict] = []
    made._base.tell = lambda trial, values, verdict: told.append(verdict)
    verdict = made.decide(0, [0.5])
    assert verdict.action == "restart"
    made.apply(Decision(trial=0, values=[0.5], verdict=verdict))
    assert told == [Verdict(until=3, why="place 1 of 1 at rung 1, 1 go on")]


def test_a_schedule_that_pauses_is_told_its_own_verdicts() -> None:
    made = changing({"asha": {"type": "promotion"}}, trials=3, slots=3, interval=None, max_steps=9)
    begin(made, 0, 1, 2)
    for trial, value in enumerate((0.1, 0.2)):
        verdict = made.decide(trial, [value])
        assert verdict.action == "pause"
        made.apply(Decision(trial=trial, values=[value], verdict=verdict))
    # it continues; nothing else can: the floor of 1/3 of three is itself
    verdict = made.decide(2, [0.9])
    assert verdict.action == "continue", (
        "one of the others would be promoted, now that no more come"
    )
    made.apply(Decision(trial=2, values=[0.9], verdict=verdict))
    assert made.promote(complete=False) is None


def test_one_that_waits_takes_no_share_but_a_promotion_comes_first() -> None:
    made = changing("successive_halving", trials=9, slots=9, interval=None, max_steps=9)
    begin(made, *range(9))
    for trial in range(8):
        verdict = made.decide(trial, [float(trial)])
        made.apply(Decision(trial=trial, values=[float(trial)], verdict=verdict))
        if verdict.action == "stop":
            made.apply(End(trial=trial, how="stopped"))
    assert made.decide(8, [-1.0]).action == "stop"
    made.apply(Decision(trial=8, values=[-1.0], verdict=made.decide(8, [-1.0])))
    made.apply(End(trial=8, how="stopped"))
    # 7 and 6 go on, 5 is to be promoted
    assert made.promote(complete=True) == 5
    assert made.width(6) == 1
    assert made.width(5) == 3
    made.apply(Start(trial=5, width=made.width(5)))
    assert made.width(6) == 3
    run = Run(
        changing("successive_halving", trials=9, slots=3, interval=None, max_steps=9),
        lambda t, s, c: float(t),
        9,
        3,
    ).go()
    assert run.reached(9) == [8]
    assert run.starts.count(8) >= 2
    assert set(run.outcome) == set(range(9))


def test_with_pbt_a_restart_of_the_schedule_is_told_as_such() -> None:
    made = changing(
        {"pbt": {"perturbation_interval": 2}}, trials=2, slots=2, interval=None, max_steps=20
    )
    begin(made, 0, 1)
    made.apply(Decision(trial=1, values=[0.9] * 2, verdict=made.decide(1, [0.9] * 2)))
    verdict = made.decide(0, [0.1] * 2)
    assert (verdict.action, verdict.source) == ("restart", 1)
    made.apply(Decision(trial=0, values=[0.1] * 2, verdict=verdict))
    assert made._base._members[0].config == verdict.config


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_losses_and_failures_change_nothing_but_the_widths(slots: int) -> None:
    run = Run(
        changing("median", trials=7, slots=slots, interval=3, max_steps=9),
        lambda t, s, c: float(t % 3),
        7,
        slots,
        breaks={2: 4},
        lost={(6, 5), (1, 2)},
    ).go()
    assert set(run.outcome) == set(range(7))
    assert run.outcome[2] == "failed"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (
            {"schedule": {"asha": {"grace": 1}}},
            r"schedule\.resource_changing\.schedule\.asha\.grace",
        ),
        ({"schedule": "ahsa"}, r"schedule\.resource_changing\.schedule: \"ahsa\""),
        ({"interval": 0}, r"resource_changing\.interval"),
        ({"schedule": "fifo"}, r"resource_changing\.interval: null: is needed"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError, match=key):
        scheduler({"resource_changing": options})


def test_the_schedule_needs_what_it_needs() -> None:
    with pytest.raises(SpecError, match="max_steps"):
        scheduler({"resource_changing": {"schedule": "asha"}}, max_steps=None)


def test_where_others_have_more_than_their_share_it_takes_what_is_left() -> None:
    """The cluster was larger when the other one began."""
    made = changing(trials=2, slots=8)
    begin(made, 0, 1)
    made.apply(Start(trial=0, width=4))
    made.apply(Opening(slots=6, widest=6))
    made.apply(Start(trial=1, width=2))
    assert made.decide(1, [0.5] * 2).action == "continue", (
        "its share is 3, of which 2 are free: nothing would be won"
    )
    made.apply(Opening(slots=7, widest=7))
    assert made.decide(1, [0.5] * 2).why == "goes on with 3 slots instead of 2: 2 of 7 trials run"
    made.apply(Opening(slots=0, widest=1))
    assert made.decide(1, [0.5] * 2).action == "continue"
