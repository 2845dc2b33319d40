"""Tasks of YAHPO Gym (Pfisterer et al., AutoML 2022): surrogates of gradient boosting
("rbv2_xgboost", 14 parameters) and of decision trees ("rbv2_rpart", 5), each trained on over a
hundred data sets of OpenML.

A step is a 27th of the training data, and takes as long as any other; the score is the accuracy.
The files (5 MB) are those of https://github.com/slds-lmu/yahpo_data, read from the folder that
$YAHPO names: `model.onnx`, `config_space.json` and `encoding.json` in a folder for each of the two.
"""

from __future__ import annotations

import json
import os
import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import Config
from benchmarks.surrogate import Curve, Surrogate
from regrow.search.spec import Spec

STEPS = 27
LEAST = 0.03
"""Of the data, that the surrogates know."""
NUMERIC = {
    "rbv2_rpart": ("cp", "maxdepth", "minbucket", "minsplit", "trainsize", "repl"),
    "rbv2_xgboost": (
        "nrounds",
        "eta",
        "gamma",
        "lambda",
        "alpha",
        "subsample",
        "max_depth",
        "min_child_weight",
        "colsample_bytree",
        "colsample_bylevel",
        "rate_drop",
        "skip_drop",
        "trainsize",
        "repl",
    ),
}
"""The columns of `x_cont`, told by the ranges that the models scale them by."""
CHOICES = {
    "rbv2_rpart": ("task_id", "num.impute.selected.cpo"),
    "rbv2_xgboost": ("task_id", "booster", "num.impute.selected.cpo"),
}
"""The columns of `x_cat`, told by the sizes of their embeddings."""
REPLICATION = 10
EACH = 6
"""So many tasks of a scenario to tune on, and as many to report."""


def folder() -> Path | None:
    """Where the surrogates are; None where nobody has said."""
    return Path(os.environ["YAHPO"]) if os.environ.get("YAHPO") else None


def tasks(*, reporting: bool) -> list[str]:
    """`SCENARIO:DATASET`: those to tune on, or those to report and never to look at before. Drawn
    once and for all.
    """
    found = []
    for scenario in NUMERIC if folder() else ():
        names = sorted(
            name for name in _read(scenario, "encoding.json")["task_id"] if name.isdigit()
        )
        random.Random(1).shuffle(names)
        found += [
            f"{scenario}:{name}" for name in (names[20 : 20 + EACH] if reporting else names[:EACH])
        ]
    return found


class Yahpo(Surrogate):
    """One data set of one scenario."""

    def __init__(self, scenario: str, dataset: str) -> None:
        written = _read(scenario, "config_space.json")
        self._scenario = scenario
        self._codes = _read(scenario, "encoding.json")
        self._fixed = {"repl": REPLICATION, "task_id": dataset}
        self._conditions = {
            c["child"]: (c["parent"], c.get("values", [c.get("value")]))
            for c in written["conditions"]
        }
        free = (
            p for p in written["hyperparameters"] if p["name"] not in (*self._fixed, "trainsize")
        )
        space = {_plain(p["name"]): _form(p) for p in free}
        super().__init__(
            Spec.parse(
                {
                    "name": f"{scenario}-{dataset}",
                    "trainable": "m:f",
                    "metric": "score",
                    "mode": "max",
                    "space": space,
                    "trials": 1,
                    "max_steps": STEPS,
                    "search": "random",
                }
            )
        )
        self._scale()

    def curve(self, config: Config) -> Curve:
        """See Surrogate. What is inactive counts as 0, as YAHPO has it."""
        numbers = np.zeros((STEPS, len(NUMERIC[self._scenario])), np.float32)
        for column, name in enumerate(NUMERIC[self._scenario]):
            if name == "trainsize":
                numbers[:, column] = np.maximum(np.arange(1, STEPS + 1) / STEPS, LEAST)
            elif self._active(name, config):
                numbers[:, column] = self._value(name, config)
        codes = [
            self._codes[name][str(self._value(name, config))] for name in CHOICES[self._scenario]
        ]
        (rows,) = _session(self._scenario).run(
            None, {"x_cat": np.array([codes] * STEPS, np.int32), "x_cont": numbers}
        )
        return [float(row[0]) for row in rows], [1.0] * STEPS

    def _value(self, name: str, config: Config) -> Any:
        return self._fixed[name] if name in self._fixed else config[_plain(name)]

    def _active(self, name: str, config: Config) -> bool:
        parent, values = self._conditions.get(name, (None, ()))
        return parent is None or self._value(parent, config) in values


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _form(parameter: dict[str, Any]) -> dict[str, Any]:
    if parameter["type"] == "categorical":
        return {"choice": parameter["choices"]}
    kind = {
        (False, False): "uniform",
        (False, True): "loguniform",
        (True, False): "int",
        (True, True): "logint",
    }
    return {
        kind[parameter["type"] == "uniform_int", parameter["log"]]: [
            parameter["lower"],
            parameter["upper"],
        ]
    }


def _read(scenario: str, name: str) -> Any:
    where = folder()
    if where is None:
        raise LookupError("$YAHPO names no folder with YAHPO's surrogates")
    return json.loads((where / scenario / name).read_text())


@cache
def _session(scenario: str) -> Any:
    import onnxruntime

    where = folder()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        f"{where}/{scenario}/model.onnx", options, providers=["CPUExecutionProvider"]
    )
