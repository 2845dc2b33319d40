"""What a user's module finds in sys.argv, in the driver and in a worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from regrow.tasks.attempt.trainable import as_a_script, find


def test_a_module_that_parses_its_arguments_is_given_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parses.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', default=0.1)\n"
        "parsed = parser.parse_args()\ndef train(trial): pass\n"
    )
    monkeypatch.setattr(sys, "argv", ["regrow", "run", "sweep.yaml", "--trials", "3"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with as_a_script("parses.py:train", str(tmp_path)):
        assert sys.argv == [str(tmp_path / "parses.py")]
        assert find("parses.py:train", str(tmp_path)).__name__ == "train"
    assert sys.argv == ["regrow", "run", "sweep.yaml", "--trials", "3"]
