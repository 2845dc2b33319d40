"""What the integrations of frameworks have in common, and scikit-learn's; the others' trainings are
in tests/system/test_frameworks.py.
"""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn import model_selection
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import Ridge, SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.utils.estimator_checks import check_estimator

from regrow.integrations import reports
from regrow.integrations.sklearn import RandomizedSearchCV, State
from regrow.tasks.errors import UserError
from regrow.tasks.trial.trial import Trial
from tests.system.test_frameworks import SETTINGS
from tests.unit.attempting import Attempting, outcome, steps
from tests.unit.fresh import printed
from tests.unit.office import MakeOffice

FRAMEWORKS = {
    "accelerate": "accelerate",
    "catboost": "catboost",
    "flax": "orbax",
    "keras": "keras",
    "lightgbm": "lightgbm",
    "lightning": "lightning",
    "sklearn": "sklearn",
    "transformers": "accelerate",
    "xgboost": "xgboost",
}
"""The integrations, and a package without which each cannot be."""
APART = {"optuna", "rllib", "torch", "tune", "wandb"}
"""Those that have tests of their own."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("framework", "package"), FRAMEWORKS.items())
def test_a_framework_that_is_missing_is_one_line_with_its_extra(
    framework: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"regrow.integrations.{framework}", raising=False)
    if framework == "flax":
        monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(UserError) as told:
        importlib.import_module(f"regrow.integrations.{framework}")
    line = str(told.value)
    assert line.startswith(f"regrow.integrations.{framework} needs ")
    assert package in line
    assert line.endswith(f'not installed; pip install "regrow[{framework}]"')


def test_each_integration_has_its_extra_and_its_example() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    there = {file.stem for file in (ROOT / "regrow/integrations").iterdir()} - {
        "__init__",
        "__pycache__",
        "installed",
        "reports",
        *APART,
    }

    def named(page: str) -> set[str]:
        text = (ROOT / page).read_text()
        return {name for name in there if re.search(rf"\b{name}\b", text, re.IGNORECASE)}

    installed = re.search(r"^FRAMEWORKS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert installed is not None
    examples = (ROOT / "examples/frameworks").glob("*.yaml")
    places = {
        "FRAMEWORKS in tests/unit/test_integrations.py": set(FRAMEWORKS),
        "SETTINGS in tests/system/test_frameworks.py": set(SETTINGS),
        "FRAMEWORKS in Makefile": set(installed[1].split(",")),
        "an extra in pyproject.toml": there & extras.keys(),
        "a .yaml in examples/frameworks": {file.stem.partition("_")[2] for file in examples},
        "docs/reference/python.md": named("docs/reference/python.md"),
        "docs/how-to/frameworks.md": named("docs/how-to/frameworks.md"),
    }
    differing = [f"{place}: {names ^ there}" for place, names in places.items() if names != there]
    assert not differing, "\n".join(["not in both regrow/integrations and", *differing])
    page = (ROOT / "docs/how-to/frameworks.md").read_text()
    restored = page.split("## What is restored")[1].split("\n|---")[1].split("\n\n")[0]
    assert restored.count("\n") == len(there), "a row for each"


def test_an_integration_loads_no_other() -> None:
    code = "import sys, regrow.integrations.sklearn; print(*(m for m in sys.modules if m.startswith('regrow.integrations.')))"
    assert {name.split(".")[2] for name in printed(code).split()} == {"sklearn", "installed"}


# A framework with callbacks


def fit(trial: Trial, metric: str | None = "val", most: int = 100) -> str:
    """A framework that trains until it is told to stop."""
    told: list[bool] = []
    for _ in range(most):
        reports.report(trial, {"val": 1.0, "time": 2.0}, metric, None, lambda: told.append(True))
        if told:
            return "stopped by its own means"
    return "did all"


def test_after_the_last_step_the_framework_stops_and_the_code_behind_it_runs(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office, ended = make_office(max_steps=3), list[str]()
    assert outcome(attempt(office, lambda trial: ended.append(fit(trial)))) == ("done", "", "")
    assert ended == ["stopped by its own means"]
    assert steps(office) == [1, 2, 3]


def test_a_trial_that_is_told_to_end_before_is_unwound(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office, ended = make_office(schedule="asha", max_steps=9, trials=2), list[str]()
    attempt(office, lambda trial: [trial.report({"score": 2.0}) for _ in trial.steps()])
    assert outcome(attempt(office, lambda trial: ended.append(fit(trial))))[0] == "stopped"
    assert ended == []


def test_the_value_named_is_the_metric_and_all_are_reported(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(max_steps=1)
    attempt(office, fit)
    (row,) = [row for news in office.told for row in news.rows]
    assert row.metrics == {"val": 1.0, "time": 2.0, "score": 1.0}


def test_a_value_that_is_not_there_is_told_with_those_that_are(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    told = outcome(attempt(make_office(max_steps=1), lambda trial: fit(trial, "vall")))
    assert told == (
        "failed",
        "error",
        "step 1: there is no 'vall' among what was measured: val, time",
    )
    told = outcome(attempt(make_office(max_steps=1), lambda trial: fit(trial, None)))
    assert "the metric 'score' was not reported" in told[2]


def test_a_checkpoint_without_the_file_is_told_with_what_it_has(tmp_path: Path) -> None:
    trial: Any = SimpleNamespace(restored=None, number=3, step=4)
    assert reports.restored(trial, "model") is None
    trial.restored = tmp_path
    (tmp_path / "other").touch()
    with pytest.raises(
        UserError, match="trial 3: the checkpoint of step 4 has no model, but other"
    ):
        reports.restored(trial, "model")
    assert reports.restored(trial, "other") == tmp_path / "other"


# scikit-learn


def test_what_was_learned_comes_back_and_parameters_are_the_new_ones(tmp_path: Path) -> None:
    images, labels = load_iris(return_X_y=True)
    first = SGDClassifier(alpha=0.1, random_state=0).partial_fit(images, labels, classes=range(3))
    network = MLPClassifier((4,), random_state=0).partial_fit(images, labels, classes=range(3))
    State(first, network).save(tmp_path)
    again, other = SGDClassifier(alpha=0.5, random_state=0), MLPClassifier((4,), random_state=0)
    State(again, other).load(tmp_path)
    assert again.alpha == 0.5
    assert np.array_equal(again.coef_, first.coef_)
    for both in (network, other):
        both.partial_fit(images, labels)
    assert np.array_equal(network.coefs_[0], other.coefs_[0])
    with pytest.raises(UserError, match="has a SGDClassifier, not a MLPClassifier"):
        State(other).load(tmp_path)


# what scikit-learn's own class fails, it fails with warnings
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_search_is_an_estimator_as_scikit_learns_own_is() -> None:
    def checked(kind: Any) -> dict[str, str]:
        search = kind(
            Ridge(),
            {"alpha": [0.1, 1.0, 10.0]},
            n_iter=2,
            cv=2,
            random_state=0,
            error_score="raise",
        )
        return {
            one["check_name"]: one["status"]
            for one in check_estimator(search, on_fail=None, on_skip=None)
        }

    found = checked(RandomizedSearchCV)
    assert found == checked(model_selection.RandomizedSearchCV)
    assert list(found.values()).count("passed") > 40
    named = clone(RandomizedSearchCV(Ridge(), {"alpha": [1.0]}, name="a", state="b"))
    assert (named.get_params()["name"], clone(named).get_params()["state"]) == ("a", "b")
