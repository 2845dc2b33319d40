"""Handwritten digits with a linear model of scikit-learn that learns pass by pass; a step is one
pass.
"""

from __future__ import annotations

from digits_data import digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import log_loss

import regrow as rg
from regrow.integrations.sklearn import State


def train(trial: rg.Trial) -> None:
    """Reports accuracy and loss on the validation images after each pass."""
    train_x, valid_x, train_y, valid_y = digits()
    model = SGDClassifier(loss="log_loss", alpha=trial.config["alpha"], random_state=trial.seed)
    state = State(model)
    if trial.restored:
        state.load(trial.restored)
    for _ in trial.steps():
        model.partial_fit(train_x, train_y, classes=range(10))
        loss = log_loss(valid_y, model.predict_proba(valid_x))
        trial.report(
            {"loss": loss, "accuracy": model.score(valid_x, valid_y)}, checkpoint=state.save
        )
