"""Specifications that are refused by the command line, as a user runs it, within this process. No
test lives here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regrow.cli import main

SPEC: dict[str, Any] = {
    "name": "x",
    "trainable": "work.py:train",
    "metric": "acc",
    "mode": "max",
    "space": {"lr": {"uniform": [0, 1]}},
    "trials": 3,
}

TEXT = """name: x
trainable: work.py:train
metric: acc
mode: max
trials: 3
space: {lr: {uniform: [0, 1]}}
"""

WORK = """
class Half:
    def setup(self, config): pass

number = 3

def train(trial): pass
"""
Refused = Callable[..., str]


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """Runs `regrow ...` in a folder with a trainable; returns the one line that it says, without
    `regrow: `.
    """
    for name in [n for n in os.environ if n.startswith(("REGROW_", "PREFECT_", "MLFLOW_", "RAY_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("work.py").write_text(WORK)

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["regrow", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == 2, said
        assert said.out == ""
        (line,) = said.err.splitlines()
        assert line.startswith("regrow: ")
        assert not Path(".regrow").exists(), "something was written"
        return line.removeprefix("regrow: ").replace(str(tmp_path), "HERE")

    return run


def spec(**changes: Any) -> str:
    """The specification with changes; a value of ... leaves the key out. JSON is YAML."""
    return json.dumps({k: v for k, v in {**SPEC, **changes}.items() if v is not ...})
