"""Made-up families of learning curves, in closed form: each has one difficulty, which its kind
names, and its seed decides where what is good lies.

A configuration is a point of the unit cube. A `Bowl` of the few parameters that matter says how
good it is in the end, two `Wave`s what its curve is like before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.clock import Config
from benchmarks.surrogate import Curve, Surrogate
from regrow.search.samplers.cube import position
from regrow.search.space.domains import Choice
from regrow.search.spec import Spec

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What decides a curve: `q`, its value in the end, and `a` and `b`, which do not depend on it,
    all between 0 (best) and 1; `u`, the point in the cube; `e`, chance of the configuration alone.
    """

    q: float
    a: float
    b: float
    e: float
    u: Floats
    near: float
    """How far the point lies from a second place, between 0 and 1."""


Shape = Callable[[Facts, Floats], Floats]
"""Costs at times from 0 (the first step) to 1 (the last)."""


def mild(f: Facts, t: Floats) -> Floats:
    """The first steps tell something of the end, and more later."""
    return f.q + (0.3 + 0.9 * f.b) * np.exp(-(2 + 4 * f.a) * t)


def useless(f: Facts, t: Floats) -> Floats:
    """The first step tells nothing: an untrained model is measured."""
    told = t**2 / (t**2 + 0.15**2)
    return np.asarray((1 - told) * (1 + 0.4 * f.b) + told * f.q)


def misleading(f: Facts, t: Floats) -> Floats:
    """The first step tells the contrary: what begins best ends worst."""
    told = t**2 / (t**2 + 0.12**2)
    return np.asarray((1 - told) * (1 - 0.3 * f.q + 0.2 * f.b) + told * f.q)


def late(f: Facts, t: Floats) -> Floats:
    """Late bloomers: nothing happens for long, and longest for the best."""
    drop = 1 / (1 + np.exp(-(t - 0.15 - 0.6 * (1 - f.q)) / 0.05))
    return 1 + 0.1 * f.b * (1 - t) - (1 - f.q) * drop


def crossing(f: Facts, t: Floats) -> Floats:
    """What learns fast stays bad, and is overtaken by what learns slowly."""
    return f.q + 1.2 * np.exp(-(2.5 + 60 * f.q**2) * (t + 0.04)) + 0.2 * f.b * (1 - t)


def overfitting(f: Facts, t: Floats) -> Floats:
    """The cost rises after its least, the sooner the faster it fell."""
    rise = (0.3 + 2 * f.b) * np.maximum(t - 0.15 - 0.6 * f.a, 0)
    return f.q + (0.5 + f.b) * np.exp(-(20 - 15 * f.a) * t) + rise


def plateau(f: Facts, t: Floats) -> Floats:
    """A wide and flat basin with tiny ripples, and elsewhere a smaller, deeper one."""
    wide = 0.25 + 0.75 * max(f.q - 0.35, 0) / 0.65 + 0.004 * np.sin(40 * f.u).mean()
    end = min(wide, f.near / 0.45)
    return np.asarray(end + (0.2 + 0.6 * f.b) * np.exp(-(2 + 4 * f.a) * t))


def narrow(f: Facts, t: Floats) -> Floats:
    """All is alike but for a narrow valley."""
    end = 0.9 + 0.1 * f.q - 0.9 * np.exp(-((f.near / 0.25) ** 2))
    return np.asarray(end + (0.2 + 0.6 * f.b) * np.exp(-(2 + 4 * f.a) * t))


def cliff(f: Facts, t: Floats) -> Floats:
    """The larger the step size the better, until training diverges: NaN, the nearer the later."""
    size = f.u[0] + 0.4 * f.u[1]
    end = 0.7 * abs(0.85 - size) / 0.85 + 0.3 * f.q
    costs = end + (0.2 + 0.6 * f.b) * np.exp(-(2 + 4 * f.a) * t)
    return np.where(t >= np.exp(-8 * (size - 0.85)), np.nan, costs) if size > 0.85 else costs


def explosion(f: Facts, t: Floats) -> Floats:
    """The same, but the cost explodes: numbers many times as large as all others."""
    size = f.u[0] + 0.4 * f.u[1]
    bounded = cliff(f, t)
    return np.where(np.isnan(bounded), 10.0 ** np.minimum(2 + 20 * (size - 0.85), 6), bounded)


def failing(f: Facts, t: Floats) -> Floats:
    """Three in ten fail at a step that nobody knows before, more of them on one side."""
    fails = f.e < (0.5 if f.u[0] > 0.6 else 0.15)
    return np.where(t >= 2 * f.e, np.nan, mild(f, t)) if fails else mild(f, t)


class Bowl:
    """A smooth function of a point, between 0 and 1; 0 in one place."""

    def __init__(self, rng: np.random.Generator, dimensions: int, matter: int) -> None:
        self.axes = rng.choice(dimensions, matter, replace=False)
        self.best = rng.uniform(0.15, 0.85, matter)
        self._weights = rng.permutation(0.7 ** np.arange(matter))
        self._skew = rng.uniform(-0.5, 0.5, matter)

    def __call__(self, u: Floats) -> float:
        """Parameters that are not there (NaN) count as the best."""
        away = np.nan_to_num((u[self.axes] - self.best) / np.maximum(self.best, 1 - self.best))
        turned = away + self._skew * np.roll(away, 1)
        return float(1 - np.exp(-4 * (self._weights * turned**2).sum() / self._weights.sum()))


