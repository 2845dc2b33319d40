"""A trial that trains an algorithm of RLlib's: it is built, restored, stepped, saved and stopped as any class trainable."""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from regrow.infra.rllib import private
from regrow.infra.rllib.metrics import is_episodic, measured
from regrow.infra.rllib.own_code import called, configures, send_by_value
from regrow.infra.rllib.settings import configured, quiet, require, seeded
from regrow.tasks.errors import UserError
from regrow.tasks.messages import Job
from regrow.tasks.trial import Trial

FIRST_EPISODE = 200
"""Iterations within which an episode has to end, so that there is a return to report."""
_STATE, _BUFFER, _LAST = "rllib", "replay_buffer.pkl", "last.json"
"""What a checkpoint holds: RLlib's own folder; the replay buffer; what is reported again where no episode ends."""


class RLlibTrials:
    """The Frameworks of RLlib."""

    def trainable(self, job: Job, found: Any) -> Callable[[Trial], object] | None:
        """See Frameworks."""
        if job.rllib is not None:
            return partial(_run, job, partial(configured, job.rllib, folder=job.folder, gpus=_gpus()), job.rllib.replay_buffer)
        if configures(found):
            return partial(_run, job, partial(called, found, path=job.trainable), True)
        return None


def _gpus() -> float:
    """GPUs of the trial's own process."""
    import ray

    return float(len(ray.get_gpu_ids())) if ray.is_initialized() else 0.0


def _run(job: Job, configure: Callable[[dict[str, Any]], Any], keeps_buffer: bool, trial: Trial) -> None:
    """Trains until the trial ends; nothing that RLlib started outlives that."""
    require()
    with quiet(), tempfile.TemporaryDirectory(prefix="regrow-rllib-", ignore_cleanup_errors=True) as scratch:
        config = seeded(configure(trial.config), trial.seed, trial.step)
        send_by_value(job.folder)
        with private.results_in(scratch):
            algorithm = config.build_algo()
        try:
            training = _Training(algorithm, job, trial, keeps_buffer=keeps_buffer)
            if trial.restored is not None:
                training.load(trial.restored)
            for _ in trial.steps():
                trial.report(training.step(), checkpoint=training.save)
        finally:
            algorithm.stop()


class _Training:
    """An algorithm and what a trial remembers beside it."""

    def __init__(self, algorithm: Any, job: Job, trial: Trial, *, keeps_buffer: bool) -> None:
        self._algorithm, self._job, self._trial = algorithm, job, trial
        self._offline = bool(algorithm.config.is_offline)
        self._keeps_buffer = keeps_buffer
        self._last: dict[str, float] = {}
        """Of the metrics of whole episodes, what was last known."""
        self._env_steps = 0.0

    def step(self) -> dict[str, float]:
        """An iteration of RLlib's; until a first episode has ended, and there is something to report, as many as that takes.

        Raises UserError where none ends.
        """
        for _ in range(FIRST_EPISODE):
            found = measured(self._algorithm.train(), self._job.metrics, offline=self._offline)
            self._last |= {name: value for name, value in found.items() if is_episodic(name)}
            self._env_steps = found.get("env_steps", 0.0)
            metrics = self._last | found
            if self._job.objective in metrics or not is_episodic(self._job.objective):
                return metrics
            if self._trial.told:
                self._trial.end()
        raise UserError(
            f"no episode ended within {FIRST_EPISODE} iterations ({self._env_steps:,.0f} steps of the environment), so"
            f" that there is no {self._job.objective!r}; give the environment a limit of steps, or take another metric:"
            f" {', '.join(sorted(metrics))}"
        )

    def save(self, folder: Path) -> None:
        """Writes all that is needed to go on, but for the environments: episodes under way begin anew."""
        self._algorithm.save_to_path(str(folder / _STATE))
        if self._keeps_buffer and not self._offline and (buffer := _buffer(self._algorithm)) is not None:
            with (folder / _BUFFER).open("wb") as file:
                pickle.dump(buffer.get_state(), file, protocol=pickle.HIGHEST_PROTOCOL)
        (folder / _LAST).write_text(json.dumps({"env_steps": self._env_steps, "last": self._last}))

    def load(self, folder: Path) -> None:
        """Takes it back. Rates of learning are those of this trial's configuration, not of the checkpoint."""
        self._algorithm.restore_from_path(str((folder / _STATE).resolve()))
        if (saved := folder / _BUFFER).exists() and (buffer := _buffer(self._algorithm)) is not None:
            with saved.open("rb") as file:
                buffer.set_state(pickle.load(file))  # noqa: S301 - written by this experiment, verified by its manifest
        told = json.loads((folder / _LAST).read_text())
        self._env_steps, self._last = told["env_steps"], told["last"]
        private.use_learning_rates(self._algorithm, int(self._env_steps))


def _buffer(algorithm: Any) -> Any:
    """The replay buffer of an algorithm that has one. RLlib's checkpoints are without it."""
    own = getattr(algorithm, "replay_buffer", None)  # DreamerV3's
    return own if own is not None else algorithm.local_replay_buffer

