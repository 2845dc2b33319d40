"""Accelerate: `state = State(accelerator, loader)`, then `trial.report(...,
checkpoint=state.save)`, on any number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.integrations.installed import need

if TYPE_CHECKING:
    from accelerate import Accelerator

need("accelerate", "accelerate")


class State:
    """Everything that an Accelerator has prepared, in Accelerate's format: `State(accelerator,
    loader)`.

    Contains models, optimizers, schedulers, scalers, objects registered for checkpointing, and each
    worker's generators (Python's, NumPy's, PyTorch's). `loaders`: as `prepare` returned them; their
    shuffling order continues if several workers share them: Accelerate shuffles these by a separate
    generator, which it does not save.
    """

    def __init__(self, accelerator: Accelerator, *loaders: Any) -> None:
        self._accelerator = accelerator
        accelerator.register_for_checkpointing(_Orders(loaders))

    def save(self, folder: Path) -> None:
        """Write this worker's part; all workers call it at the same step."""
        self._accelerator.save_state(str(folder))

    def load(self, folder: Path) -> None:
        """Restore it, after `prepare`: `if trial.restored: state.load(trial.restored)`. Needs as
        many workers as have saved.
        """
        self._accelerator.load_state(str(folder))


class _Orders:
    """The generators that shuffle loaders; a single worker uses the global one."""

    def __init__(self, loaders: Sequence[Any]) -> None:
        self._generators = [getattr(loader, "synchronized_generator", None) for loader in loaders]

    def state_dict(self) -> dict[str, Any]:
        """Return the states by number; all ranks have the same when an epoch begins."""
        return {
            str(n): generator.get_state()
            for n, generator in enumerate(self._generators)
            if generator is not None
        }

    def load_state_dict(self, states: dict[str, Any]) -> None:
        """Restore the states of the existing generators."""
        for n, generator in enumerate(self._generators):
            if generator is not None and str(n) in states:
                generator.set_state(states[str(n)])
