"""Handwritten digits with a loop of one's own and Accelerate, on one worker or several; a step is
one epoch.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from digits_data import digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import regrow as rg
from regrow.integrations.accelerate import State


def train(trial: rg.Trial) -> None:
    """Reports the loss on the validation images after each epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(trial.seed)
    train_x, valid_x, train_y, valid_y = map(torch.tensor, digits())
    accelerator = Accelerator(cpu=True)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    model, optimizer, loader = accelerator.prepare(
        net,
        torch.optim.Adam(net.parameters(), trial.config["lr"]),
        DataLoader(TensorDataset(train_x, train_y), 64, shuffle=True),
    )
    state = State(accelerator, loader)
    if trial.restored:
        state.load(trial.restored)
    for _ in trial.steps():
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(cross_entropy(model(images), labels))
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            loss = cross_entropy(accelerator.unwrap_model(model)(valid_x), valid_y)
        trial.report({"loss": loss.item()}, checkpoint=state.save)
