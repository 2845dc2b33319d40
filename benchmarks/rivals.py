"""Optuna, Ray Tune, Syne Tune and SMAC as tuners of a simulated experiment (`clock.py`): their own
samplers, pruners and schedulers.

Every adapter passes on what its library would be told in a real experiment, in that order, and
nothing else. The options are each library's defaults, but for the rungs: 1, 3, 9 of 27 steps for
all that have rungs.

* Optuna: ask, report, should_prune, tell. A trial that is not pruned is told with its best score.
* Ray Tune: its schedulers are called as its TuneController does (Ray 2.60:
  `_process_trial_result`, `stop_trial` and the queue of pending trials, 200 for random
  configurations and one for a searcher), without Ray's processes.
* Syne Tune, SMAC: run in the Python of environments of their own, named by SYNE_PYTHON and
  SMAC_PYTHON (`syne_side.py`, `smac_side.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.clock import Config, Decision, Task

ETA = 3
BRACKETS = 4
"""As many as Hyperband has for 27 steps and an ETA of 3."""


# ---- Optuna


class Optuna:
    """A study with a sampler and a pruner."""

    def __init__(self, curves: Task, seed: int, sampler: str, pruner: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
        self._curves = curves
        self._active = {p.name: p for p in curves.spec.space.flat}
        self._forms = sorted(_forms(curves.space), key=lambda form: [*self._active].index(form[0]))
        self._study = optuna.create_study(
            # the Hyperband pruner draws its brackets from it
            study_name=f"{curves.spec.name}-{seed}",
            direction="minimize" if curves.mode == "min" else "maximize",
            sampler=_SAMPLERS[sampler](seed),
            pruner=_PRUNERS[pruner](curves.max_steps),
        )
        self._trials: list[optuna.Trial] = []
        self._best: list[float] = []

    def ask(self) -> Config:
        trial = self._study.ask()
        for name, kind, form in self._forms:
            if self._active[name].active(trial.params):
                _OPTUNAS[kind](trial, name, form)
        self._trials.append(trial)
        self._best.append(float("inf"))
        return trial.params

    def report(self, trial: int, step: int, score: float) -> Decision:
        handle, cost = self._trials[trial], self._curves.cost(score)
        self._best[trial] = min(self._best[trial], cost)
        handle.report(score, step)
        if step == self._curves.max_steps:
            # `cost` is its own inverse
            self._study.tell(handle, self._curves.cost(self._best[trial]))
        elif handle.should_prune():
            self._study.tell(handle, state=optuna.trial.TrialState.PRUNED)
            return "stop"
        return "continue"

    def fail(self, trial: int, step: int) -> None:
        self._study.tell(self._trials[trial], state=optuna.trial.TrialState.FAIL)


_OPTUNAS: Mapping[str, Callable[[optuna.Trial, str, list[Any]], Any]] = {
    "uniform": lambda trial, name, form: trial.suggest_float(name, *form),
    "loguniform": lambda trial, name, form: trial.suggest_float(name, *form, log=True),
    "int": lambda trial, name, form: trial.suggest_int(name, *form),
    "logint": lambda trial, name, form: trial.suggest_int(name, *form, log=True),
    "choice": lambda trial, name, form: trial.suggest_categorical(name, form),
}
_SAMPLERS: Mapping[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed),
}
_PRUNERS: Mapping[str, Callable[[int], optuna.pruners.BasePruner]] = {
    "none": lambda _: optuna.pruners.NopPruner(),
    "median": lambda _: optuna.pruners.MedianPruner(),
    "halving": lambda _: optuna.pruners.SuccessiveHalvingPruner(
        min_resource=1, reduction_factor=ETA
    ),
    "hyperband": lambda steps: optuna.pruners.HyperbandPruner(
        min_resource=1, max_resource=steps, reduction_factor=ETA
    ),
}


# ---- Ray Tune


class _Trial:
    """What Ray's schedulers look at in a trial."""

    is_saving = False

    def __init__(self, number: int, config: Config) -> None:
        self.trial_id = str(number)
        self.number, self.config = number, config
        self.status = "PENDING"
        self.last_result: dict[str, Any] = {}
        self.begun = False


