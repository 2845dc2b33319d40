"""A parameter server: an actor that has the weights, and workers, actors too, that compute
gradients on their parts of the data.

Synchronous: all gradients are waited for, their mean is applied, all get the new weights.
Asynchronous: each is applied as soon as it comes, and its worker continues at once. A parameter of
the space says which, so a search can tell which of them learns better.

A step is so many gradients, and nothing is under way at its end, so the server's state is all that
there is to save: which images a gradient is of follows from its number. A synchronous trial that
continues from a checkpoint has the very curve that it would have had; in an asynchronous one
the order in which gradients come is for the machine to say, lost or not.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import ray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

if TYPE_CHECKING:
    import regrow as rg

Array = npt.NDArray[Any]
Weights = dict[str, Array]

WORKERS, BATCH = 4, 32


def train(trial: rg.Trial) -> None:
    """Trains one network, and reports its accuracy and loss on the validation images after each
    step.
    """
    config = trial.config
    server = ParameterServer.remote(config["hidden"], config["lr"], config["momentum"], trial.seed)
    workers = [Worker.remote(number, trial.seed) for number in range(WORKERS)]
    if trial.restored:
        with np.load(trial.restored / "weights.npz") as saved:
            ray.get(server.put_back.remote(dict(saved)))

    def save(folder: Path) -> None:
        np.savez(folder / "weights.npz", **ray.get(server.state.remote()))

    step_of = synchronous if config["mode"] == "synchronous" else asynchronous
    _, images, _, labels = data()
    for step in trial.steps():
        rounds = config["gradients"] // WORKERS
        step_of(server, workers, range((step - 1) * rounds, step * rounds))
        chances = forward(ray.get(server.weights.remote()), images)[1]
        loss = -np.log(chances[np.arange(len(labels)), labels] + 1e-12).mean()
        trial.report(
            {"accuracy": (chances.argmax(axis=1) == labels).mean(), "loss": loss}, checkpoint=save
        )


def synchronous(server: Any, workers: list[Any], rounds: range) -> None:
    """In each round one gradient of each worker; weights and gradients go from actor to actor, not
    by way of the trial.
    """
    for number in rounds:
        weights = server.weights.remote()
        server.apply.remote(*(worker.gradient.remote(weights, number) for worker in workers))


def asynchronous(server: Any, workers: list[Any], rounds: range) -> None:
    """Each worker makes as many gradients, at its own pace, of weights that others may have changed
    meanwhile.
    """
    weights = server.weights.remote()
    left = {worker: iter(rounds) for worker in workers}
    under_way = {worker.gradient.remote(weights, next(left[worker])): worker for worker in workers}
    while under_way:
        (first,), _ = ray.wait(list(under_way))
        worker = under_way.pop(first)
        server.apply.remote(first)
        if (number := next(left[worker], None)) is not None:
            under_way[worker.gradient.remote(server.weights.remote(), number)] = worker


@ray.remote(num_cpus=0)  # it works for an instant at a time, while the trial waits
class ParameterServer:
    """Holds the weights of a network, and how fast each of them changes."""

    def __init__(self, hidden: int, lr: float, momentum: float, seed: int) -> None:
        """New weights, for a layer of `hidden` units."""
        rng = np.random.default_rng(seed)
        self.lr, self.momentum = lr, momentum
        self.values = {
            "in": rng.normal(0, 0.1, (64, hidden)),
            "bias": np.zeros(hidden),
            "out": rng.normal(0, 0.1, (hidden, 10)),
            "offset": np.zeros(10),
        }
        self.speed = {name: np.zeros_like(one) for name, one in self.values.items()}

    def weights(self) -> Weights:
        """The weights after all gradients so far."""
        return self.values

    def apply(self, *gradients: Weights) -> None:
        """Goes a step down these gradients; each counts the same, alone or with others."""
        for name in self.values:
            slope = np.sum([gradient[name] for gradient in gradients], axis=0) / WORKERS
            self.speed[name] = self.momentum * self.speed[name] - self.lr * slope
            self.values[name] = self.values[name] + self.speed[name]

    def state(self) -> Weights:
        """All that the server remembers, by the names of a file's arrays."""
        return {**self.values, **{f"speed of {name}": one for name, one in self.speed.items()}}

    def put_back(self, state: Weights) -> None:
        """Takes it back."""
        for name in self.values:
            self.values[name], self.speed[name] = state[name], state[f"speed of {name}"]


@ray.remote(num_cpus=0.25)
class Worker:
    """Computes gradients on its part of the training images. Remembers nothing."""

    def __init__(self, number: int, seed: int) -> None:
        """`number` says which part."""
        images, _, labels, _ = data()
        self.images, self.labels, self.seed = (
            images[number::WORKERS],
            labels[number::WORKERS],
            [seed, number],
        )

    def gradient(self, weights: Weights, number: int) -> Weights:
        """The gradient of the mean loss of some images, which follow from the number."""
        some = np.random.default_rng([*self.seed, number]).choice(
            len(self.images), BATCH, replace=False
        )
        images = self.images[some]
        hidden, chances = forward(weights, images)
        error = (chances - np.eye(10)[self.labels[some]]) / BATCH
        inner = (error @ weights["out"].T) * (1 - hidden**2)
        return {
            "in": images.T @ inner,
            "bias": inner.sum(axis=0),
            "out": hidden.T @ error,
            "offset": error.sum(axis=0),
        }


def forward(weights: Weights, images: Array) -> tuple[Array, Array]:
    """The hidden units, and how likely it is that an image shows each of the digits."""
    hidden = np.tanh(images @ weights["in"] + weights["bias"])
    scores = hidden @ weights["out"] + weights["offset"]
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, chances / chances.sum(axis=1, keepdims=True)


@cache
def data() -> tuple[Array, Array, Array, Array]:
    """Training and validation images as rows of 64 pixels from 0 to 1, then their labels; read once
    in each process.
    """
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.25, stratify=labels, random_state=0)
    return parts[0], parts[1], parts[2], parts[3]
