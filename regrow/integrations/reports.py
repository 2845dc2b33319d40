"""What the callbacks of all frameworks do with a Trial: report under the right names, and go on or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from regrow.tasks.errors import ReportError, UserError
from regrow.tasks.trial import Save, Trial, TrialEnd

Stop = Callable[[], object]
"""Has the framework stop by its own means."""


def report(trial: Trial, values: Mapping[str, float], metric: str | None, save: Save | None, stop: Stop) -> None:
    """Reports a step: all values by their own names, and that of `metric` (None: no other) as the experiment's metric.

    After the trial's last step `stop` is called, so that what stands behind the framework's `fit` runs. Raises TrialEnd where the
    trial was told to end before, and ReportError where `metric` is not among the values.
    """
    reported = dict(values)
    if metric is not None:
        if metric not in values:
            there = ", ".join(values) or "none"
            raise ReportError(f"step {trial.at}: there is no {metric!r} among what was measured: {there}")
        reported[trial.metric] = values[metric]
    try:
        trial.report(reported, checkpoint=save)
    except TrialEnd:
        if trial.step < trial.max_steps:
            raise
    if trial.step >= trial.max_steps:  # the same on all workers of a trial
        stop()


def restored(trial: Trial, name: str) -> Path | None:
    """What the checkpoint to go on from has by this name; None where the trial begins. Only to be read.

    Raises UserError for a checkpoint that has no such file.
    """
    if trial.restored is None:
        return None
    path = trial.restored / name
    if not path.exists():
        there = ", ".join(sorted(file.name for file in trial.restored.iterdir())) or "nothing"
        raise UserError(f"trial {trial.number}: the checkpoint of step {trial.step} has no {name}, but {there}")
    return path
