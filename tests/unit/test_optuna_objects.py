"""What an Optuna objective sets and what it chooses from comes out as it went in, from the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import numpy as np
import optuna
import pytest

from regrow.integrations.optuna.objective import Objective
from regrow.integrations.optuna.trials import Trials
from tests.unit.attempting import Attempting
from tests.unit.office import MakeOffice, offices

__all__ = ["attempt"]
from tests.unit.attempting import attempt  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore:Choices for a categorical:UserWarning")


@pytest.fixture
def make() -> Iterator[MakeOffice]:
    with offices(
        trainable="work_under_test:train",
        metric="value",
        mode="min",
        space={},
        search={"define_by_run": {"sampler": "RandomSampler"}},
        score="final",
        schedule="fifo",
        max_steps=None,
        step_metric={"name": "step", "first": 0},
    ) as made:
        yield made


class Color(Enum):
    RED = 1


class Model:
    def __init__(self, size: int) -> None:
        self.size = size


def no_study(_trial: Any) -> Any:
    raise AssertionError


def ran(
    make: MakeOffice, attempt: Attempting, function: Callable[[Any], Any], trials: int = 1
) -> list[optuna.trial.FrozenTrial]:
    """The trials of a study, read from its log."""
    office = make(trials=trials)
    objective = Objective(
        function, metrics=["value"], catch=(), constraints=None, last=None, study=no_study
    )
    for _ in range(trials):
        attempt(office, objective)
    return list(Trials(office.history, office.store))


CHOICES = [
    (50, 50),
    [1, [2]],
    np.int64(32),
    np.float64(0.5),
    Model,
    math.sqrt,
    Color.RED,
    {"a": (1, None)},
    {1: 2},
    True,
    1,
    1.0,
    "1",
    None,
    1 << 70,
    math.inf,
]


def test_choices_come_back_as_what_went_in(make: MakeOffice, attempt: Attempting) -> None:
    used: list[Any] = []

    def objective(trial: Any) -> float:
        for number, choice in enumerate(CHOICES):
            used.append(trial.suggest_categorical(f"c{number}", [choice]))
            assert trial.params[f"c{number}"] is used[-1]
        used.append(trial.suggest_categorical("all", CHOICES))
        return 1.0

    (trial,) = ran(make, attempt, objective)
    assert trial.state.name == "COMPLETE"
    found = [trial.params[f"c{number}"] for number in range(len(CHOICES))]
    assert found == CHOICES
    assert [*map(type, found)] == [*map(type, CHOICES)]
    assert (type(trial.params["all"]), trial.params["all"]) == (type(used[-1]), used[-1])
    assert vars(trial.distributions["all"])["choices"] == tuple(CHOICES)


def test_choices_that_have_no_written_form_are_kept_as_files(
    make: MakeOffice, attempt: Attempting
) -> None:
    (trial,) = ran(
        make, attempt, lambda t: t.suggest_categorical("f", [lambda x: x + 1, lambda x: x + 2])(0)
    )
    assert trial.params["f"](0) == trial.value
    (trial,) = ran(make, attempt, lambda t: t.suggest_categorical("m", [Model(3)]).size)
    assert trial.params["m"].size == 3


def test_attributes_are_numbers_objects_or_a_text_and_never_fail_a_trial(
    make: MakeOffice, attempt: Attempting, caplog: pytest.LogCaptureFixture
) -> None:
    def objective(trial: Any) -> float:
        trial.set_user_attr("mean", np.mean([0.5, 1.0]))
        trial.set_user_attr("nested", {"n": np.int64(3), "nan": [math.nan, -math.inf]})
        trial.set_user_attr("array", np.arange(3))
        trial.set_user_attr("model", Model(7))
        trial.set_user_attr("large", "x" * 2_000_000)
        trial.set_user_attr("odd name/ with .. parts", {1, 2})
        trial.set_user_attr("digits", 10**5000)
        trial.set_user_attr("none", (each for each in "ab"))
        assert trial.user_attrs["model"].size == 7
        return 1.0

    (trial,) = ran(make, attempt, objective)
    assert trial.state.name == "COMPLETE"
    attributes = trial.user_attrs
    assert (attributes["mean"], type(attributes["mean"])) == (0.75, float)
    assert attributes["nested"]["n"] == 3
    assert math.isnan(attributes["nested"]["nan"][0])
    assert attributes["nested"]["nan"][1] == -math.inf
    assert attributes["array"].tolist() == [0, 1, 2]
    assert attributes.get("model", Model(0)).size == 7
    assert len(attributes["large"]) == 2_000_000
    assert {**attributes}["odd name/ with .. parts"] == {1, 2}
    assert attributes["digits"] == 10**5000
    assert attributes["none"].startswith("<generator object")
    assert "the attribute 'none' is kept as a text: it cannot be pickled" in caplog.text
    assert "0x" not in attributes["none"]


def test_values_that_are_not_finite_are_what_optuna_has(
    make: MakeOffice, attempt: Attempting
) -> None:
    def objective(trial: Any) -> Any:
        for step, value in enumerate([0.5, math.nan, math.inf, 0.25]):
            trial.report(value, step)
        trial.set_constraint("c", 1.0)
        with pytest.warns(UserWarning, match="already set"):
            trial.set_constraint("c", 2.0)
        with pytest.raises(TypeError, match="supposed to be a float"):
            trial.report("a", 9)
        with pytest.raises(TypeError, match="supposed to be an int"):
            trial.report(1.0, "a")
        with pytest.raises(ValueError, match="non-negative"):
            trial.report(1.0, -1)
        return [math.inf, "5", math.nan, "1.5", [1.0], None][trial.number]

    found = ran(make, attempt, objective, trials=6)
    assert [one.state.name for one in found] == [
        "COMPLETE",
        "COMPLETE",
        "FAIL",
        "FAIL",
        "COMPLETE",
        "FAIL",
    ]
    assert [found[n].value for n in (0, 1, 4)] == [math.inf, 5.0, 1.0]
    assert found[0].constraints == {"c": 1.0}
    steps = found[0].intermediate_values
    assert (steps[0], steps[2], steps[3]) == (0.5, math.inf, 0.25)
    assert math.isnan(steps[1])


def test_a_file_whose_hash_is_another_one_is_not_unpickled(
    make: MakeOffice, attempt: Attempting
) -> None:
    office = make()

    def objective(trial: Any) -> float:
        trial.set_user_attr("model", Model(7))
        return 1.0

    attempt(
        office,
        Objective(
            objective, metrics=["value"], catch=(), constraints=None, last=None, study=no_study
        ),
    )
    (key,) = office.store.list("media/")
    office.store.delete([key])
    office.store.create(key, b"cos\nsystem\n(S'touch /tmp/trapped'\ntR.")
    (trial,) = Trials(office.history, office.store)
    assert "Model object" in trial.user_attrs["model"]
