"""The percentile rule, by hand, and beside Optuna's on results of finished trials."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

from regrow.search import schedulers
from regrow.search.chance import uniform_draw
from regrow.search.errors import SpecError
from regrow.search.mode import Mode
from regrow.search.schedulers.base import Decision, SchedulerPort, Verdict
from regrow.search.space import Space
from regrow.search.space.setting import Setting
from regrow.testing import check_scheduler

SPACE = Space.parse({"x": {"uniform": [0, 1]}})


def made(mode: Mode = "max", max_steps: int | None = 9, **options: Any) -> SchedulerPort:
    return schedulers.make(
        {"percentile": options}, Setting(space=SPACE, modes=(mode,), max_steps=max_steps)
    )


def told(scheduler: SchedulerPort, trial: int, *values: float) -> Verdict:
    """The decision on a trial at the last of its steps, which is then told."""
    verdict = scheduler.decide(trial, values)
    scheduler.apply(Decision(trial=trial, values=values, verdict=verdict))
    return verdict


def test_the_best_quarter_goes_on() -> None:
    scheduler = made(min_samples_required=1)
    actions = [
        told(scheduler, trial, value).action
        for trial, value in enumerate([5.0, 4.0, 3.0, 6.0, 5.0, 5.5])
    ]
    # Better ones among n: 0 of 1, 1 of 2 (50 %), 2 of 3, 0 of 4, 1 of 5 (20 %), 1 of 6 (17 %).
    assert actions == ["continue", "stop", "stop", "continue", "continue", "continue"]


def test_a_quarter_that_was_better_is_one_too_many() -> None:
    scheduler = made()
    for trial, value in enumerate([5.0, 1.0, 0.0]):
        told(scheduler, trial, value)
    verdict = told(scheduler, 3, 3.0)
    assert (verdict.action, verdict.why) == ("stop", "1 of 4 were better at step 1, 25 % go on")


def test_less_is_better_in_mode_min() -> None:
    scheduler = made("min", min_samples_required=1)
    assert [told(scheduler, n, v).action for n, v in enumerate([5.0, 6.0, 4.0])] == [
        "continue",
        "stop",
        "continue",
    ]


def test_the_best_so_far_counts_not_the_last() -> None:
    scheduler = made(min_samples_required=1, interval=3, grace_period=3)
    assert told(scheduler, 0, 1.0, 1.0, 1.0).action == "continue"
    assert told(scheduler, 1, 2.0, 0.0, 0.0).why == "0 of 2 were better at step 3, 25 % go on"
    assert told(scheduler, 2, 0.0, 1.5, 0.0).why == "1 of 3 were better at step 3, 25 % go on"


def test_a_tie_goes_on() -> None:
    scheduler = made(min_samples_required=1)
    assert [told(scheduler, n, 1.0).action for n in range(4)] == ["continue"] * 4


@pytest.mark.parametrize("mode", ["min", "max"])
def test_beside_optunas_on_finished_trials(mode: Mode) -> None:
    """Optuna cuts at an interpolated value of the finished others, we at a rank among all: a cut of
    4 of 20 lies between both.
    """
    scheduler = made(mode, 2, percentile=20.0, min_samples_required=1)
    study = optuna.create_study(
        direction="minimize" if mode == "min" else "maximize",
        pruner=optuna.pruners.PercentilePruner(20.0, n_startup_trials=1, n_warmup_steps=0),
    )
    finished = [uniform_draw(n, "curve") for n in range(20)]
    for number, value in enumerate(finished):
        scheduler.apply(Decision(trial=number, values=[value], verdict=Verdict()))
        study.add_trial(optuna.trial.create_trial(value=value, intermediate_values={1: value}))
    differ = 0
    for number in range(100):
        value = uniform_draw(number, "new")
        trial = study.ask()
        trial.report(value, 1)
        differ += trial.should_prune() != (scheduler.decide(100 + number, [value]).action == "stop")
    ranked = sorted(finished, reverse=mode == "max")
    between = sum(
        min(ranked[3:5]) <= uniform_draw(n, "new") <= max(ranked[3:5]) for n in range(100)
    )
    assert differ <= between


@pytest.mark.parametrize("value", [0.0, 100.0])
def test_wrong_options_are_refused(value: float) -> None:
    with pytest.raises(SpecError) as caught:
        made(percentile=value)
    assert caught.value.key == "schedule.percentile.percentile"


def test_it_keeps_its_word() -> None:
    check_scheduler({"percentile": {"min_samples_required": 1}}, trials=8)
