"""Handwritten digits with a small neural network: the trainable of `make demo`.

A step is one pass over the training images and a copy of each that is moved and blurred a little.
What is random in a step follows from the trial's seed and the step's number alone, so a trial that
continues from a checkpoint has the very curve that it would have had.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

if TYPE_CHECKING:
    import regrow as rg

Array = npt.NDArray[Any]


def train(trial: rg.Trial) -> None:
    """Trains one network and reports its accuracy and loss on the validation images after each
    step.
    """
    train_x, valid_x, train_y, valid_y = data()
    model = network(trial.config, trial.seed)
    if trial.restored:
        # the network and its optimizer's state
        model = joblib.load(trial.restored / "model.joblib")

    def save(folder: Path) -> None:
        joblib.dump(model, folder / "model.joblib")

    for step in trial.steps():
        copies = varied(
            train_x, np.random.default_rng([trial.seed, step]), **trial.config["augment"]
        )
        model.partial_fit(
            np.concatenate([train_x, copies]), np.concatenate([train_y, train_y]), classes=range(10)
        )
        probabilities = model.predict_proba(valid_x)
        accuracy = np.mean(probabilities.argmax(axis=1) == valid_y)
        trial.report(
            {"accuracy": accuracy, "loss": log_loss(valid_y, probabilities)}, checkpoint=save
        )


def network(config: dict[str, Any], seed: int) -> MLPClassifier:
    """The untrained network of a configuration: `layers` layers of `hidden` units each."""
    return MLPClassifier(
        hidden_layer_sizes=[config["hidden"]] * config["layers"],
        solver=config["optimizer"],
        learning_rate_init=config["lr"],
        momentum=config.get("momentum", 0.9),  # there only where the optimizer is sgd
        alpha=config["alpha"],
        batch_size=32,
        random_state=seed,
    )


@cache
def data() -> tuple[Array, Array, Array, Array]:
    """Training and validation images as rows of 64 pixels from 0 to 1, then their labels; the same
    split in each trial.
    """
    images, labels = load_digits(return_X_y=True)
    train_x, valid_x, train_y, valid_y = train_test_split(
        images / 16, labels, test_size=0.25, stratify=labels, random_state=0
    )
    return train_x, valid_x, train_y, valid_y


def varied(images: Array, rng: np.random.Generator, shift: float, noise: float) -> Array:
    """A copy of the images, each moved by up to a pixel with probability `shift`, with noise of
    deviation `noise` added.
    """
    count = len(images)
    moves = rng.integers(0, 3, size=(count, 2))
    moves[rng.random(count) >= shift] = 1  # the middle of the padded image: not moved
    padded = np.pad(images.reshape(count, 8, 8), ((0, 0), (1, 1), (1, 1)))
    rows = moves[:, 0, None, None] + np.arange(8)[:, None]
    columns = moves[:, 1, None, None] + np.arange(8)
    moved = padded[np.arange(count)[:, None, None], rows, columns].reshape(count, 64)
    return np.asarray(moved + rng.normal(0, noise, moved.shape))
