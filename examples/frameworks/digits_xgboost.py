"""Handwritten digits with XGBoost; a step is one round of boosting."""

from __future__ import annotations

import xgboost
from digits_data import digits

import regrow as rg
from regrow.integrations.xgboost import Report, restored


def train(trial: rg.Trial) -> None:
    """Reports the loss on the validation images after each round."""
    train_x, valid_x, train_y, valid_y = digits()
    parameters = {
        "objective": "multi:softprob",
        "num_class": 10,
        "nthread": 1,
        "seed": trial.seed,
        "eta": trial.config["eta"],
        "max_depth": trial.config["max_depth"],
    }
    xgboost.train(
        parameters,
        xgboost.DMatrix(train_x, train_y),
        trial.max_steps - trial.step,
        verbose_eval=False,
        evals=[(xgboost.DMatrix(valid_x, valid_y), "valid")],
        callbacks=[Report(trial, metric="valid-mlogloss")],
        xgb_model=restored(trial),
    )
