"""Each integration on its example: six steps, SIGKILL after the third, and what is reported then is
what the unkilled twin reports.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system import twins
from tests.system.conftest import Desk, await_no_process, desk_in

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "sklearn": {"digits_sklearn": {"alpha": 1e-4}},
    "xgboost": {"digits_xgboost": {"eta": 0.3, "max_depth": 4}},
    "lightgbm": {"digits_lightgbm": {"learning_rate": 0.1, "num_leaves": 15}},
    "catboost": {"digits_catboost": {"learning_rate": 0.3, "depth": 4}},
    "lightning": {"digits_lightning": {"lr": 0.003}},
    "keras": {"digits_keras": {"lr": 0.003}},
    "flax": {"digits_flax": {"lr": 0.003}},
    "transformers": {"text_transformers": {"lr": 0.003}},
    "accelerate": {"digits_accelerate": {"lr": 0.003}},
}
"""The example of each framework, and the configuration that it runs with."""
GROUPED = ("lightning", "transformers", "accelerate")
INSTALLED = {framework: importlib.util.find_spec(framework) is not None for framework in SETTINGS}


def pairs(
    desk: Desk, name: str, frameworks: tuple[str, ...], **changes: Any
) -> dict[str, dict[str, Any]]:
    """Of all that are installed, by framework, in one experiment."""
    there = [framework for framework in frameworks if INSTALLED[framework]]
    settings = {
        example: config for framework in there for example, config in SETTINGS[framework].items()
    }
    ran = twins.run(desk, name, settings, **changes)
    return {framework: ran[next(iter(SETTINGS[framework]))] for framework in there}


def check(pair: dict[str, Any]) -> None:
    """Both did all steps, the killed one lost its first attempt and continued, and nobody could tell
    by the losses.
    """
    first, second = pair["attempts"]
    assert (first["outcome"], second["outcome"], second["from_step"]) == (
        "lost",
        "done",
        twins.KILLED_AFTER,
    )
    assert list(pair["whole"]) == list(range(1, twins.STEPS + 1))
    assert pair["killed"] == pair["whole"]
    assert pair["whole"][twins.STEPS] < pair["whole"][1], "it learned nothing"


def needs(framework: str) -> None:
    """Skips where a framework is not installed."""
    if not INSTALLED[framework]:
        pytest.skip(f"{framework} is not installed; `make nightly` installs it")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    with desk_in(tmp_path_factory.mktemp("alone")) as desk:
        yield pairs(desk, "alone", tuple(SETTINGS))
        assert await_no_process(desk.folder) == []


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    with desk_in(tmp_path_factory.mktemp("grouped")) as desk:
        yield pairs(
            desk, "grouped", GROUPED, rank=1, resources={"cpu": 1, "workers": 2}, concurrency=None
        )
        assert await_no_process(desk.folder) == []


@pytest.mark.usefixtures("shared_prefect")
def test_an_estimator_of_scikit_learn_goes_on_as_if_it_had_not_been_killed(desk: Desk) -> None:
    check(pairs(desk, "estimator", ("sklearn",))["sklearn"])


@pytest.mark.nightly
@pytest.mark.timeout(900)  # the first starts eighteen trials
@pytest.mark.parametrize(
    "framework", [framework for framework in SETTINGS if framework != "sklearn"]
)
def test_a_training_goes_on_as_if_it_had_not_been_killed(
    framework: str, request: pytest.FixtureRequest
) -> None:
    needs(framework)
    check(request.getfixturevalue("alone")[framework])


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", GROUPED)
def test_a_training_of_two_workers_goes_on_as_if_rank_1_had_not_been_killed(
    framework: str, request: pytest.FixtureRequest
) -> None:
    needs(framework)
    check(request.getfixturevalue("grouped")[framework])


SEARCH = """
import json, os, sys
from pathlib import Path

from sklearn import model_selection
from sklearn.datasets import load_diabetes
from sklearn.ensemble import RandomForestRegressor

from regrow.integrations.sklearn import RandomizedSearchCV

PATIENTS, PROGRESS = load_diabetes(return_X_y=True)
SPACE = {"max_depth": [2, 3, 4, 5], "min_samples_leaf": [1, 2, 4]}
SHARED = {"n_iter": 5, "cv": 3, "scoring": ["r2", "neg_mean_absolute_error"], "refit": "r2", "return_train_score": True}


def fitted(kind, **name):
    search = kind(RandomForestRegressor(100, random_state=0), SPACE, random_state=0, **SHARED, **name)
    return search.fit(PATIENTS, PROGRESS)


if __name__ == "__main__":
    found, expected = fitted(RandomizedSearchCV, name="search"), fitted(model_selection.RandomizedSearchCV)
    differing = [
        key for key, values in expected.cv_results_.items() if "time" not in key and list(values) != list(found.cv_results_[key])
    ]
    print(json.dumps({
        "differing": differing, "keys": list(found.cv_results_) == list(expected.cv_results_),
        "best": [search.best_params_ for search in (found, expected)], "scores": [search.best_score_ for search in (found, expected)],
        "predicted": bool((found.predict(PATIENTS) == expected.predict(PATIENTS)).all()),
        "scored": found.score(PATIENTS, PROGRESS) == expected.score(PATIENTS, PROGRESS),
    }))
"""


@pytest.mark.usefixtures("shared_prefect")
def test_a_search_that_is_killed_and_fitted_again_finds_what_scikit_learn_finds(desk: Desk) -> None:
    (desk.folder / "search.py").write_text(SEARCH)
    process = desk.start_script("search.py")
    desk.await_events("search", "reported", 2, process)
    process.kill()
    process.communicate()
    again = desk.start_script("search.py")
    printed, _ = again.communicate(timeout=240)
    assert again.returncode == 0, printed
    said = json.loads(printed.splitlines()[-1])
    assert said["differing"] == []
    assert said["best"][0] == said["best"][1]
    assert said["scores"][0] == said["scores"][1]
    assert (said["keys"], said["predicted"], said["scored"]) == (True, True, True)
    assert [point["step"] for point in desk.points("search")] == [1, 2, 3] * 5
    outcomes = [
        attempt["outcome"]
        for trial in desk.show("search")["trials"]
        for attempt in trial["attempts"]
    ]
    assert (outcomes.count("done"), "lost" in outcomes) == (5, True)
    assert await_no_process(desk.folder) == []
