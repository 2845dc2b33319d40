"""A history with trials in many states, the state root of its experiment, and the command line. No test lives here."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from regrow.cli.app import app
from regrow.search.history import History
from tests.unit import exported

CONFIG = ("lr", "model.layers", "model.rate", "noise", "optimizer", "momentum", "warmup", "mixed", "seed")
"""The columns of its parameters."""


@pytest.fixture(scope="session")
def unfinished() -> History:
    """A history with trials in many states."""
    return exported.unfinished().history


@pytest.fixture(scope="session")
def unfinished_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state root with that experiment."""
    root = tmp_path_factory.mktemp("state")
    exported.keep(root, exported.unfinished().events)
    return root


def regrow(*words: object) -> Result:
    """Runs a command in this process."""
    return CliRunner().invoke(app, [str(word) for word in words])
