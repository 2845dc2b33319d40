"""Each public name of Optuna's is done, passed through, or refused in a line."""

from __future__ import annotations

from typing import Any

import pytest

from regrow import optuna
from regrow.tasks.errors import UserError
from tests.optuna_names import PAGE, table


def test_the_page_has_the_table_of_public_names() -> None:
    assert table() in PAGE.read_text(), "run `python -m tests.optuna_names`"
    assert "without its name" not in table()


def test_modules_of_optuna_have_our_studies_and_trials() -> None:
    study: Any = optuna.study
    assert study.create_study is optuna.create_study
    assert optuna.trial.Trial is optuna.Trial
    assert study.study.__name__ == "optuna.study.study"
    assert optuna.trial.FrozenTrial.__module__.startswith("optuna.")


def test_a_study_keeps_its_sampler(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_STATE", str(tmp_path))
    study = optuna.create_study(study_name="kept")
    with pytest.raises(UserError, match="a study keeps the sampler"):
        study.sampler = optuna.samplers.RandomSampler()
    with pytest.raises(UserError, match="a study keeps the pruner"):
        study.pruner = optuna.pruners.NopPruner()


def test_names_that_look_alike_without_their_odd_letters_are_different_studies(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROW_STATE", str(tmp_path))
    names = (
        "a b",
        "a/b",
        "_a",
        "\u5b9e\u4e00",
        "\u5b9e\u4e8c",
        f"{60 * 'n'} one",
        f"{60 * 'n'} two",
    )
    made = [optuna.create_study(study_name=name).study_name for name in names]
    assert len({*made}) == len(names)
    again = optuna.create_study(study_name="a b", load_if_exists=True)
    assert again.study_name == made[0]


def test_an_attribute_of_a_waiting_trial_that_is_no_json_is_kept_as_text(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGROW_STATE", str(tmp_path))
    study = optuna.create_study(study_name="waiting")
    study.enqueue_trial({"x": 1}, user_attrs={"memo": "start", "tags": {"a"}})
    assert study.trials[0].user_attrs == {"memo": "start", "tags": "{'a'}"}
