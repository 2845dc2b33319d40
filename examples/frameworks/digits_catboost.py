"""Handwritten digits with CatBoost; a step is one iteration."""

from __future__ import annotations

from catboost import CatBoostClassifier
from digits_data import digits

import regrow as rg
from regrow.integrations.catboost import Report


def train(trial: rg.Trial) -> None:
    """Reports the loss on the validation images after each iteration."""
    train_x, valid_x, train_y, valid_y = digits()
    report = Report(trial, metric="validation-MultiClass")
    model = CatBoostClassifier(
        iterations=trial.max_steps,
        learning_rate=trial.config["learning_rate"],
        depth=trial.config["depth"],
        loss_function="MultiClass",
        random_seed=trial.seed,
        thread_count=1,
        verbose=False,
        **report.snapshots,
    )
    model.fit(train_x, train_y, eval_set=(valid_x, valid_y), callbacks=[report])
