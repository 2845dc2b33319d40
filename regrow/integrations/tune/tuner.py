"""`Tuner` and `run` in place of Ray Tune's: the same arguments, with an experiment of regrow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from regrow.experiment import Experiment, run_session
from regrow.infra.state.places import Places
from regrow.integrations.tune.analysis import ExperimentAnalysis
from regrow.integrations.tune.callback_dispatcher import feeding
from regrow.integrations.tune.private import RESOURCES, asked_for, check_version
from regrow.integrations.tune.results import ResultGrid
from regrow.integrations.tune.translation import Translation, TuneArguments, translated
from regrow.result import Result
from regrow.result import open as open_experiment
from regrow.show.live import Live
from regrow.show.live.output import Terminal
from regrow.show.live.terminal import tell
from regrow.tasks.errors import UserError
from regrow.tasks.trial.metric_values import MISSING

INTERRUPTED = 3
"""Exit code of a script whose experiment was interrupted: what follows would use parts of it."""


def say(line: str) -> None:
    tell(f"regrow tune: {line}", flush=True)


class Session:
    """How the experiments of one script are run. `name`, `state`: override the script's, None: do
    not.

    `apart` makes a context for running regrow itself, in which the replaced names are Ray's again.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        state: str | None = None,
        quiet: bool = False,
        apart: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._name, self._state, self._quiet, self.apart = name, state, quiet, apart
        self._taken: dict[str, int] = {}

    def run(self, asked: TuneArguments) -> tuple[ResultGrid, Translation]:
        """Run an experiment, or resume it. Raises SpecError and UserError before anything is
        started, and SystemExit if it was interrupted.
        """
        check_version()
        if self._name is not None:
            asked = replace(asked, name=self._name)
        found = self._numbered(translated(asked, _default_name(asked.trainable)))
        options = {**found.options, **({"state": self._state} if self._state else {})}
        for line in found.said:
            say(line)
        with self.apart():
            experiment = Experiment(found.trainable, **options)
            with feeding(experiment.spec, found, asked.run.callbacks or ()) as feed:
                result = experiment.run(quiet=self._quiet)
        over = result.stopped_by == "planner" or feed.stopped
        if result.status == "interrupted" or (result.status == "stopped" and not over):
            say("the script ends here; the same command continues")
            sys.exit(INTERRUPTED)
        _raise_if_named_wrongly(result)
        return ResultGrid(result, found), found

    def _numbered(self, found: Translation) -> Translation:
        """Number further experiments with the same name in one script: each has its own log."""
        name = found.options["name"]
        self._taken[name] = count = self._taken.get(name, 0) + 1
        if count > 1:
            found.options["name"] = f"{name}-{count}"
            object.__setattr__(found.trainable, "experiment", found.options["name"])
        return found


SESSION = Session()
"""Session of scripts that import `regrow.tune`; `regrow tune` makes its own."""


def _raise_if_named_wrongly(result: Result) -> None:
    """Raise ValueError if no report has the metric that is optimized, as Ray Tune does."""
    missing = MISSING.format(result.spec.objective.name)
    ends = [trial.attempts[-1].reason for trial in result.trials if trial.attempts]
    if ends and all(missing in why for why in ends):
        raise ValueError(
            f"Trial returned a result which did not include the specified metric: {ends[0]}"
        )


