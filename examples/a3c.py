"""A3C on CartPole: runners, actors that the trial starts, play and send gradients, each applied as
soon as it comes.

Mnih et al.: Asynchronous methods for deep reinforcement learning, 2016.

A step is so many gradients, and nothing is under way at its end: weights, what the optimizer
remembers, and each runner's carts and generator are all that there is to save, so a trial that was
lost continues from a whole state. Not on the very curve that it would have had: the order in which
gradients come is for the machine to say, in a trial that is never lost as well.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import numpy.typing as npt
import ray
from cartpole import CartPoles, play

if TYPE_CHECKING:
    import regrow as rg

Array = npt.NDArray[Any]
Weights = dict[str, Array]

RUNNERS, CARTS, AHEAD = 4, 8, 20
"""Runners, carts of each, steps that they are played for a gradient."""
CRITIC = 0.5
"""How much the critic's error counts beside the actor's."""


def train(trial: rg.Trial) -> None:
    """Reports the mean return of the policy without chance after each step."""
    config = trial.config
    weights = network(config["hidden"], np.random.default_rng(trial.seed))
    squares = {name: np.zeros_like(one) for name, one in weights.items()}
    runners = [
        Runner.remote([trial.seed, number], config["gamma"], config["entropy"])
        for number in range(RUNNERS)
    ]
    if trial.restored:
        weights, squares, carts = joblib.load(trial.restored / "state.joblib")
        ray.get([runner.put_back.remote(one) for runner, one in zip(runners, carts, strict=True)])

    def save(folder: Path) -> None:
        carts = ray.get([runner.carts_now.remote() for runner in runners])
        joblib.dump((weights, squares, carts), folder / "state.joblib")

    for step in trial.steps():
        under_way = {runner.gradient.remote(weights): runner for runner in runners}
        left = config["gradients"] - len(runners)
        while under_way:
            (first,), _ = ray.wait(list(under_way))
            runner = under_way.pop(first)
            descend(weights, squares, ray.get(first), config["lr"])
            if left > 0:
                left -= 1
                under_way[runner.gradient.remote(weights)] = runner
        carts = CartPoles(16, np.random.default_rng([trial.seed, RUNNERS, step]))
        returns = play(lambda states: forward(weights, states)[1].argmax(axis=1), carts)
        trial.report({"return": returns.mean()}, checkpoint=save)


@ray.remote(num_cpus=0.25)
class Runner:
    """Plays on carts of its own, with weights that it is given."""

    def __init__(self, seed: list[int], gamma: float, entropy: float) -> None:
        """`gamma` discounts what comes later; `entropy` is how much it counts that the policy stays
        undecided.
        """
        self.carts, self.gamma, self.entropy = (
            CartPoles(CARTS, np.random.default_rng(seed)),
            gamma,
            entropy,
        )

    def carts_now(self) -> CartPoles:
        """All that a runner remembers."""
        return self.carts

    def put_back(self, carts: CartPoles) -> None:
        """Takes it back."""
        self.carts = carts

    def gradient(self, weights: Weights) -> Weights:
        """The gradient of the loss over the next `AHEAD` steps of all carts."""
        carts, seen = self.carts, []
        for _ in range(AHEAD):
            states = carts.state
            hidden, chances, worth = forward(weights, states)
            actions = (carts.rng.random(CARTS) < chances[:, 1]).astype(int)
            lost, late = carts.step(actions)
            # What an episode is worth that only its time ends is what the critic says, as if it
            # continued.
            rewards = 1 + np.where(late, self.gamma * forward(weights, carts.state)[2], 0)
            carts.renew(ended := lost | late)
            seen.append((states, hidden, chances, worth, actions, rewards, ended))
        goal, goals = forward(weights, carts.state)[2], list[Array]()
        for *_, rewards, ended in reversed(seen):
            goal = rewards + self.gamma * np.where(ended, 0, goal)
            goals.insert(0, goal)
        states, hidden, chances, worth, actions = (
            np.concatenate(part) for part in list(zip(*seen, strict=True))[:5]
        )
        return backward(
            weights, states, hidden, chances, worth, actions, np.concatenate(goals), self.entropy
        )


def network(hidden: int, rng: np.random.Generator) -> Weights:
    """New weights: a layer of `hidden` units, from which actor and critic read."""
    return {
        "in": rng.normal(0, 0.5, (4, hidden)),
        "bias": np.zeros(hidden),
        "actor": rng.normal(0, 0.01, (hidden, 2)),
        "critic": rng.normal(0, 0.01, (hidden, 1)),
        "worth": np.zeros(1),
    }


def forward(weights: Weights, states: Array) -> tuple[Array, Array, Array]:
    """The hidden units, the chance of each action, and what the critic says that each state is
    worth.
    """
    hidden = np.tanh(states @ weights["in"] + weights["bias"])
    scores = hidden @ weights["actor"]
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (
        hidden,
        chances / chances.sum(axis=1, keepdims=True),
        (hidden @ weights["critic"] + weights["worth"])[:, 0],
    )


def backward(
    weights: Weights,
    states: Array,
    hidden: Array,
    chances: Array,
    worth: Array,
    actions: Array,
    goals: Array,
    entropy: float,
) -> Weights:
    """The gradient of the mean loss of these steps: of the policy, its entropy, and the critic."""
    logs, count = np.log(chances + 1e-12), len(states)
    undecided = -(chances * logs).sum(axis=1, keepdims=True)
    scores = (chances - np.eye(2)[actions]) * (goals - worth)[:, None] + entropy * chances * (
        logs + undecided
    )
    error = CRITIC * (worth - goals)[:, None]
    inner = (scores @ weights["actor"].T + error @ weights["critic"].T) * (1 - hidden**2)
    return {
        "in": states.T @ inner / count,
        "bias": inner.mean(axis=0),
        "actor": hidden.T @ scores / count,
        "critic": hidden.T @ error / count,
        "worth": error.mean(axis=0),
    }


def descend(weights: Weights, squares: Weights, gradient: Weights, lr: float) -> None:
    """A step of RMSProp with what all runners share."""
    for name, slope in gradient.items():
        squares[name] = 0.99 * squares[name] + 0.01 * slope**2
        weights[name] = weights[name] - lr * slope / np.sqrt(squares[name] + 1e-5)
