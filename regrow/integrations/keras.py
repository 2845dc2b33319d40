"""Keras 3, on any backend: `model.fit(..., initial_epoch=trial.step, callbacks=[Report(trial)])`; a step is one epoch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regrow.integrations.installed import need
from regrow.tasks.errors import UserError

need("keras", "keras")

try:
    import keras
except ModuleNotFoundError as missing:
    chosen = os.environ.get("KERAS_BACKEND") or "tensorflow, as KERAS_BACKEND is not set"
    raise UserError(
        f"regrow.integrations.keras: Keras cannot be imported, as {missing.name} is not installed (its backend is {chosen}); install it,"
        " or choose another one: env: {KERAS_BACKEND: torch}"
    ) from None

from regrow.integrations import reports  # noqa: E402 - after it is known to be there
from regrow.tasks.trial import Trial  # noqa: E402 - the same

MODEL = "model.keras"


def restored(trial: Trial) -> Path | None:
    """The compiled model to go on with, for `keras.models.load_model`; None at the beginning."""
    return reports.restored(trial, MODEL)


class Report(keras.callbacks.Callback):
    """Reports each epoch what Keras logs (`loss`, `val_loss`, ...), and saves the model with its optimizer.

    `metric` names the one that is the experiment's metric; None: it has the same name. The order in which `fit` shuffles, and
    other draws from the backend's global generator, begin anew where a trial goes on.
    """

    def __init__(self, trial: Trial, metric: str | None = None) -> None:
        super().__init__()
        self._trial, self._metric = trial, metric

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """See Callback."""
        model = self.model
        reports.report(
            self._trial, dict(logs or {}), self._metric, lambda folder: model.save(folder / MODEL),
            lambda: setattr(model, "stop_training", True),
        )
