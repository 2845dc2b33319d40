"""The handwritten digits on several workers: each trial's network is replicated, and each worker
has its share of the images.

The same `train` runs on every worker of a trial. With one worker, or under torchrun, it is the same
program.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import regrow as rg

BATCH = 64
"""Images a step, of all workers together."""
WORKERS = 2
"""As many as the batch is meant for; fewer take their shares in several turns."""


def train(trial: rg.Trial) -> None:
    """A step is one pass over the training images; reports accuracy and loss on the validation
    images.
    """
    config = trial.config
    torch.manual_seed(trial.seed)
    model = rg.torch.prepare(network(config["channels"]))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"]
    )
    images, (valid_x, valid_y) = data()
    loader = DataLoader(images, batch_size=BATCH // WORKERS, shuffle=True)
    state = rg.torch.State(model=model, optimizer=optimizer)
    if trial.restored:
        state.load(trial.restored)

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        return functional.cross_entropy(model(batch[0]), batch[1])

    for step in trial.steps():
        model.train()
        for parts in rg.torch.shard(loader, epoch=step, seed=trial.seed, workers=WORKERS):
            optimizer.zero_grad()
            rg.torch.accumulate(model, parts, loss_of)
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            scores = model(valid_x)
            loss = functional.cross_entropy(scores, valid_y)
        accuracy = (scores.argmax(1) == valid_y).double().mean().item()
        trial.report({"accuracy": accuracy, "loss": loss.item()}, checkpoint=state.save)


def network(channels: int) -> nn.Sequential:
    """Two convolutions and a linear layer on images of 8 x 8 pixels. No batch norm: its means would
    be of one worker's share.
    """
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.GroupNorm(1, channels),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.GroupNorm(1, 2 * channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * 16, 10),
    )


def data() -> tuple[TensorDataset, tuple[torch.Tensor, torch.Tensor]]:
    """The training images (1, 8, 8) from 0 to 1 with labels, and all validation images with theirs;
    always the same split.
    """
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, labels, test_size=0.25, stratify=labels, random_state=0)
    train_x, valid_x = (
        torch.tensor(part, dtype=torch.float32).reshape(-1, 1, 8, 8) for part in parts[:2]
    )
    train_y, valid_y = (torch.tensor(part, dtype=torch.int64) for part in parts[2:])
    return TensorDataset(train_x, train_y), (valid_x, valid_y)
