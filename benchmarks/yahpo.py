"""Tasks of YAHPO Gym (Pfisterer et al., AutoML 2022): surrogates of neural networks ("lcbench", 7
parameters, Zimmer et al., 2021), gradient boosting ("rbv2_xgboost", 14) and decision trees
("rbv2_rpart", 5), each trained on dozens of data sets of OpenML.

A step is an epoch of 52, or a 27th of the training data, and takes as long as any other; the score
is the accuracy on validation data. The files (7 MB) are those of
https://github.com/slds-lmu/yahpo_data, read from the folder that $YAHPO names: `model.onnx`,
`config_space.json` and `encoding.json` in a folder for each scenario. One that is not there is left
out.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import Config
from benchmarks.surrogate import Curve, Surrogate
from regrow.search.spec import Spec

LEAST = 0.03
"""Of the data, that the surrogates of boosting and trees know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A kind of model, as YAHPO has it.

    Attributes:
        steps: of a whole training.
        dataset: the parameter that names the data set.
        fidelity: the parameter that a step changes; an epoch, or a share of the data.
        score: the place of the accuracy among what the surrogate predicts.
        numeric: the columns of `x_cont`.
        choices: the columns of `x_cat`.
        first_reported: the place of the first data set to report. Those from 20 on of LCBench were
            looked at before choices were made (2026-11-28), so its own begin later.

    """

    steps: int
    dataset: str
    fidelity: str
    score: int
    numeric: tuple[str, ...]
    choices: tuple[str, ...]
    first_reported: int = 20


SCENARIOS = {
    "rbv2_rpart": Scenario(
        steps=27,
        dataset="task_id",
        fidelity="trainsize",
        score=0,
        numeric=("cp", "maxdepth", "minbucket", "minsplit", "trainsize", "repl"),
        choices=("task_id", "num.impute.selected.cpo"),
    ),
    "rbv2_xgboost": Scenario(
        steps=27,
        dataset="task_id",
        fidelity="trainsize",
        score=0,
        numeric=(
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
        choices=("task_id", "booster", "num.impute.selected.cpo"),
    ),
    "lcbench": Scenario(
        steps=52,
        dataset="OpenML_task_id",
        fidelity="epoch",
        score=1,
        numeric=(
            "epoch",
            "batch_size",
            "learning_rate",
            "momentum",
            "weight_decay",
            "num_layers",
            "max_units",
            "max_dropout",
        ),
        choices=("OpenML_task_id",),
        first_reported=26,
    ),
}
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
    where = folder()
    for scenario, about in SCENARIOS.items():
        if where is None or not (where / scenario).is_dir():
            continue
        codes = _read(scenario, "encoding.json")[about.dataset]
        names = sorted(name for name in codes if name.isdigit())
        random.Random(1).shuffle(names)
        first = about.first_reported if reporting else 0
        found += [f"{scenario}:{name}" for name in names[first : first + EACH]]
    return found


class Yahpo(Surrogate):
    """One data set of one scenario."""

    def __init__(self, scenario: str, dataset: str) -> None:
        written = _read(scenario, "config_space.json")
        self._scenario, self._about = scenario, SCENARIOS[scenario]
        self._codes = _read(scenario, "encoding.json")
        self._fixed = {"repl": REPLICATION, self._about.dataset: dataset}
        self._conditions = {
            c["child"]: (c["parent"], c.get("values", [c.get("value")]))
            for c in written["conditions"]
        }
        given = (*self._fixed, self._about.fidelity)
        free = (p for p in written["hyperparameters"] if p["name"] not in given)
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
                    "max_steps": self._about.steps,
                    "search": "random",
                }
            )
        )
        self._scale()

    def curve(self, config: Config) -> Curve:
        """See Surrogate. What is inactive counts as 0, as YAHPO has it."""
        about = self._about
        numbers = np.zeros((about.steps, len(about.numeric)), np.float32)
        for column, name in enumerate(about.numeric):
            if name == about.fidelity:
                numbers[:, column] = self._fidelities()
            elif self._active(name, config):
                numbers[:, column] = self._value(name, config)
        codes = [self._codes[name][str(self._value(name, config))] for name in about.choices]
        (rows,) = _session(self._scenario).run(
            None, {"x_cat": np.array([codes] * about.steps, np.int32), "x_cont": numbers}
        )
        return [float(row[about.score]) for row in rows], [1.0] * about.steps

    def _fidelities(self) -> Any:
        steps = np.arange(1, self._about.steps + 1)
        if self._about.fidelity == "epoch":
            return steps
        return np.maximum(steps / self._about.steps, LEAST)

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
