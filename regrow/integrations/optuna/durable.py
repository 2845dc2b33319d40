"""An Optuna study as an experiment: filled from the log; `optimize` runs a session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import optuna
from optuna.logging import get_logger
from optuna.trial import FrozenTrial, TrialState

from regrow.infra.machine import capacity
from regrow.infra.state.places import Places
from regrow.integrations.optuna.following import Follow, Mirror
from regrow.integrations.optuna.objective import Objective
from regrow.integrations.optuna.private import TheirStudy
from regrow.integrations.optuna.running import STEP, VALUE
from regrow.integrations.optuna.scheduling import MOST, schedule
from regrow.integrations.optuna.searching import search
from regrow.integrations.optuna.trials import Trials
from regrow.search.history import History
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError

Callback = Callable[[optuna.Study, FrozenTrial], None]
ENDLESS = 1_000_000
"""Total number of trials of a study that is optimized without `n_trials`."""


def metrics(count: int) -> list[str]:
    """Return the names of a study's values, as in `trials_dataframe`."""
    return [VALUE] if count == 1 else [f"values_{place}" for place in range(count)]


class Study(TheirStudy):
    """See `optuna.study.Study`. Its trials are read from the log; Optuna's tools can view it."""

    def __init__(
        self,
        name: str,
        places: Places,
        mirror: Mirror,
        sampler: optuna.samplers.BaseSampler | None,
        pruner: optuna.pruners.BasePruner | None,
    ) -> None:
        super().__init__(name, mirror, sampler, pruner)
        self._places, self._mirror = places, mirror
        self._search, self._schedule = search(self.sampler, name), schedule(self.pruner)
        self._queue: list[dict[str, Any]] = []
        self._wanted = 0
        """Trials that this process has requested."""
        self._follow: Follow | None = None

    def take(
        self, history: History, *, wanted: int = 0, queue: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Load the trials; `wanted`: how many are requested already, `queue`: values to try."""
        self._mirror.take(Trials(history, self._places.store(self.study_name)))
        self._wanted, self._queue = wanted, list(queue)

    def optimize(
        self,
        func: Callable[[Any], float | Sequence[float]],
        n_trials: int | None = None,
        timeout: float | None = None,
        n_jobs: int = 1,
        catch: Iterable[type[Exception]] | type[Exception] = (),
        callbacks: Iterable[Callback] | None = None,
        gc_after_trial: bool = False,
        show_progress_bar: bool = False,
    ) -> None:
        """Run trials until the study has as many as this script has requested so far; existing
        trials count.

        `timeout`: seconds of this call, after which running trials are interrupted, and start again
        in the next call. `n_jobs`: trials at a time, each in a separate process. `gc_after_trial`
        and `show_progress_bar` are ignored. Raises UserCodeError if the objective raised something
        that is not in `catch`, UserError for an environment in which it cannot run, ValueError for
        a number of trials below 0.
        """
        if n_trials is not None and n_trials < 0:
            raise ValueError(
                f"n_trials={n_trials} is below 0; None is as many as there is time for"
            )
        cells = self._search.cells
        if cells is not None and not self._queue:
            self._queue = list(cells)
        wanted = n_trials if n_trials is not None else ENDLESS
        if cells is not None:
            wanted = min(wanted, len(cells))
        if wanted == 0:
            return
        self._wanted = min(self._wanted + wanted, ENDLESS)
        ended = [trial.state for trial in self.trials if trial.state.is_finished()]
        if len(ended) >= self._wanted:
            failed = sum(state is TrialState.FAIL for state in ended)
            get_logger("optuna.study").warning(
                f"{self.study_name} has {len(ended)} trials ({failed} failed), of {self._wanted}"
                " that were asked for so far: none is run. For more: a larger n_trials; anew:"
                f" another study_name, or `regrow rm {self.study_name}`"
            )
            return
        caught = (catch,) if isinstance(catch, type) else tuple(catch)
        most = self._schedule.max_steps
        objective = Objective(
            func,
            metrics=metrics(len(self.directions)),
            catch=caught,
            constraints=self._search.constraints,
            last=None if most in (None, MOST) else most - 1,
        )
        self._follow = Follow(
            self._places.store(self.study_name),
            [partial(callback, self) for callback in callbacks or ()],
            timeout,
        )
        try:
            spec = self._spec(capacity.cpus() if n_jobs == -1 else n_jobs)
            self._follow.run(spec, self._places, objective, self._mirror)
        finally:
            self._follow = None

    def stop(self) -> None:
        """End the running `optimize`: no trial starts any more, running ones are interrupted."""
        if self._follow is None:
            raise RuntimeError("`Study.stop` is supposed to be invoked inside a callback.")
        self._follow.stop()

    def enqueue_trial(
        self,
        params: dict[str, Any],
        user_attrs: dict[str, Any] | None = None,
        skip_if_exists: bool = False,
    ) -> None:
        """Give these values to the next trial without a proposal. Raises UserError during a run."""
        if self._follow is not None:
            raise UserError("enqueue_trial is not there in a callback; call it before optimize")
        if user_attrs:
            raise UserError("enqueue_trial(user_attrs=...) is not there; set them in the objective")
        if skip_if_exists and (
            params in self._queue or any(trial.params == params for trial in self.trials)
        ):
            return
        self._queue.append(dict(params))

    def add_trial(self, trial: FrozenTrial) -> None:
        """Not supported: raises UserError."""
        raise UserError("add_trial is not there: a study has the trials that it ran")

    def ask(self, fixed_distributions: Any = None) -> Any:
        """Not supported: raises UserError."""
        raise UserError(
            "ask and tell are not there: a trial runs where optimize has it run; give the objective"
            " as a function"
        )

    def tell(self, *_: Any, **__: Any) -> Any:
        """Not supported: raises UserError."""
        self.ask()

    def _spec(self, jobs: int) -> Spec:
        names, plan = metrics(len(self.directions)), self._schedule
        modes = [one.name.lower()[:3] for one in self.directions]
        if len(names) > 1:
            metric = [{"name": name, "mode": mode} for name, mode in zip(names, modes, strict=True)]
            objective: dict[str, Any] = {"metric": metric, "schedule": "fifo"}
        else:
            objective = {"metric": VALUE, "mode": modes[0], "schedule": plan.form}
            objective |= {} if plan.max_steps is None else {"max_steps": plan.max_steps}
        roomy = jobs <= capacity.cpus() or os.environ.get("RAY_ADDRESS")
        cpu = 1 if roomy else capacity.cpus() / jobs
        from regrow.experiment import script_folder

        return Spec.parse(
            {
                "name": self.study_name,
                "trainable": "pickled",
                **objective,
                "space": {},
                "search": self._search.form,
                "score": "final",
                "trials": self._wanted,
                "step_metric": {"name": STEP, "first": plan.first},
                "seed": self._search.seed,
                "concurrency": jobs,
                "resources": {"cpu": cpu},
                "enqueue": self._queue,
                "working_dir": str(script_folder()),
            }
        )
