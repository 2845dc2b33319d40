"""Evolution strategies on CartPole: a generation's members are tried by Ray tasks that the trial
starts.

Salimans, Ho, Chen, Sidor, Sutskever: Evolution strategies as a scalable alternative to
reinforcement learning, 2017. As there, members are sent as the numbers that their noise is made of,
in pairs of opposite signs, and their ranks count, not their returns.

What is random follows from the trial's seed and the step's number: a trial that continues from a
checkpoint has the very curve that it would have had.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import ray
from cartpole import CartPoles, play

if TYPE_CHECKING:
    import regrow as rg

Array = npt.NDArray[Any]

HIDDEN = 16
SIZE = 4 * HIDDEN + HIDDEN + HIDDEN
"""The weights of a network: from the state to the hidden units, their biases, from there to one
number: push left or right.
"""
TASKS = 4
"""A generation is tried by so many tasks; as many of them run at a time as the trial has room
for.
"""


def train(trial: rg.Trial) -> None:
    """A step is a generation; reports the return of the network in its middle."""
    config = trial.config
    weights, speed = np.random.default_rng(trial.seed).normal(0, 0.1, SIZE), np.zeros(SIZE)
    if trial.restored:
        with np.load(trial.restored / "network.npz") as saved:
            weights, speed = saved["weights"], saved["speed"]

    def save(folder: Path) -> None:
        np.savez(folder / "network.npz", weights=weights, speed=speed)

    for step in trial.steps():
        members = np.array_split(np.arange(config["pairs"]), TASKS)
        tried = [
            tried_out.remote(weights, config["sigma"], trial.seed, step, some) for some in members
        ]
        returns = np.concatenate(ray.get(tried))
        ranks = returns.ravel().argsort().argsort().reshape(returns.shape) / (returns.size - 1)
        # of each pair: how much better it is to go forth than back
        better = ranks[:, 0] - ranks[:, 1]
        slope = (
            better
            @ noise(trial.seed, step, np.arange(config["pairs"]))
            / (config["pairs"] * config["sigma"])
        )
        speed = 0.9 * speed + slope
        weights = weights + config["lr"] * speed
        carts = CartPoles(16, np.random.default_rng([trial.seed, step]))
        trial.report(
            {"return": play(partial(act, weights), carts).mean(), "tried": returns.mean()},
            checkpoint=save,
        )


@ray.remote
def tried_out(weights: Array, sigma: float, seed: int, step: int, pairs: Array) -> Array:
    """The returns of some pairs of members, a row each; all carts are played at once."""
    away = sigma * noise(seed, step, pairs)
    members = np.concatenate([weights + away, weights - away])
    carts = CartPoles(len(members), np.random.default_rng([seed, step, *pairs]))
    return np.asarray(play(partial(act, members), carts).reshape(2, len(pairs)).T)


def noise(seed: int, step: int, pairs: Array) -> Array:
    """The direction of each pair, which is made anew wherever it is needed rather than sent."""
    return np.stack([np.random.default_rng([seed, step, pair]).normal(size=SIZE) for pair in pairs])


def act(weights: Array, states: Array) -> Array:
    """What one network does in each of the states; or, of as many networks as states, each in its
    own.
    """
    into, bias, out = np.split(weights, [4 * HIDDEN, 5 * HIDDEN], axis=-1)
    hidden = np.tanh((states[:, None] @ into.reshape(-1, 4, HIDDEN))[:, 0] + bias)
    return np.asarray((hidden * out).sum(axis=1) > 0)
