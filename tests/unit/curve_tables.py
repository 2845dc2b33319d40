"""A table of recorded curves, and the specification that it is for. No test lives here."""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from regrow.cli import app as command
from regrow.search.spec import Spec

SPACE: dict[str, Any] = {
    "lr": {"loguniform": [1e-4, 1.0]},
    "depth": {"int": [1, 9]},
    "kind": {"choice": ["mlp", "cnn"]},
}

ROWS = [
    # lr, depth, kind, step, loss, accuracy, seconds
    (0.01, 3, "mlp", 1, 0.9, 0.1, 2.0),
    (0.01, 3, "mlp", 2, 0.8, 0.2, 3.0),
    (0.01, 3, "mlp", 3, 0.7, 0.3, 4.0),
    (0.1, 3, "mlp", 1, 0.6, 0.4, 1.0),
    (0.1, 3, "mlp", 2, 0.5, 0.5, 1.0),
    (0.1, 3, "mlp", 3, 0.4, 0.6, 1.0),
    (0.01, 5, "cnn", 1, 0.3, 0.7, 5.0),
    (0.01, 5, "cnn", 2, 0.2, 0.8, 5.0),
]
COLUMNS = ["lr", "depth", "kind", "step", "loss", "accuracy", "seconds"]


def spec(**changes: Any) -> Spec:
    return Spec.parse(
        {
            "name": "table",
            "trainable": "work.py:train",
            "metric": "loss",
            "mode": "min",
            "space": SPACE,
            "search": "random",
            "trials": 6,
            "max_steps": 3,
            **changes,
        }
    )


def write(
    path: Path, rows: Sequence[Sequence[Any]] = ROWS, columns: Sequence[str] = COLUMNS
) -> Path:
    with (
        gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="")
    ) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    return path


Call = Callable[..., tuple[int, str, str]]
"""A command, called with its arguments: status, standard output, standard error."""


def caller(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> Call:
    """The command line `regrow` with these words first, in this process."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["regrow", *words, *arguments])
        status: Any = 0
        try:
            command.main()
        except SystemExit as end:
            status = end.code
        told = capsys.readouterr()
        return int(status or 0), told.out, told.err

    return call