class Wave:
    """A smooth function of all parameters, between 0 and 1, which goes up and down."""

    def __init__(self, rng: np.random.Generator, dimensions: int) -> None:
        self._slopes = rng.normal(0, 1, dimensions) * 3 / np.sqrt(dimensions)
        self._phase = rng.uniform(0, 2 * np.pi)

    def __call__(self, u: Floats) -> float:
        """Parameters that are not there (NaN) count as in the middle."""
        there = np.nan_to_num(u, nan=0.5)
        return float(0.5 + 0.5 * np.sin(2 * self._slopes @ (there - 0.5) + self._phase))


class Synthetic(Surrogate):
    """One family. `matter`: parameters of which the end depends; `noise`: standard deviation of
    what is reported, where the median configuration is at about 0.5.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        shape: Shape,
        *,
        steps: int,
        space: Mapping[str, Any],
        matter: int,
        noise: float = 0.0,
    ) -> None:
        experiment = {"name": name, "trainable": "m:f", "metric": "score", "mode": "min"}
        super().__init__(
            Spec.parse({**experiment, "space": space, "trials": 1, "max_steps": steps})
        )
        self._shape, self._seed, self._noise = shape, seed, noise
        rng = np.random.default_rng(seed)
        self._orders = {
            p.name: rng.permutation(len(p.domain.values))
            for p in self.spec.space.flat
            if isinstance(p.domain, Choice)
        }
        count = len(self.spec.space.flat)
        self._bowl, *self._waves = Bowl(rng, count, matter), Wave(rng, count), Wave(rng, count)
        self._near = rng.uniform(0.2, 0.8, matter)
        self._scale()

    def curve(self, config: Config) -> Curve:
        u = self._point(config)
        a, b = (wave(u) for wave in self._waves)
        near = float(np.sqrt(((u[self._bowl.axes] - self._near) ** 2).mean()))
        facts = Facts(q=self._bowl(u), a=a, b=b, u=u, e=self._chance(config, 0), near=near)
        costs = self._shape(facts, np.linspace(0.0, 1.0, self.max_steps))
        return costs.tolist(), [1.0] * self.max_steps

    def at(self, config: Config, step: int) -> tuple[float, float]:
        score, seconds = super().at(config, step)
        if self._noise:
            # Box and Muller's
            size = np.sqrt(-2 * np.log(self._chance(config, 2 * step) + 1e-12))
            score += self._noise * size * np.cos(2 * np.pi * self._chance(config, 2 * step + 1))
        return float(score), seconds

    def without_noise(self, config: Config, step: int, score: float) -> float:
        return super().at(config, step)[0] if self._noise else score

    def _point(self, config: Config) -> Floats:
        """The place of each parameter, a choice's values in an order of the family's own; NaN for
        those that have no part in the configuration.
        """
        found = []
        for p in self.spec.space.flat:
            if not p.active(config):
                found.append(np.nan)
            elif isinstance(p.domain, Choice):
                order = self._orders[p.name]
                found.append((order[p.domain.values.index(config[p.name])] + 0.5) / len(order))
            else:
                found.append(position(p.domain, config[p.name]))
        return np.array(found)

    def _chance(self, config: Config, place: int) -> float:
        """A number from 0 to 1, the same for the same configuration."""
        written = json.dumps([self._seed, place, config], sort_keys=True, default=float)
        return int.from_bytes(hashlib.blake2b(written.encode(), digest_size=8).digest(), "big") / (
            2**64
        )


def numbers(count: int) -> dict[str, Any]:
    """A space of so many numbers, plain and logarithmic by turns."""
    forms: list[Any] = [{"loguniform": [1e-5, 1.0]}, {"uniform": [0.0, 1.0]}]
    return {f"x{i}": forms[i % 2] for i in range(count)}


def mixed(count: int) -> dict[str, Any]:
    """A space of so many parameters of all kinds."""
    forms: list[Any] = [
        {"loguniform": [1e-5, 1.0]},
        {"choice": ["relu", "tanh", "gelu"]},
        {"int": [1, 6]},
        {"uniform": [0.0, 1.0]},
        {"logint": [8, 512]},
        {"choice": [16, 32, 64, 128, 256]},
    ]
    return {f"x{i}": forms[i % len(forms)] for i in range(count)}


def conditional(layers: int) -> dict[str, Any]:
    """A space in which most parameters depend on a choice: three to `layers` + 2 are there."""
    return {
        "optimizer": {"choice": ["sgd", "adam", "lion"]},
        "lr": {"loguniform": [1e-5, 1.0]},
        "momentum": {"uniform": [0.0, 0.99], "when": {"optimizer": "sgd"}},
        "nesterov": {"choice": [True, False], "when": {"optimizer": "sgd"}},
        "beta2": {"uniform": [0.9, 0.9999], "when": {"optimizer": "adam"}},
        "eps": {"loguniform": [1e-9, 1e-2], "when": {"optimizer": "adam"}},
        "layers": {"int": [1, layers]},
        **{
            f"width{i}": {
                "logint": [8, 512],
                "when": {"layers": list(range(i, layers + 1))},
            }
            for i in range(1, layers + 1)
        },
    }