def _default_name(trainable: Any) -> str:
    """Return the script's name and the trainable's: with Tune's time each run would be another."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    own = trainable if isinstance(trainable, str) else getattr(trainable, "__name__", "trainable")
    return f"{Path(script).stem}-{own}" if script else own


class Tuner:
    """Ray Tune's Tuner, durable: `fit` resumes the experiment of this name, if it is there."""

    session = SESSION

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: Any = None,
        tune_config: Any = None,
        run_config: Any = None,
        **_: Any,
    ) -> None:
        from ray import tune

        self._asked = TuneArguments(
            trainable=found_trainable(trainable),
            param_space=param_space or {},
            tune=tune_config or tune.TuneConfig(),
            run=run_config or tune.RunConfig(),
        )
        self._restored: Result | None = None
        """An existing experiment: its log has the specification."""
        self._retry = False
        self._results: ResultGrid | None = None

    def fit(self) -> ResultGrid:
        """Run the experiment to its end, or what is left of it; return its results."""
        if (result := self._restored) is None:
            self._results, _ = self.session.run(self._asked)
            return self._results
        live = Live(Terminal())
        with self.session.apart():
            run_session(
                name=result.name,
                places=Places.at(result.state),
                retry_failed=self._retry,
                watch=live.watch,
                announce=live.announce,
            )
        self._results = ResultGrid(result.refresh())
        return self._results

    def get_results(self) -> ResultGrid:
        """Return `fit`'s results, or a restored Tuner's. Raises RuntimeError before that."""
        if self._results is None and self._restored is not None:
            self._results = ResultGrid(self._restored)
        if self._results is None:
            raise RuntimeError("there are no results yet: call fit() first")
        return self._results

    @classmethod
    def restore(
        cls,
        path: str,
        trainable: Any,
        *,
        resume_errored: bool = False,
        restart_errored: bool = False,
        **_: Any,
    ) -> Tuner:
        """Return a Tuner whose `fit` resumes the experiment at `path` (state root, slash, name),
        with the settings in its log.

        Raises UserError if there is none.
        """
        root, name = _split(path)
        tuner = cls(trainable)
        with cls.session.apart():
            tuner._restored = open_experiment(name, root)
        tuner._retry = resume_errored or restart_errored
        return tuner

    @staticmethod
    def can_restore(path: str, *_: Any, **__: Any) -> bool:
        """Return whether there is an experiment at `path`."""
        root, name = _split(path)
        try:
            open_experiment(name, root)
        except UserError:
            return False
        return True


def _split(path: str) -> tuple[str, str]:
    root, _, name = str(path).rstrip("/").rpartition("/")
    return root or ".", name


def run(run_or_experiment: Any, name: str | None = None, **given: Any) -> ExperimentAnalysis:
    """Run like `tune.run`. Raises TuneError if trials failed, with `raise_on_failed_trial`."""
    from ray import tune

    settings = {
        key: given[key]
        for key in tune.TuneConfig.__dataclass_fields__
        if key in given and not key.startswith("_")
    }
    if (resources := given.get("resources_per_trial")) is not None:
        run_or_experiment = tune.with_resources(run_or_experiment, resources)
    checkpoints = given.get("checkpoint_config")
    failure = tune.FailureConfig(max_failures=given.get("max_failures", 0))
    places = {
        key: given[key]
        for key in ("stop", "storage_path", "callbacks", "verbose", "progress_reporter")
        if key in given
    }
    asked = TuneArguments(
        trainable=found_trainable(run_or_experiment),
        param_space=given.get("config") or {},
        tune=tune.TuneConfig(**settings),
        run=tune.RunConfig(
            name=name, failure_config=failure, checkpoint_config=checkpoints, **places
        ),
    )
    grid, found = Tuner.session.run(asked)
    if grid.num_errors and given.get("raise_on_failed_trial", True):
        raise tune.TuneError(
            "Trials did not complete", [result.path for result in grid if result.error]
        )
    return ExperimentAnalysis(grid, found.metric, found.mode)


REGISTERED: dict[str, Any] = {}
"""Trainables given to `register_trainable`, by name."""


def register_trainable(name: str, trainable: Any, *_: Any, **__: Any) -> None:
    """Register a trainable like `tune.register_trainable`."""
    REGISTERED[name] = trainable


def found_trainable(trainable: Any) -> Any:
    """Return a trainable, also by its registered name. Raises UserError for what cannot run."""
    if isinstance(trainable, str):
        if trainable not in REGISTERED:
            hint = "an algorithm of RLlib's is written as rllib: in a file of ours"
            raise UserError(
                f"the trainable {trainable!r} is not registered by tune.register_trainable; {hint}"
            )
        return REGISTERED[trainable]
    if trainable is not None and not callable(trainable):
        raise UserError(
            f"a {type(trainable).__name__} is no function and no class Trainable; give the training"
            " function itself"
        )
    return trainable


def with_parameters(trainable: Any, **given: Any) -> Any:
    """Bind parameters like `tune.with_parameters`: they are pickled with the trainable into the
    experiment's state, and last as long.
    """
    import functools

    if not isinstance(trainable, type):
        bound = functools.wraps(trainable, updated=())(functools.partial(trainable, **given))
        setattr(bound, RESOURCES, asked_for(trainable))
        return bound

    base: Any = trainable

    def setup(self: Any, config: dict[str, Any]) -> None:
        base.setup(self, config, **given)

    return type(trainable.__name__, (trainable,), {"setup": setup})
