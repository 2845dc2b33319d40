"""`Tuner` and `run` in place of Ray Tune's: the same arguments, with an experiment of regrow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regrow.experiment import Experiment, StationOf, run_session
from regrow.infra.state.places import Places
from regrow.integrations.tune.analysis import ExperimentAnalysis
from regrow.integrations.tune.arguments import Arguments
from regrow.integrations.tune.callback_dispatcher import dispatching, named_wrongly
from regrow.integrations.tune.private import (
    RESOURCES,
    asked_for,
    check_version,
    tune_run,
)
from regrow.integrations.tune.recorded import recorded
from regrow.integrations.tune.results import NO_FILESYSTEM, ResultGrid, opened, stored_template
from regrow.integrations.tune.translation import Translation, TuneArguments, translated
from regrow.result import Result
from regrow.search.spec import Spec
from regrow.show.live import Live
from regrow.show.live.terminal import Terminal, echo
from regrow.tasks.errors import UserError
from regrow.tasks.trial.metric_values import MISSING

if TYPE_CHECKING:
    from regrow.show.live.terminal import Events

RESTARTS = (
    "restart: trials that have not failed continue from their last checkpoints, or stay as they"
    " are; to begin anew, give the experiment another name"
)
SKIP, RESTART = "skip", "restart"
"""Values of Ray's ResumeConfig."""
_OLD_KEEPING = {
    "keep_checkpoints_num": "num_to_keep",
    "checkpoint_score_attr": "checkpoint_score_attribute",
    "checkpoint_freq": "checkpoint_frequency",
    "checkpoint_at_end": "checkpoint_at_end",
}
"""Arguments of `tune.run` that older scripts give, and their places in a CheckpointConfig."""
INTERRUPTED = 3
"""Exit code of a script whose experiment was interrupted: what follows would use parts of it."""


def say(line: str) -> None:
    echo(f"regrow tune: {line}", flush=True)


class ScriptSession:
    """How the experiments of one script are run. `name`, `state`: override the script's, None: do
    not. `events`, `station_of`: see Experiment.run.

    `rays_own_names` makes a context for running regrow itself, in which the replaced names are
    Ray's again.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        state: str | None = None,
        quiet: bool = False,
        events: Events | None = None,
        station_of: StationOf | None = None,
        rays_own_names: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._name, self._state, self._quiet = name, state, quiet
        self.rays_own_names = rays_own_names
        self._events, self._station_of = events, station_of
        self._taken: dict[tuple[str | None, str], int] = {}
        """How many experiments have a name, by state root and name."""

    def run(self, arguments: TuneArguments) -> tuple[ResultGrid, Translation]:
        """Run an experiment, or resume it. Raises SpecError and UserError before anything is
        started, and SystemExit if it was interrupted.
        """
        check_version()
        if self._name is not None:
            arguments = replace(arguments, name=self._name)
        arguments = replace(arguments, state=self._state)
        found = self._numbered(translated(arguments, _default_name(arguments.trainable)))
        for line in found.notes:
            say(line)
        with self.rays_own_names():
            experiment = Experiment(found.trainable, **found.options)
            quiet = self._quiet or arguments.run.verbose == 0
            with dispatching(experiment.spec, found, arguments.run.callbacks or ()) as feed:
                result = experiment.run(
                    quiet=quiet,
                    retry_failed=arguments.retry_failed,
                    events=self._events,
                    station_of=self._station_of,
                )
        over = result.stopped_by == "planner" or feed.stopped
        if result.status == "interrupted" or (result.status == "stopped" and not over):
            say("the script ends here; the same command continues")
            sys.exit(INTERRUPTED)
        _raise_if_named_wrongly(result)
        grid = ResultGrid(result, found)
        grid.write_folders()
        if found.raises and grid.errors:
            raise grid.errors[0]
        return grid, found

    def opened(self, path: str) -> Result:
        """Return the experiment at a path of Tune's; `--state` and `--name` go before it."""
        return opened(path, state=self._state, name=self._name)

    def _numbered(self, found: Translation) -> Translation:
        """Add a number to the name of a script's further experiments with one name and state root:
        each has its own log.
        """
        name = found.options["name"]
        key = found.options.get("state"), name
        self._taken[key] = count = self._taken.get(key, 0) + 1
        if count > 1:
            found.options["name"] = f"{name[: 62 - len(str(count))]}-{count}"
            object.__setattr__(found.trainable, "experiment", found.options["name"])
        return found


SESSION = ScriptSession()
"""Session of scripts that import `regrow.tune`; `regrow tune` makes its own."""


