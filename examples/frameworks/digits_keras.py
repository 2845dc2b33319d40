"""Handwritten digits with Keras 3, whose backend digits_keras.yaml names; a step is one epoch."""

from __future__ import annotations

import keras
from digits_data import digits

import regrow as rg
from regrow.integrations.keras import Report, restored


def train(trial: rg.Trial) -> None:
    """Reports the loss on the validation images after each epoch."""
    train_x, valid_x, train_y, valid_y = digits()
    keras.utils.set_random_seed(trial.seed)
    model = (
        keras.models.load_model(found)
        if (found := restored(trial))
        else network(trial.config["lr"])
    )
    model.fit(
        train_x,
        train_y,
        64,
        epochs=trial.max_steps,
        initial_epoch=trial.step,
        validation_data=(valid_x, valid_y),
        verbose=0,
        callbacks=[Report(trial, metric="val_loss")],
    )


def network(lr: float) -> keras.Model:
    """Two layers with dropout, compiled."""
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential(layers)
    model.compile(
        keras.optimizers.Adam(lr), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model