class RayTune:
    """A scheduler and random configurations, or those of `OptunaSearch`; also the controller that
    the scheduler is given.
    """

    def __init__(self, curves: Task, seed: int, searcher: str, scheduler: str) -> None:
        from ray import tune
        from ray.tune import schedulers
        from ray.tune.search.optuna import OptunaSearch

        about: dict[str, Any] = {"metric": "score", "mode": curves.mode}
        units: dict[str, Any] = {
            "time_attr": "training_iteration",
            "max_t": curves.max_steps,
            "reduction_factor": ETA,
        }
        makers: dict[str, Callable[[], Any]] = {
            "fifo": schedulers.FIFOScheduler,
            "asha": lambda: schedulers.ASHAScheduler(**about, **units, grace_period=1),
            "asha-brackets": lambda: schedulers.ASHAScheduler(
                **about, **units, grace_period=1, brackets=BRACKETS
            ),
            "hyperband": lambda: schedulers.HyperBandScheduler(**about, **units),
            "median": lambda: schedulers.MedianStoppingRule(
                **about, time_attr="training_iteration", grace_period=1
            ),
        }
        domains: dict[str, Callable[[list[Any]], Any]] = {
            "uniform": lambda form: tune.uniform(*form),
            "loguniform": lambda form: tune.loguniform(*form),
            "int": lambda form: tune.randint(form[0], form[1] + 1),
            "logint": lambda form: tune.lograndint(form[0], form[1] + 1),
            "choice": tune.choice,
        }
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._max_steps = curves.max_steps
        self._scheduler = makers[scheduler]()
        self._space = {name: domains[kind](form) for name, kind, form in _forms(curves.space)}
        self._random = np.random.RandomState(seed)
        self._search: Any = None
        if searcher == "optuna":
            self._search = OptunaSearch(
                OptunaSearch.convert_search_space(self._space), **about, seed=seed
            )
        self._ahead = 1 if self._search else 200
        self._trials: list[_Trial] = []
        self._begun: list[_Trial] = []
        """By the clock's number: that of the start, and not of the proposal."""
        np.random.seed(seed)  # noqa: NPY002  # the schedulers draw from it

    # What the schedulers call.

    def get_trials(self) -> list[_Trial]:
        return self._trials

    def get_live_trials(self) -> list[_Trial]:
        return [trial for trial in self._trials if trial.status != "TERMINATED"]

    def stop_trial(self, trial: _Trial) -> None:
        if trial.status == "TERMINATED":
            return
        if trial.status == "RUNNING":
            self._scheduler.on_trial_complete(self, trial, trial.last_result)
            if self._search:
                self._search.on_trial_complete(trial.trial_id, trial.last_result)
        else:
            self._scheduler.on_trial_remove(self, trial)
            if self._search:
                self._search.on_trial_complete(trial.trial_id)
        trial.status = "TERMINATED"

    # What the clock calls.

    def ask(self) -> Config | int | None:
        while sum(trial.status == "PENDING" for trial in self._trials) < self._ahead:
            number = len(self._trials)
            config = self._search.suggest(str(number)) if self._search else self._draw()
            self._trials.append(_Trial(number, config))
            self._scheduler.on_trial_add(self, self._trials[-1])
        trial: _Trial | None = self._scheduler.choose_trial_to_run(self)
        if trial is None:
            return None
        trial.status = "RUNNING"
        if trial.begun:
            return self._begun.index(trial)
        trial.begun = True
        self._begun.append(trial)
        return trial.config

    def report(self, trial: int, step: int, score: float) -> Decision:
        handle = self._begun[trial]
        handle.last_result = {
            "training_iteration": step,
            "score": score,
            "trial_id": handle.trial_id,
        }
        action = self._scheduler.on_trial_result(self, handle, handle.last_result)
        if action != "STOP" and self._search:
            self._search.on_trial_result(handle.trial_id, handle.last_result)
        if action == "PAUSE":
            handle.status = "PAUSED"
            return "pause"
        if action == "STOP" or step == self._max_steps:
            self.stop_trial(handle)
            return "stop"
        return "continue"

    def fail(self, trial: int, step: int) -> None:
        handle = self._begun[trial]
        self._scheduler.on_trial_error(self, handle)
        if self._search:
            self._search.on_trial_complete(handle.trial_id, error=True)
        handle.status = "TERMINATED"

    def _draw(self) -> Config:
        return {
            name: domain.sample(random_state=self._random) for name, domain in self._space.items()
        }


# ---- in an environment of their own


class Elsewhere:
    """A tuner in a process of another Python, which answers one line for each line (`side.py`)."""

    variable: str
    """The variable of the environment that names the Python."""
    module: str
    _side: subprocess.Popen[str] | None = None
    version: str | None = None
    """None where it is not installed."""

    def __init__(self, curves: Task, seed: int, kind: str) -> None:
        about = {
            "mode": curves.mode,
            "max_t": curves.max_steps,
            "eta": ETA,
            "brackets": BRACKETS,
            "trainings": curves.trainings,
        }
        self._call("make", kind, seed, list(_forms(curves.space)), about)

    @classmethod
    def find(cls) -> str | None:
        """Starts the process, if there is none yet in this one; the version of the library, None
        where there is none.
        """
        python = os.environ.get(cls.variable)
        if python and cls._side is None:
            try:
                cls._side = subprocess.Popen(
                    [python, "-m", cls.module],
                    cwd=Path(__file__).parents[1],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    bufsize=1,
                )
                cls.version = cls._call("version")
            except (OSError, EOFError):
                return None
        return cls.version

    def ask(self) -> Config | int | None:
        answer: Config | int | None = self._call("ask")
        return answer

    def report(self, trial: int, step: int, score: float) -> Decision:
        answer: Decision = self._call("report", trial, step, score)
        return answer

    def fail(self, trial: int, step: int) -> None:
        self._call("fail", trial)

    def used(self) -> float:
        """Seconds of processor time of the other process."""
        seconds: float = self._call("used")
        return seconds

    @classmethod
    def _call(cls, *message: Any) -> Any:
        if cls._side is None or cls._side.stdin is None or cls._side.stdout is None:
            raise LookupError(f"the process of {cls.module} was not started")
        cls._side.stdin.write(json.dumps(message) + "\n")
        line = cls._side.stdout.readline()
        if not line:
            cls._side = None
            raise EOFError(f"{cls.module} ended at {message[:2]}: run it by hand")
        return json.loads(line)


class SyneTune(Elsewhere):
    variable, module = "SYNE_PYTHON", "benchmarks.syne_side"


class Smac(Elsewhere):
    variable, module = "SMAC_PYTHON", "benchmarks.smac_side"


def _forms(space: Mapping[str, Any]) -> list[tuple[str, str, list[Any]]]:
    """Name, keyword and arguments of each parameter."""
    return [(name, *next(iter(form.items()))) for name, form in space.items()]
