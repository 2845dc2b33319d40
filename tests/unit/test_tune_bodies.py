"""Experiments as scripts of Ray Tune's have them come out as with Ray Tune, whose outcomes are
recorded: `python -m tests.tune_compared --record`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from regrow import experiment
from regrow.flows import inline
from tests.tune_compared import DIFFERENT, ELSEWHERE, compared, recorded
from tests.tune_registry import BODIES
from tests.unit.tune_here import run_here

RECORDED = recorded()
REFUSED = ("unknown_name", "unpicklable", "many_experiments")


@pytest.mark.parametrize("name", [name for name in BODIES if name not in ELSEWHERE])
def test_an_experiment_comes_out_as_with_ray_tune(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REGROW_STATE", raising=False)
    monkeypatch.setattr(experiment, "run_session", run_here)
    monkeypatch.setattr(inline, "hand_to_guard", lambda *_: None)  # it begins processes
    outcome, told = compared(name, tmp_path / "state", RECORDED[name])
    expected = "refused" if name in REFUSED else "wrong" if name in DIFFERENT else "alike"
    assert outcome == expected, told