def _raise_if_named_wrongly(result: Result) -> None:
    """Raise ValueError if no report has a metric that `stop` names; TuneError, as Ray Tune does, if
    none has the one that is optimized.
    """
    from ray.tune import TuneError

    missing = MISSING.format(result.spec.objective.name)
    ends = [trial.attempts[-1].reason for trial in result.trials if trial.attempts]
    if unknown := next(filter(named_wrongly, ends), None):
        raise ValueError(unknown)
    if ends and all(missing in why for why in ends):
        problem = "ValueError: Trial returned a result which did not include the specified metric"
        raise TuneError(f"{problem}: {ends[0]}")


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
        _tuner_kwargs: Any = None,
        _tuner_internal: Any = None,
        _entrypoint: Any = None,
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
        self._retry = self._anew = False
        self._results: ResultGrid | None = None

    def fit(self) -> ResultGrid:
        """Run the experiment to its end, or what is left of it; return its results."""
        if (result := self._restored) is None:
            self._results, _ = self.session.run(self._asked)
            return self._results
        live = Live(Terminal())
        with self.session.rays_own_names():
            spec = result.spec.to_json()
            spec["retries"] = {**spec.get("retries", {}), "anew": self._anew}
            run_session(
                name=result.name,
                spec=Spec.parse(spec),
                places=Places.at(result.state),
                retry_failed=self._retry,
                watch=live.watch,
                announce=live.announce,
            )
        self._results = ResultGrid(result.refresh(), template=stored_template(result))
        self._results.write_folders()
        return self._results

    def get_results(self) -> ResultGrid:
        """Return `fit`'s results, or a restored Tuner's. Raises RuntimeError before that."""
        if self._results is None and self._restored is not None:
            found = self._restored
            self._results = ResultGrid(found, template=stored_template(found))
        if self._results is None:
            raise RuntimeError("there are no results yet: call fit() first")
        return self._results

    @classmethod
    def restore(
        cls,
        path: str,
        trainable: Any,
        *,
        param_space: Any = None,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        storage_filesystem: Any = None,
        _resume_config: Any = None,
    ) -> Tuner:
        """Return a Tuner whose `fit` resumes the experiment at `path` (state root, slash, name),
        with the settings in its log.

        Raises UserError if there is none.
        """
        if storage_filesystem is not None:
            raise UserError(NO_FILESYSTEM)
        tuner = cls(trainable, param_space=param_space)
        with cls.session.rays_own_names():
            tuner._restored = cls.session.opened(path)
        if not resume_unfinished:
            say("Tuner.restore: resume_unfinished=False is not used: what is unfinished continues")
        again, anew = _retries(None, _resume_config)
        tuner._anew = restart_errored or anew
        tuner._retry = resume_errored or tuner._anew or again
        return tuner

    @classmethod
    def can_restore(cls, path: str, storage_filesystem: Any = None) -> bool:
        """Return whether there is an experiment at `path`."""
        if storage_filesystem is not None:
            raise UserError(NO_FILESYSTEM)
        try:
            cls.session.opened(path)
        except UserError:
            return False
        return True


def run(run_or_experiment: Any, name: str | None = None, **given: Any) -> ExperimentAnalysis:
    """Run like `tune.run`. Raises TuneError if trials failed, with `raise_on_failed_trial`."""
    from ray import tune

    call = Arguments.of_call("tune.run", tune_run(), given)
    settings = {key: call[key] for key in tune.TuneConfig.__dataclass_fields__ if key in given}
    if (resources := call["resources_per_trial"]) is not None:
        run_or_experiment = tune.with_resources(run_or_experiment, resources)
    if (start := call["restore"]) is not None:
        hint = "give the path in `config`, and read it in the trainable"
        raise UserError(f"tune.run: restore={start!r}: no first checkpoint is taken; {hint}")
    keeping = call["checkpoint_config"] or tune.CheckpointConfig()
    for old, new in _OLD_KEEPING.items():
        if (value := call[old]) and not getattr(keeping, new):
            setattr(keeping, new, value)
    failure = tune.FailureConfig(
        max_failures=call["max_failures"], fail_fast=call["fail_fast"] or False
    )
    run_config = tune.RunConfig.__dataclass_fields__
    own = {"failure_config", "checkpoint_config", "name"}
    places = {key: call[key] for key in run_config if key in given and key not in own}
    again, anew = _retries(call["resume"], call["resume_config"])
    arguments = TuneArguments(
        trainable=found_trainable(run_or_experiment),
        param_space=call["config"] or {},
        tune=tune.TuneConfig(**settings),
        run=recorded(tune.RunConfig)(
            name=name, failure_config=failure, checkpoint_config=keeping, **places
        ),
        retry_failed=again,
        anew=anew,
    )
    for line in call.unused():
        say(line)
    grid, found = Tuner.session.run(arguments)
    if grid.num_errors and call["raise_on_failed_trial"]:
        raise tune.TuneError(
            "Trials did not complete", [result.path for result in grid if result.error]
        )
    return ExperimentAnalysis(grid, default_metric=found.metric, default_mode=found.mode)


def _retries(resume: bool | str | None, config: Any) -> tuple[bool, bool]:
    """Return whether failed trials are tried again, and whether from their beginning. Unfinished
    ones continue in any case.
    """
    words = str(resume or "").upper()
    errored = SKIP if config is None else config.errored
    if config is not None and RESTART in (config.finished, config.unfinished):
        say(RESTARTS)
    return "ERRORED" in words or errored != SKIP, "RESTART" in words or errored == RESTART


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
