"""Cross-validation of a small network on handwritten digits: folds are trained side by side, by Ray
tasks that the trial starts.

A step is one more pass of each fold's network over its training images, so that poor settings can
be stopped early. A network goes to its task and comes back with all that its next pass depends on:
a trial that continues from a checkpoint has the very curve that it would have had.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import numpy.typing as npt
import ray
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from sklearn.neural_network import MLPClassifier

if TYPE_CHECKING:
    import regrow as rg

Array = npt.NDArray[Any]

FOLDS = 5


def train(trial: rg.Trial) -> None:
    """Reports the mean accuracy of the folds, each on the images that its network has not seen, and
    how far apart they are.
    """
    networks = [network(trial.config, trial.seed) for _ in range(FOLDS)]
    if trial.restored:
        networks = joblib.load(trial.restored / "networks.joblib")

    def save(folder: Path) -> None:
        joblib.dump(networks, folder / "networks.joblib")

    for _ in trial.steps():
        passed = ray.get([one_pass.remote(model, fold) for fold, model in enumerate(networks)])
        networks = [model for model, _ in passed]
        accuracies = [accuracy for _, accuracy in passed]
        trial.report(
            {"accuracy": np.mean(accuracies), "deviation": np.std(accuracies)}, checkpoint=save
        )


@ray.remote
def one_pass(model: MLPClassifier, fold: int) -> tuple[MLPClassifier, float]:
    """The network after one more pass over the training images of a fold, and its accuracy on the
    others.
    """
    images, labels, splits = data()
    seen, unseen = splits[fold]
    model = deepcopy(model)  # arrays that come by way of Ray can't be written to
    model.partial_fit(images[seen], labels[seen], classes=range(10))
    return model, float(model.score(images[unseen], labels[unseen]))


def network(config: dict[str, Any], seed: int) -> MLPClassifier:
    """The untrained network of a configuration."""
    return MLPClassifier(
        hidden_layer_sizes=[config["hidden"]],
        learning_rate_init=config["lr"],
        alpha=config["alpha"],
        batch_size=32,
        random_state=seed,
    )


@cache
def data() -> tuple[Array, Array, list[tuple[Array, Array]]]:
    """Images as rows of 64 pixels from 0 to 1, their labels, and of each fold the rows to learn
    from and to judge by.
    """
    images, labels = load_digits(return_X_y=True)
    return (
        images / 16,
        labels,
        list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(images, labels)),
    )
