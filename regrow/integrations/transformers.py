"""Hugging Face's Trainer: `Trainer(...,
callbacks=[Report(trial)]).train(resume_from_checkpoint=restored(trial))`.

A step is one save: with `save_strategy="epoch"` and `eval_strategy="epoch"`, an epoch.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.integrations.installed import need

need("transformers", "transformers", "accelerate", "torch")

from transformers import TrainerCallback  # noqa: E402 - after the check that it is installed

from regrow.integrations import reports  # noqa: E402 - after the check that Transformers is installed
from regrow.tasks.errors import UserError  # noqa: E402 - after the check that Transformers is installed
from regrow.tasks.trial.trial import Trial  # noqa: E402 - after the check that Transformers is installed

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

CHECKPOINT = "trainer"
_RANK = re.compile(r"rng_state_(\d+)\.pth")
"""File with the generators of one of several workers, which writes it itself."""


def restored(trial: Trial) -> str | None:
    """Return the Trainer's checkpoint to continue from, for `resume_from_checkpoint=`, which takes
    no Path; None at the beginning.
    """
    found = reports.restored(trial, CHECKPOINT)
    return None if found is None else str(found)


class Report(TrainerCallback):
    """Reports what the last evaluation measured (`eval_loss`, ...) at each save, and keeps a copy
    of `checkpoint-N`.

    Used on all workers of a trial. `metric` names the one that is the experiment's metric; None: it
    has the same name. A save without an evaluation since the previous one is not reported. Raises
    UserError for arguments that leave nothing to report.
    """

    def __init__(self, trial: Trial, metric: str | None = None) -> None:
        self._trial, self._metric = trial, metric
        self._measured: dict[str, float] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        where = "regrow.integrations.transformers: TrainingArguments"
        for name in ("save_strategy", "eval_strategy"):
            if getattr(args, name) == "no":
                raise UserError(
                    f'{where}({name}="no") leaves nothing to report; write {name}="epoch"'
                )
        if args.save_only_model:
            raise UserError(
                f"{where}(save_only_model=True) saves too little to continue from; leave it out"
            )

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        self._measured = dict(metrics or {})

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not self._measured:
            return
        values, self._measured = self._measured, {}
        written = Path(args.output_dir, f"checkpoint-{state.global_step}")

        def of_others(_: str, names: list[str]) -> list[str]:
            """Rank 0 copies all but other ranks' generators, each other rank its own."""
            ranks = {
                name: int(found[1]) if (found := _RANK.fullmatch(name)) else 0 for name in names
            }
            return [name for name, rank in ranks.items() if rank != self._trial.world.rank]

        def save(folder: Path) -> None:
            shutil.copytree(written, folder / CHECKPOINT, ignore=of_others)

        reports.report(
            self._trial,
            values,
            self._metric,
            save,
            lambda: setattr(control, "should_training_stop", True),
        )
