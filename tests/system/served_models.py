"""A model that a station serves, and how its server stands. No test lives here."""

from __future__ import annotations

import urllib.request
from contextlib import suppress
from typing import Any

from regrow.apps.station.state import Serving, serving
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places
from regrow.infra.state.served import token_file

TRAIN = """
import json
from pathlib import Path


def train(trial):
    for step in trial.steps():
        level = float(Path("level.txt").read_text())
        trial.report({"score": level}, checkpoint=lambda folder: (folder / "model.json").write_text(json.dumps({"level": level})))
"""
MODEL = """
import json
from pydantic import BaseModel
import regrow as rg


class Model(rg.Served):
    class Input(BaseModel):
        x: float

    example = {"x": 1.0}

    def load(self, folder, config):
        self.level = json.loads((folder / "model.json").read_text())["level"]

    def predict(self, inputs):
        return [each.x * self.level for each in inputs]
"""
SMALL: dict[str, Any] = {"train": TRAIN, "trials": 1, "max_steps": 1, "concurrency": 1}


def standing(places: Places, name: str = "night") -> Serving | None:
    """What the station says of a server; None for none. By the command each look would take a
    second of a core.
    """
    station = record.find(places)
    return next(
        (one for one in ([] if station is None else serving(station, places)) if one.name == name),
        None,
    )


def answers(port: int, places: Places) -> float | None:
    """What the model makes of 2; None while nobody answers."""
    with suppress(FileNotFoundError):
        token = token_file(places).read_text()
        return _answered(
            port, {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        )
    return None


def _answered(port: int, headers: dict[str, str]) -> float | None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", b'{"x": 2}', headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return float(answer.read())
    except OSError:
        return None
