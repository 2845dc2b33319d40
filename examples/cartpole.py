"""A pole to be kept upright on a cart, as Gymnasium's CartPole-v1 has it, for many carts at a time
and in NumPy alone.

Barto, Sutton, Anderson: Neuronlike adaptive elements that can solve difficult learning control
problems, IEEE SMC 13, 1983.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

GRAVITY, FORCE, SECONDS = 9.8, 10.0, 0.02
CART, POLE, HALF = 1.0, 0.1, 0.5
"""Masses, and half of the pole's length."""
FARTHEST, STEEPEST = 2.4, np.deg2rad(12)
"""Beyond these a cart is lost."""
LONGEST = 500
"""Steps after which an episode ends, whatever the pole does."""


class CartPoles:
    """Carts, each with a pole. All that the next step depends on is here, the generator as well:
    pickle it to save it.
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        """Sets up `count` carts."""
        self.rng = rng
        self.state = self._new(count)
        """A row a cart: position, velocity, the pole's angle and angular velocity."""
        self.steps = np.zeros(count, int)
        """How long each episode has lasted: its return, as each step is worth 1."""

    def renew(self, which: Array) -> None:
        """Begins new episodes where `which` is true."""
        self.state = np.where(which[:, None], self._new(len(which)), self.state)
        self.steps = np.where(which, 0, self.steps)

    def step(self, actions: Array) -> tuple[Array, Array]:
        """Pushes each cart to the left (0) or to the right (1); which of them are lost now, and
        which have had their time.
        """
        _, velocity, angle, turn = self.state.T
        mass, sine, cosine = CART + POLE, np.sin(angle), np.cos(angle)
        push = (np.where(actions == 1, FORCE, -FORCE) + POLE * HALF * turn**2 * sine) / mass
        turning = (GRAVITY * sine - cosine * push) / (HALF * (4 / 3 - POLE * cosine**2 / mass))
        speeding = push - POLE * HALF * turning * cosine / mass
        self.state = self.state + SECONDS * np.stack([velocity, speeding, turn, turning], axis=1)
        self.steps = self.steps + 1
        lost = (abs(self.state[:, 0]) > FARTHEST) | (abs(self.state[:, 2]) > STEEPEST)
        return lost, ~lost & (self.steps >= LONGEST)

    def _new(self, count: int) -> Array:
        return self.rng.uniform(-0.05, 0.05, (count, 4))


def play(policy: Callable[[Array], Array], carts: CartPoles) -> Array:
    """Plays an episode on each of the carts, which are new; the returns, 500 at most. `policy`
    makes actions of states.
    """
    returns, under_way = np.zeros(len(carts.steps)), np.full(len(carts.steps), True)
    while under_way.any():
        lost, late = carts.step(policy(carts.state))
        ended = under_way & (lost | late)
        returns[ended] = carts.steps[ended]
        under_way &= ~ended
    return returns
