"""The guard of schedulers that stop early: nobody is stopped at a step whose ranks were not seen to
agree with later ones.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from regrow.search.errors import SpecError
from regrow.search.schedulers.base import Decision
from regrow.search.schedulers.guard import ENOUGH, Agreement, Probes
from regrow.testing import check_scheduler
from tests.unit.scheduling import Run, scheduler

STEPS = [1, 3, 9]
GUARDED: list[Any] = [
    {"asha": {"guard": True}},
    {"asha": {"guard": True, "type": "promotion"}},
    {"async_hyperband": {"guard": True, "recheck": True, "eager": 24}},
    {"hyperband": {"guard": True}},
    {"successive_halving": {"guard": True}},
    {"median": {"guard": True}},
    {"percentile": {"guard": True}},
]


def seen(*curves: list[float]) -> Agreement:
    """What is known after these trials, of values at steps 1, 3, 9, 27 as far as they went."""
    agreement = Agreement(STEPS, 27)
    for trial, values in enumerate(curves):
        by_step = [value for value, n in zip(values, (1, 2, 6, 18), strict=False) for _ in range(n)]
        agreement.observe(trial, by_step)
    return agreement


def rising(count: int) -> list[list[float]]:
    """Trials in the same order at all steps."""
    return [[trial + 0.5] * 4 for trial in range(count)]


def test_without_evidence_a_third_of_the_steps_is_trusted_and_less_is_not() -> None:
    agreement = seen()
    assert [agreement.trusted(step) for step in STEPS] == [False, False, True]
    assert agreement.first_trusted() == 9


def test_enough_trials_in_the_same_order_open_the_first_step() -> None:
    assert seen(*rising(ENOUGH)).first_trusted() == 1
    assert seen(*rising(ENOUGH - 1)).first_trusted() == 9, "three trials may agree by chance"


def test_values_at_a_step_that_is_not_trusted_are_no_evidence() -> None:
    """Steps 1 and 3 agree, but nobody knows whether 3 tells the end."""
    assert seen(*[values[:2] for values in rising(20)]).first_trusted() == 9


def test_a_step_tells_no_more_than_the_one_where_it_is_compared() -> None:
    """All agree at 1, 3 and 9."""
    told = [[values[0]] * 3 for values in rising(20)]
    assert 0.3 < seen(*told).at(1)[0] < 0.4, "what is expected of 9: nobody was seen to the end"
    ends = [0, 4, 1, 5, 2, 6, 3, 7]
    whole = [[trial + 0.5] * 3 + [end - 99.0] for trial, end in enumerate(ends)]
    assert 0.3 < seen(*told, *whole).at(1)[0] < 0.6, "9 was seen to tell the end no better"
    assert seen(*told, *rising(8)).at(1)[0] > 0.8


def test_a_first_step_that_says_the_contrary_stays_closed_and_the_next_one_opens() -> None:
    agreement = seen(*[[99 - values[0], *values[1:]] for values in rising(8)])
    assert agreement.first_trusted() == 3
    assert agreement.at(1)[0] < 0


def test_a_late_step_closes_when_whole_curves_contradict_it() -> None:
    agreement = seen(*[[99.0, 99.0, 50 - values[0], values[0]] for values in rising(8)])
    assert agreement.first_trusted() == 27


def test_those_that_were_stopped_are_compared_where_they_were_stopped() -> None:
    """Four went on from step 3 and four were stopped there; the order of these is known up to 3."""
    agreement = seen(*rising(4), *[[10.0 + trial] * 2 for trial in range(4)])
    assert agreement.at(1)[1] == 8
    assert seen(*rising(4)).at(1)[1] == 4


def test_two_that_were_selected_at_a_step_say_nothing_of_it() -> None:
    """Among the survivors of the first step its order is the contrary of the later one's."""
    whole = seen(*rising(6))
    before = whole.at(1)[0]
    for trial in (6, 7, 8):
        whole.select(trial, 1, -trial)
        whole.observe(trial, [-trial] + [-99.0 + trial] * 26)
    assert whole.at(1)[0] > before - 0.1
    unaware = seen(*rising(6))
    for trial in (6, 7, 8):
        unaware.observe(trial, [-trial] + [-99.0 + trial] * 26)
    assert unaware.at(1)[0] < whole.at(1)[0]


def test_ties_at_the_early_step_are_no_agreement_and_ties_at_the_late_one_no_evidence() -> None:
    assert seen(*[[99.0, *values[1:]] for values in rising(8)]).first_trusted() == 3
    assert seen(*[[*values[:2], 0.0, 0.0] for values in rising(8)]).at(1)[1] == 0


def test_a_trial_counts_by_its_best_value_so_far_when_later_steps_are_compared() -> None:
    """All get worse again, and their last values say the contrary of their best ones."""
    agreement = seen(
        *[[values[0], values[0], 20 - values[0], 30 - values[0]] for values in rising(8)]
    )
    assert agreement.first_trusted() == 1


def test_an_excluded_trial_is_no_evidence_until_it_is_kept_again() -> None:
    agreement = seen(*rising(4))
    agreement.exclude(0, excluded=True)
    assert agreement.first_trusted() == 9
    agreement.exclude(0, excluded=False)
    assert agreement.first_trusted() == 1


