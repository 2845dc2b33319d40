"""Keras 3, on any backend: `model.fit(..., initial_epoch=trial.step, callbacks=[Report(trial)])`; a
step is one epoch.
"""

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
        f"regrow.integrations.keras: Keras cannot be imported, as {missing.name} is not installed"
        f" (its backend is {chosen}); install it, or choose another one: env: {{KERAS_BACKEND:"
        " torch}"
    ) from None

import numpy as np  # noqa: E402 - after the check that Keras can be imported

from regrow.integrations import reports  # noqa: E402 - after the check that Keras can be imported
from regrow.tasks.trial.trial import Trial  # noqa: E402 - after the check that Keras can be imported

MODEL, SEEDS, GENERATORS = "model.keras", "seeds.npz", "generators.pt"


def restored(trial: Trial) -> Path | None:
    """Return the compiled model for `keras.models.load_model`; None at the beginning."""
    return reports.restored(trial, MODEL)


class Report(keras.callbacks.Callback):
    """Reports what Keras logs at each epoch (`loss`, `val_loss`, ...), and saves the model with its
    optimizer.

    `metric` names the one that is the experiment's metric; None: it has the same name. It also
    saves what Keras' file omits: the seeds that layers such as Dropout draw from and, with the
    PyTorch backend, the global generators of PyTorch, NumPy and Python. With other backends the
    order in which `fit` shuffles starts again when a trial is resumed.
    """

    def __init__(self, trial: Trial, metric: str | None = None) -> None:
        super().__init__()
        self._trial, self._metric = trial, metric

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        if (found := self._trial.restored) is None:
            return
        with np.load(found / SEEDS) as saved:
            for number, seed in enumerate(self._seeds()):
                seed.assign(saved[str(number)])
        if keras.backend.backend() == "torch":
            from regrow.integrations.torch import generators

            generators.restore_from(found / GENERATORS)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:

        def save(folder: Path) -> None:
            self.model.save(folder / MODEL)
            seeds = {
                str(number): keras.ops.convert_to_numpy(seed)
                for number, seed in enumerate(self._seeds())
            }
            np.savez(folder / SEEDS, **seeds)
            if keras.backend.backend() == "torch":
                from regrow.integrations.torch import generators

                generators.save_to(folder / GENERATORS)

        reports.report(
            self._trial,
            dict(logs or {}),
            self._metric,
            save,
            lambda: setattr(self.model, "stop_training", True),
        )

    def _seeds(self) -> list[Any]:
        return [one for one in self.model.variables if one.name == "seed_generator_state"]
