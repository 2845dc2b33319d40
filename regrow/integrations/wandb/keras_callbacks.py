"""W&B's callbacks for Keras, for programs that see the stand-in: metrics are logged, saved models
kept.

Imported by a program that uses Keras only.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras import callbacks

from regrow.integrations.wandb.artifacts import Artifact
from regrow.integrations.wandb.messages import print_once


def _wandb() -> Any:
    """Return the stand-in, with the program's run. Raises its Error before `wandb.init`."""
    wandb = importlib.import_module("wandb")
    if wandb.run is None:
        raise wandb.Error("You must call wandb.init() before using its callbacks")
    return wandb


class WandbMetricsLogger(callbacks.Callback):
    """Logs each epoch's metrics as `epoch/NAME`; with `log_freq` "batch" or a number of batches,
    also theirs as `batch/NAME`.
    """

    def __init__(
        self, log_freq: str | int = "epoch", initial_global_step: int = 0, *_: Any, **__: Any
    ) -> None:
        super().__init__()
        self._every = 1 if log_freq == "batch" else log_freq if isinstance(log_freq, int) else None
        self._batch = initial_global_step

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log the epoch's metrics."""
        found = {f"epoch/{name}": value for name, value in (logs or {}).items()}
        rate = getattr(getattr(self.model, "optimizer", None), "learning_rate", None)
        if rate is not None:
            found["epoch/learning_rate"] = float(rate)
        _wandb().log({**found, "epoch/epoch": epoch})

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log the batch's metrics, if it is its turn."""
        self._batch += 1
        if self._every is not None and self._batch % self._every == 0:
            found = {f"batch/{name}": value for name, value in (logs or {}).items()}
            _wandb().log({**found, "batch/batch_step": self._batch})


class WandbModelCheckpoint(callbacks.ModelCheckpoint):
    """Keras' ModelCheckpoint; what it has saved is kept with the trial."""

    def __init__(self, filepath: Any, *args: Any, **given: Any) -> None:
        super().__init__(str(filepath), *args, **given)
        self._kept: dict[Path, float] = {}

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save if it is due, and keep what is new."""
        super().on_epoch_end(epoch, logs)
        self._keep()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save if it is due, and keep what is new."""
        super().on_train_batch_end(batch, logs)
        self._keep()

    def _keep(self) -> None:
        folder = Path(self.filepath).parent
        for path in folder.glob(f"*{Path(self.filepath).suffix}") if folder.is_dir() else ():
            written = path.stat().st_mtime
            if path.is_file() and self._kept.get(path) != written:
                self._kept[path] = written
                _wandb().run.log_artifact(Artifact.of(path))


class WandbCallback(WandbMetricsLogger):
    """The older callback: metrics by their own names. A line names its other arguments, which have
    no effect.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__()
        if given:
            names = ", ".join(given)
            print_once(f"WandbCallback: {names} has no effect; WandbModelCheckpoint keeps models")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Log the epoch's metrics."""
        _wandb().log({**(logs or {}), "epoch": epoch})