def contrary(trial: int, step: int, config: Any) -> float:
    """The first two steps rank trials the other way round; more is better."""
    rank = random.Random(trial).random()
    return rank if step > 2 else -rank


@pytest.mark.parametrize("schedule", GUARDED)
def test_nobody_is_stopped_or_paused_where_ranks_say_the_contrary(schedule: Any) -> None:
    run = Run(scheduler(schedule, max_steps=27), contrary, trials=40, slots=4).go()
    ended = [(step, verdict) for _, step, verdict in run.log if verdict.action != "continue"]
    assert ended, "it still stops trials"
    assert min(step for step, _ in ended) >= 3
    told = [
        verdict.why for _, step, verdict in run.log if step == 1 and "is not seen" in verdict.why
    ]
    assert told[0].startswith("step 1 is not seen to tell the end")
    ((name, options),) = schedule.items()
    unguarded = {name: {**options, "guard": False}}
    before = Run(scheduler(unguarded, max_steps=27), contrary, trials=40, slots=4).go()
    assert any(step == 1 for _, step, verdict in before.log if verdict.action != "continue")


def test_where_the_first_step_tells_it_is_judged_there_after_the_first_trials() -> None:
    made = scheduler({"asha": {"guard": True}}, max_steps=27)
    run = Run(
        made, lambda trial, step, config: random.Random(trial).random() * 9 + step, 40, 4
    ).go()
    stopped = [step for _, step, verdict in run.log if verdict.action == "stop"]
    assert stopped.count(1) > 10
    assert [verdict.judged_from for _, _, verdict in run.log][:: len(run.log) - 1] == [9, 1]


def late(trial: int, step: int, config: Any) -> float:
    """Ranks at the third of the steps that is trusted beforehand are the contrary of the end's."""
    rank = random.Random(trial).random()
    return rank if step > 9 else -rank


def test_that_trials_are_stopped_in_error_is_found_out() -> None:
    made = scheduler({"asha": {"guard": True}}, max_steps=27)
    run = Run(made, late, trials=40, slots=4).go()
    assert [verdict.judged_from for _, _, verdict in run.log][:: len(run.log) - 1] == [9, 27]
    assert any("but it is to be seen how it ends" in verdict.why for _, _, verdict in run.log)


def test_probes_cost_a_share_of_all_steps_and_at_first_a_training_or_a_tenth_of_the_budget() -> (
    None
):
    probes = Probes(27, None)
    assert probes.has_room(9)
    probes.add(0, 9)
    assert not probes.has_room(9)
    probes.observe(0, 27)
    probes.observe(1, 200)
    assert not probes.has_room(9)
    probes.observe(2, 100)
    assert probes.has_room(9)
    assert not Probes(27, 5.0).has_room(9)


def test_until_ranks_were_seen_to_tell_a_recheck_leaves_as_many_as_it_takes_to_see_it() -> None:
    made = scheduler({"asha": {"guard": True, "recheck": True}}, max_steps=27, mode="min")
    costs = [6, 8, 5, 7, 4, 3, 2, 1]
    for trial, cost in enumerate(costs):
        values = [float(cost)] * 9
        made.apply(Decision(trial=trial, values=values, verdict=made.decide(trial, values)))
    again = [made.decide(trial, [float(cost)] * 10).action for trial, cost in enumerate(costs)]
    assert [cost for cost, action in zip(costs, again, strict=True) if action == "continue"] == [
        *(8, 4, 3, 2, 1),
    ], "the best four, and the probe"


def test_median_needs_max_steps_with_the_guard() -> None:
    with pytest.raises(SpecError, match=r"schedule.median.guard: .*needs max_steps"):
        scheduler({"median": {"guard": True}}, max_steps=None)


@pytest.mark.parametrize("schedule", GUARDED[2:4] + GUARDED[5:6])
def test_it_keeps_the_contract(schedule: Any) -> None:
    check_scheduler(schedule, trials=8)


def test_the_least_agreement_is_an_option_and_true_is_its_usual_value() -> None:
    for option, first in ((True, 27), (0.3, 27), (0.2, 27), (0.15, 9), (0.0, 1)):
        made = scheduler({"asha": {"guard": option}}, max_steps=81)
        assert made.agreement.first_trusted() == first, option
    for off in (None, False):
        assert scheduler({"asha": {"guard": off}}, max_steps=81).agreement is None
    with pytest.raises(SpecError, match=r"schedule.asha.guard: 2: .*is not between 0 and 1"):
        scheduler({"asha": {"guard": 2}}, max_steps=81)
    with pytest.raises(SpecError, match=r"schedule.asha.guard: \"yes\""):
        scheduler({"asha": {"guard": "yes"}}, max_steps=81)


def test_brackets_begin_at_the_grace_period() -> None:
    firsts = [
        scheduler({"hyperband": {"grace_period": least}}, max_steps=27).first_of_next(0)
        for least in (1, 2, 4)
    ]
    assert firsts == [1, 3, 9]
