"""Handwritten digits with Lightning, on one worker or several; a step is one epoch."""

from __future__ import annotations

import lightning
import torch
from digits_data import digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import regrow as rg
from regrow.integrations.lightning import Report, restored


class Net(lightning.LightningModule):
    """Two layers with dropout, whose learning rate falls."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """See LightningModule."""
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        """See LightningModule."""
        self.log("val_loss", cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        """See LightningModule."""
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        }


def train(trial: rg.Trial) -> None:
    """Reports the loss on the validation images after each epoch."""
    torch.set_num_threads(1)
    lightning.seed_everything(trial.seed, verbose=False)
    train_x, valid_x, train_y, valid_y = map(torch.tensor, digits())
    trainer = lightning.Trainer(
        max_epochs=trial.max_steps,
        accelerator="cpu",
        devices=trial.world.local_size,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Report(trial, metric="val_loss")],
    )
    trainer.fit(
        Net(trial.config["lr"]),
        DataLoader(TensorDataset(train_x, train_y), 64, shuffle=True),
        DataLoader(TensorDataset(valid_x, valid_y), 256),
        ckpt_path=restored(trial),
        weights_only=False,
    )
