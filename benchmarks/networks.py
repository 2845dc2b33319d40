"""Small PyTorch networks that `curves.py` trains, with what decides a real training: warm-up and
cosine of the learning rate, momentum, weight decay, dropout, size of batches, and learning rates so
large that it diverges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.datasets import load_diabetes, load_digits

if TYPE_CHECKING:
    import torch

Config = Mapping[str, Any]
Split = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor"]
"""Examples to train on, their targets, then those to score on."""
SEED = 2026
WORST_LOSS = 5.0
"""A log loss is cut off here: one over-confident mistake would make it any number."""


def warmup_curve(config: Config) -> Iterator[float]:
    """SGD with warm-up and cosine teaches a network to read digits; log loss."""
    data = _split(*load_digits(return_X_y=True), train=600)
    yield from _passes(_dense(config, 64, 10), data, config, steps=50, score=_log_loss)


def mislabelled_curve(config: Config) -> Iterator[float]:
    """Adam teaches a network to read digits, of which a third are labelled at random; log loss,
    which overfits.
    """
    x, y = load_digits(return_X_y=True)
    wrong = _shuffled(len(y))[:167]
    y = np.array(y)
    y[wrong] = np.random.default_rng(SEED).integers(0, 10, len(wrong))
    data = _split(x, y, train=500)
    yield from _passes(_dense(config, 64, 10), data, config, steps=40, score=_log_loss)


def patients_curve(config: Config) -> Iterator[float]:
    """Adam teaches a network how a disease goes on; RMSE, which overfits."""
    x, y = load_diabetes(return_X_y=True)
    data = _split(x, (y - y.mean()) / y.std(), train=220)
    yield from _passes(_dense(config, 10, 1), data, config, steps=60, score=_rmse)


def _seeded() -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(SEED)


def _dense(config: Config, inputs: int, outputs: int) -> torch.nn.Module:
    """Hidden layers of one width, with dropout after each."""
    from torch import nn

    _seeded()
    layers: list[nn.Module] = []
    for _ in range(config.get("layers", 1)):
        layers += [nn.Linear(inputs, config["width"]), nn.ReLU(), nn.Dropout(config["dropout"])]
        inputs = config["width"]
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


@cache
def _shuffled(size: int) -> Any:
    return np.random.default_rng(SEED).permutation(size)


def _split(x: Any, y: Any, *, train: int) -> Split:
    import torch

    order = _shuffled(len(y))
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)
    whole = torch.tensor(x[order], dtype=torch.float32)
    kind = torch.float32 if np.asarray(y).dtype.kind == "f" else torch.int64
    targets = torch.tensor(y[order], dtype=kind)
    return whole[:train], targets[:train], whole[train:], targets[train:]


def _passes(
    model: torch.nn.Module,
    data: Split,
    config: Config,
    *,
    steps: int,
    score: Callable[[torch.Tensor, torch.Tensor], float],
) -> Iterator[float]:
    """The score after each pass. Raises ValueError where it is no longer finite."""
    import torch
    from torch.nn import functional

    train_x, train_y, valid_x, valid_y = data
    batch, decay = config["batch"], config["weight_decay"]
    optimizer: torch.optim.Optimizer
    if "momentum" in config:
        optimizer = torch.optim.SGD(
            model.parameters(), config["lr"], config["momentum"], weight_decay=decay
        )
    else:
        beta1 = config.get("beta1", 0.9)
        optimizer = torch.optim.AdamW(
            model.parameters(), config["lr"], (beta1, 0.999), weight_decay=decay
        )
    total, done = steps * math.ceil(len(train_x) / batch), 0
    warming = max(config.get("warmup", 0.0) * total, 1e-9)
    for _ in range(steps):
        model.train()
        for part in torch.randperm(len(train_x)).split(batch):
            done += 1
            rate = config["lr"] * min(done / warming, 1.0)
            if config.get("decay") == "cosine":
                rate *= 0.5 * (1 + math.cos(math.pi * (done - 1) / total))
            optimizer.param_groups[0]["lr"] = rate
            out = model(train_x[part])
            if score is _rmse:
                loss = functional.mse_loss(out[:, 0], train_y[part])
            else:
                loss = functional.cross_entropy(out, train_y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            out = model(valid_x)
        if not bool(torch.isfinite(out).all()):
            raise ValueError("the weights are no longer finite")
        yield score(out, valid_y)


def _log_loss(out: torch.Tensor, targets: torch.Tensor) -> float:
    from torch.nn import functional

    return min(float(functional.cross_entropy(out, targets)), WORST_LOSS)


def _rmse(out: torch.Tensor, targets: torch.Tensor) -> float:
    return min(float(((out[:, 0] - targets) ** 2).mean().sqrt()), WORST_LOSS)
