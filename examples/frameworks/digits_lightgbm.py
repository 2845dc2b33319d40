"""Handwritten digits with LightGBM; a step is one round of boosting."""

from __future__ import annotations

import lightgbm
from digits_data import digits

import regrow as rg
from regrow.integrations.lightgbm import Report, restored


def train(trial: rg.Trial) -> None:
    """Reports the loss on the validation images after each round."""
    train_x, valid_x, train_y, valid_y = digits()
    data = lightgbm.Dataset(train_x, train_y, free_raw_data=False)  # needed where a model continues
    valid = lightgbm.Dataset(valid_x, valid_y, reference=data, free_raw_data=False)
    parameters = {
        "objective": "multiclass",
        "num_class": 10,
        "num_threads": 1,
        "verbosity": -1,
        "seed": trial.seed,
        "deterministic": True,
        "learning_rate": trial.config["learning_rate"],
        "num_leaves": trial.config["num_leaves"],
    }
    lightgbm.train(
        parameters,
        data,
        trial.max_steps - trial.step,
        valid_sets=[valid],
        valid_names=["valid"],
        callbacks=[Report(trial, metric="valid-multi_logloss")],
        init_model=restored(trial),
    )
