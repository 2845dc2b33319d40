"""Accelerate: `state = State(accelerator)`, then `trial.report(..., checkpoint=state.save)`, on any number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regrow.integrations.installed import need

if TYPE_CHECKING:
    from accelerate import Accelerator

need("accelerate", "accelerate")


class State:
    """All that an Accelerator has prepared, in Accelerate's own format.

    Models, optimizers, schedulers, scalers, loaders, what was registered for checkpointing, and each worker's generators
    (Python's, NumPy's, PyTorch's).
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def save(self, folder: Path) -> None:
        """Writes this worker's part. All workers call it at the same step: `trial.report(..., checkpoint=state.save)`."""
        self._accelerator.save_state(str(folder))

    def load(self, folder: Path) -> None:
        """Takes it back, after `prepare`: `if trial.restored: state.load(trial.restored)`. As many workers as have saved."""
        self._accelerator.load_state(str(folder))
