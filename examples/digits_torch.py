"""The same handwritten digits with a small convolutional network in PyTorch: a class trainable,
driven step by step.

`save` and `load` take everything along that the next step depends on (weights, optimizer, the
generator that shuffles), so a trial that continues from a checkpoint has the
very curve that it would have had.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional

BATCH = 64


class Net:
    """Two convolutions and a linear layer on images of 8 x 8 pixels; a step is one pass over the
    training images.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Builds network and optimizer, and loads the images."""
        # a trial has one CPU; more threads would take those of the trials beside it
        torch.set_num_threads(1)
        torch.manual_seed(config["seed"])
        self.shuffle = torch.Generator().manual_seed(config["seed"])
        channels = config["channels"]
        self.model = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * channels * 16, 10),
        )
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"]
        )
        self.train_x, self.valid_x, self.train_y, self.valid_y = data()

    def step(self) -> dict[str, float]:
        """Trains for one pass; returns accuracy and loss on the validation images."""
        self.model.train()
        for batch in torch.randperm(len(self.train_x), generator=self.shuffle).split(BATCH):
            self.optimizer.zero_grad()
            functional.cross_entropy(
                self.model(self.train_x[batch]), self.train_y[batch]
            ).backward()
            self.optimizer.step()
        self.model.eval()
        with torch.inference_mode():
            scores = self.model(self.valid_x)
            loss = functional.cross_entropy(scores, self.valid_y)
        return {
            "accuracy": (scores.argmax(1) == self.valid_y).double().mean().item(),
            "loss": loss.item(),
        }

    def save(self, folder: Path) -> None:
        """Writes `net.pt` into the empty folder."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "shuffle": self.shuffle.get_state(),
        }
        torch.save(state, folder / "net.pt")

    def load(self, folder: Path) -> None:
        """Takes `net.pt` back: tensors only, no code (`weights_only`)."""
        state = torch.load(folder / "net.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.shuffle.set_state(state["shuffle"])

    def cleanup(self) -> None:
        """Frees the network; the worker process may run another trial next."""
        del self.model, self.optimizer


def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training and validation images (count, 1, 8, 8) from 0 to 1, then their labels; the same
    split in each trial.
    """
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.25, stratify=labels, random_state=0)
    train_x, valid_x = (
        torch.tensor(part, dtype=torch.float32).reshape(-1, 1, 8, 8) for part in parts[:2]
    )
    train_y, valid_y = (torch.tensor(part, dtype=torch.int64) for part in parts[2:])
    return train_x, valid_x, train_y, valid_y
