"""Lightning: `Trainer(callbacks=[Report(trial)]).fit(..., ckpt_path=restored(trial),
weights_only=False)`; a step is an epoch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.integrations.installed import need

need("lightning", "lightning")

from lightning.pytorch.callbacks import Checkpoint  # noqa: E402 - after the check that Lightning is installed

from regrow.integrations import reports  # noqa: E402 - after the check that Lightning is installed
from regrow.integrations.torch import generators  # noqa: E402 - after the check that Lightning is installed
from regrow.tasks.trial.trial import Trial  # noqa: E402 - after the check that Lightning is installed

if TYPE_CHECKING:
    from lightning import LightningModule, Trainer

CHECKPOINT = "last.ckpt"


def restored(trial: Trial) -> Path | None:
    """Return Lightning's checkpoint to continue from, for `ckpt_path=`; None at the beginning."""
    return reports.restored(trial, CHECKPOINT)


class Report(Checkpoint):
    """Reports what was logged at each epoch (`self.log`), after validation, and saves Lightning's
    checkpoint.

    Used on all workers of a trial. `metric` names the one that is the experiment's metric; None: it
    has the same name. It replaces the ModelCheckpoint that a Trainer has by default. It also saves
    each worker's global generators of PyTorch, NumPy and Python, which Lightning omits.
    """

    def __init__(self, trial: Trial, metric: str | None = None) -> None:
        self._trial, self._metric = trial, metric

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See Callback; called after all other callbacks."""

        def save(folder: Path) -> None:
            trainer.save_checkpoint(folder / CHECKPOINT)  # all workers take part, rank 0 writes
            generators.save_to(folder / self._generators)

        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        reports.report(
            self._trial, values, self._metric, save, lambda: setattr(trainer, "should_stop", True)
        )

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """See Callback: before the loader draws the next epoch's order."""
        found = self._trial.restored
        if found is not None and (found / self._generators).exists():
            generators.restore_from(found / self._generators)

    @property
    def _generators(self) -> str:
        return f"generators-{self._trial.world.rank}.pt"
