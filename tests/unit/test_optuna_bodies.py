"""Studies as scripts of Optuna's have them come out as with Optuna."""

from __future__ import annotations

from pathlib import Path

import pytest

from regrow import experiment
from regrow.flows import inline
from regrow.tasks.trial import reporter
from tests.compared import both
from tests.compared_cases import OPTUNA
from tests.unit.optuna_here import run_here


@pytest.mark.parametrize("name", OPTUNA.loaded())
def test_a_study_comes_out_as_with_optuna(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGROW_STATE", raising=False)
    monkeypatch.setattr(experiment, "run_session", run_here)
    monkeypatch.setattr(reporter, "FLUSH_SECONDS", 60.0)
    monkeypatch.setattr(inline, "hand_to_guard", lambda *_: None)  # it begins processes
    outcome, message, _ = both(OPTUNA, name, tmp_path, {})
    assert outcome == "alike", message
