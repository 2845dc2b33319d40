"""Experiments as scripts of Ray Tune's have them come out as with Ray Tune, whose outcomes are
recorded: `python -m tests.compared tune --record`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from regrow import experiment
from regrow.flows import inline
from tests.compared import both, recorded
from tests.compared_cases import TUNE
from tests.unit.tune_here import run_here

RECORDED = recorded("tune")
REFUSED = ("unknown_name", "unpicklable", "many_experiments")


@pytest.mark.parametrize("name", [name for name in TUNE.loaded() if name not in TUNE.elsewhere])
def test_an_experiment_comes_out_as_with_ray_tune(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGROW_STATE", raising=False)
    monkeypatch.setattr(experiment, "run_session", run_here)
    monkeypatch.setattr(inline, "hand_to_guard", lambda *_: None)  # it begins processes
    outcome, message, _ = both(TUNE, name, tmp_path, {name: RECORDED[name]})
    expected = "refused" if name in REFUSED else "wrong" if name in TUNE.different else "alike"
    assert outcome == expected, message
