"""A trial that trains an RLlib algorithm: built, restored, stepped, saved and stopped."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from regrow.integrations.rllib import checkpoint, private, settings
from regrow.integrations.rllib.metrics import EPISODIC, Result, is_never_reported, measured
from regrow.integrations.rllib.reading import frugal, in_trial_bundles
from regrow.integrations.rllib.runners import EnvRunnerWatch
from regrow.integrations.rllib.users_code import called, configures
from regrow.tasks.errors import UserError
from regrow.tasks.ports.messages import Job
from regrow.tasks.process import temporary
from regrow.tasks.trial.trial import Trial

FIRST_ITERATIONS = 200
"""An episode must end within this many iterations, so that there is a return to report."""


def trainable(job: Job, found: Any) -> Callable[[Trial], object] | None:
    if job.spec.rllib is not None:
        import ray

        gpus = float(len(ray.get_gpu_ids())) if ray.is_initialized() else 0.0
        configure = partial(settings.configured, job.spec.rllib, folder=job.folder, gpus=gpus)
        return partial(_run, job, configure, job.spec.rllib.replay_buffer)
    if configures(found):
        return partial(_run, job, partial(called, found, path=job.spec.trainable), True)
    return None


def _run(
    job: Job, configure: Callable[[dict[str, Any]], Any], with_buffer: bool, trial: Trial
) -> None:
    """Train until the trial ends, and stop everything that RLlib started."""
    settings.require()
    with ExitStack() as stack:
        stack.enter_context(settings.quiet())
        scratch = stack.enter_context(
            tempfile.TemporaryDirectory(
                prefix="rllib-", dir=temporary.process_temp_dir(), ignore_cleanup_errors=True
            )
        )
        config = settings.seeded(frugal(configure(trial.config)), trial.seed, trial.step)
        if config.is_offline:
            stack.enter_context(in_trial_bundles())
        with private.results_in(scratch):
            algorithm = config.build_algo()
        stack.callback(algorithm.stop)
        training = _Training(algorithm, job, trial, with_buffer=with_buffer)
        if trial.restored is not None:
            training.load(trial.restored)
        for _ in trial.steps():
            trial.report(training.step(), checkpoint=training.save)


class _Training:
    """An algorithm with the trial's additional state."""

    def __init__(self, algorithm: Any, job: Job, trial: Trial, *, with_buffer: bool) -> None:
        self._algorithm, self._job, self._trial = algorithm, job, trial
        self._offline = bool(algorithm.config.is_offline)
        self._with_buffer = with_buffer
        self._last: dict[str, float] = {}
        """Last values of episode metrics and of the specification's: an iteration may lack them."""
        self._env_steps = 0.0

    def step(self) -> dict[str, float]:
        """Run an RLlib iteration; before the first value of the objective, i.e. until an episode
        has ended, as many as needed.

        An iteration in which no episode ends repeats the last value. Raises UserError if there is
        no first value.
        """
        for _ in range(FIRST_ITERATIONS):
            result = self._iteration()
            found = measured(result, self._job.metrics, offline=self._offline)
            kept = (*EPISODIC, *self._job.metrics)
            self._last |= {name: value for name, value in found.items() if name in kept}
            self._env_steps = found.get("env_steps", 0.0)
            metrics = self._last | found
            if self._job.objective in metrics:
                return metrics
            if is_never_reported(self._job.objective, result):
                raise UserError(
                    f"RLlib reports no {self._job.objective!r}; take another metric:"
                    f" {', '.join(sorted(metrics))}"
                )
            if self._trial.told:
                self._trial.end()
        raise UserError(
            f"there was no {self._job.objective!r} within {FIRST_ITERATIONS} iterations"
            f" ({self._env_steps:,.0f} steps of the environment): no episode ended; give the"
            f" environment a limit of steps, or take another metric: {', '.join(sorted(metrics))}"
        )

    def _iteration(self) -> Result:
        """Run iterations until something was played: no other counts as a step."""
        absence = EnvRunnerWatch(self._algorithm, self._env_steps)
        while True:
            try:
                result: Result = self._algorithm.train()
            except RuntimeError as error:
                raise settings.of_the_environment(error) from None
            if not absence.explains(result):
                return result
            if self._trial.told:
                self._trial.end()

    def save(self, folder: Path) -> None:
        beside = {"env_steps": self._env_steps, "last": self._last}
        checkpoint.save(self._algorithm, folder, beside, with_buffer=self._with_buffer)

    def load(self, folder: Path) -> None:
        beside = checkpoint.load(self._algorithm, folder)
        self._env_steps, self._last = beside["env_steps"], beside["last"]
