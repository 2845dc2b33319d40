"""Handwritten digits with Flax and Optax, saved by Orbax; a step is one pass over the training
images.
"""

from __future__ import annotations

import jax
import numpy as np
import optax
from digits_data import digits
from flax import nnx

import regrow as rg
from regrow.integrations.flax import State

BATCH = 64


class Net(nnx.Module):
    """Two layers with dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.first = nnx.Linear(64, 32, rngs=rngs)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.last = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Scores of ten classes."""
        return self.last(self.drop(nnx.relu(self.first(images))))


def loss_of(model: Net, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over the images."""
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@nnx.jit
def update(model: Net, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> None:
    """One batch."""
    optimizer.update(model, nnx.grad(loss_of)(model, images, labels))


def train(trial: rg.Trial) -> None:
    """Reports the loss on the validation images after each pass."""
    train_x, valid_x, train_y, valid_y = digits()
    model = Net(nnx.Rngs(trial.seed))
    optimizer = nnx.Optimizer(model, optax.adam(trial.config["lr"]), wrt=nnx.Param)
    state = State(model=model, optimizer=optimizer)
    if trial.restored:
        state.load(trial.restored)
    for step in trial.steps():
        model.train()
        # follows from the step: nothing to save
        order = np.random.default_rng([trial.seed, step]).permutation(len(train_x))
        for batch in np.array_split(order, len(order) // BATCH):
            update(model, optimizer, train_x[batch], train_y[batch])
        model.eval()
        trial.report({"loss": loss_of(model, valid_x, valid_y)}, checkpoint=state.save)
