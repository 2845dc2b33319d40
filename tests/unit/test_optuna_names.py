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
