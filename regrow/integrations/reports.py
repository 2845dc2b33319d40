"""Shared by the callbacks of all frameworks: report under the right names, and continue or stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from regrow.tasks.errors import ReportError, UserError
from regrow.tasks.trial.trial import Save, Trial, TrialEnd

Stop = Callable[[], object]
"""Stops the framework in its own way."""


def report(
    trial: Trial, values: Mapping[str, float], metric: str | None, save: Save | None, stop: Stop
) -> None:
    """Report a step: all values by their names, and that of `metric` (None: no other) as the
    experiment's metric.

    After the trial's last step `stop` is called, so that code after the framework's `fit` runs.
    Raises TrialEnd if the trial was asked to end before, and ReportError if `metric` is not among
    the values.
    """
    reported = dict(values)
    if metric is not None:
        if metric not in values:
            names = ", ".join(values) or "none"
            raise ReportError(
                f"step {trial.at}: there is no {metric!r} among what was measured: {names}"
            )
        reported[trial.metric] = values[metric]
    try:
        trial.report(reported, checkpoint=save)
    except TrialEnd:
        if trial.step < trial.max_steps:
            raise
    if trial.step >= trial.max_steps:  # the same on all workers of a trial
        stop()


def latest(measured: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Return the last value of each metric of each data set, as `DATA-METRIC`."""
    return {
        f"{data}-{name}": values[-1]
        for data, found in measured.items()
        for name, values in found.items()
    }


def restored(trial: Trial, name: str) -> Path | None:
    """Return the file or folder of this name in the checkpoint to continue from; None if the trial
    begins. Read-only.

    Raises UserError for a checkpoint without it.
    """
    if trial.restored is None:
        return None
    path = trial.restored / name
    if not path.exists():
        files = ", ".join(sorted(file.name for file in trial.restored.iterdir())) or "nothing"
        raise UserError(
            f"trial {trial.number}: the checkpoint of step {trial.step} has no {name}, but {files}"
        )
    return path
