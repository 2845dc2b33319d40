"""Tasks of YAHPO Gym (Pfisterer et al., AutoML 2022): surrogates of gradient boosting (rbv2_xgboost) and of decision trees (rbv2_rpart)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import Config
from benchmarks.surrogate import Curve, Surrogate
from regrow.search.spec import Spec

STEPS = 27
NUMERIC = {
    "rbv2_rpart": ("cp", "maxdepth", "minbucket", "minsplit", "trainsize", "repl"),
    "rbv2_xgboost": (
        "nrounds", "eta", "gamma", "lambda", "alpha", "subsample", "max_depth", "min_child_weight", "colsample_bytree",
        "colsample_bylevel", "rate_drop", "skip_drop", "trainsize", "repl",
    ),
}
"""Columns of `x_cont`, told by the ranges that the model scales them by."""
CHOICES = {"rbv2_rpart": ("task_id", "num.impute.selected.cpo"), "rbv2_xgboost": ("task_id", "booster", "num.impute.selected.cpo")}
"""Columns of `x_cat`, told by the sizes of their embeddings."""
FOLDER = Path("/work/shared/data/yahpo")


@cache
def session(scenario: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(FOLDER / scenario / "model.onnx", options, providers=["CPUExecutionProvider"])


class Yahpo(Surrogate):
    def __init__(self, scenario: str, dataset: str) -> None:
        folder = FOLDER / scenario
        self._written = json.loads((folder / "config_space.json").read_text())
        self._codes = json.loads((folder / "encoding.json").read_text())
        self._session = session(scenario)
        self._dataset = dataset
        self._fixed = {"repl": 10, "task_id": dataset}
        self._numeric = NUMERIC[scenario]
        self._choices = CHOICES[scenario]
        conditions: dict[str, dict[str, Any]] = {}
        for c in self._written["conditions"]:
            conditions[c["child"]] = {c["parent"]: c["values"] if c["type"] == "IN" else c["value"]}
        space = {}
        for h in self._written["hyperparameters"]:
            name = h["name"]
            if name in (*self._fixed, "trainsize"):
                continue
            if h["type"] == "categorical":
                d: Any = {"choice": h["choices"]}
            else:
                kind = ("logint" if h["log"] else "int") if h["type"] == "uniform_int" else ("loguniform" if h["log"] else "uniform")
                d = {kind: [h["lower"], h["upper"]]}
            space[name.replace(".", "_")] = d
        self._conditions = {k: v for k, v in conditions.items()}
        super().__init__(Spec.parse({"name": f"{scenario}-{dataset}", "trainable": "m:f", "metric": "score", "mode": "max", "space": space,
                                     "trials": 1, "max_steps": STEPS}))
        self._scale()

    def _active(self, name: str, config: Config) -> bool:
        for parent, values in self._conditions.get(name, {}).items():
            v = config[parent.replace(".", "_")]
            if not (v in values if isinstance(values, list) else v == values):
                return False
        return True

    def curve(self, config: Config) -> Curve:
        cont = np.zeros((STEPS, len(self._numeric)), np.float32)
        for j, name in enumerate(self._numeric):
            if name == "trainsize":
                cont[:, j] = np.maximum(np.arange(1, STEPS + 1) / STEPS, 0.03)
            elif name in self._fixed:
                cont[:, j] = self._fixed[name]
            elif self._active(name, config):
                cont[:, j] = config[name.replace(".", "_")]
        cat = np.zeros((STEPS, len(self._choices)), np.int32)
        for j, name in enumerate(self._choices):
            value = self._fixed.get(name, config.get(name.replace(".", "_")))
            cat[:, j] = self._codes[name][str(value)]
        out = self._session.run(None, {"x_cat": cat, "x_cont": cont})[0]
        return out[:, 0].astype(float).tolist(), [1.0] * STEPS
