"""Translates a Tuner: the trainable to pickle and the keys of a specification."""

from __future__ import annotations

import datetime as dt
import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from regrow.infra.state.places import Places
from regrow.integrations.tune.arguments import Arguments
from regrow.integrations.tune.hyperopt_space import is_hyperopts
from regrow.integrations.tune.hyperopt_space import translate as hyperopts
from regrow.integrations.tune.own_searcher import OwnSearcher
from regrow.integrations.tune.own_searcher import prepared as own_searcher
from regrow.integrations.tune.population import changeable, first_points, with_mutations
from regrow.integrations.tune.recorded import storage_path
from regrow.integrations.tune.resources import bundle, resources
from regrow.integrations.tune.schedules import ITERATION, TranslatedScheduler, scheduling
from regrow.integrations.tune.searchers import Searching, searching
from regrow.integrations.tune.space import NOTHING, Translated, translate
from regrow.integrations.tune.stopping import StopConditions, stopping
from regrow.integrations.tune.templates import Suggested, render
from regrow.integrations.tune.trainables import CHDIR, Trainable
from regrow.search.errors import SpecError
from regrow.search.samplers.random_search import drawn
from regrow.search.space import Space
from regrow.search.spec import as_name

ENDLESS = 100_000
"""Number of samples if `num_samples=-1` asks for as many as the time allows."""
DEFAULT_SCORE = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneArguments:
    """The arguments of a Tuner, or of `tune.run`."""

    trainable: Any
    param_space: Mapping[str, Any]
    tune: Any
    run: Any
    name: str | None = None
    state: str | None = None
    """Both override the script's."""
    retry_failed: bool = False
    """Failed trials are tried again; `anew`: from their beginning."""
    anew: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The translation of a Tuner.

    Attributes:
        options: keys of the specification.
        metric: as the script set it, None if not.
        mode: as the script set it, None if not.
        said: what is translated inexactly, a line each.
        scheduler: of the user's class, see TranslatedScheduler; None for none.
        raises: whether the first failure is raised.

    """

    trainable: Trainable
    options: dict[str, Any]
    metric: Any
    mode: Any
    stopping: StopConditions
    notes: list[str] = field(default_factory=list)
    scheduler: Any = None
    raises: bool = False


def translated(arguments: TuneArguments, default_name: str) -> Translation:
    """Translate a Tuner. Raises SpecError for what has no counterpart."""
    from ray.tune import CheckpointConfig, FailureConfig

    if not isinstance(arguments.param_space, Mapping):
        hint = 'write param_space={"lr": tune.loguniform(1e-4, 1e-1)}'
        raise SpecError("param_space", arguments.param_space, "is not a map of names", hint)
    notes: list[str] = []
    config, run = Arguments.of_settings(arguments.tune), Arguments.of_settings(arguments.run)
    failures, keeping = (
        Arguments.of_settings(given or kind())
        for given, kind in (
            (run.failure_config, FailureConfig),
            (run.checkpoint_config, CheckpointConfig),
        )
    )
    search = searching(config.search_alg, notes.append)
    schedule = scheduling(config.scheduler, notes.append)
    metric = config.metric or search.metric or schedule.metric
    mode = config.mode or search.mode or schedule.mode
    if schedule.own is not None and isinstance(metric, str):
        schedule.own.set_search_properties(metric, mode or "max")
    stop = stopping(run.stop)
    space, trials, points = _space(arguments, config, search, schedule, notes)
    wanted = arguments.name or run.name
    name = as_name(wanted or default_name, "tune")
    if wanted not in (None, "", name):
        notes.append(f"name: {wanted!r} is called {name} here")
    options: dict[str, Any] = {
        "name": name,
        "space": space.space,
        "trials": trials,
        "search": search.search,
        "seed": search.seed,
        "concurrency": config.max_concurrent_trials or search.concurrency,
        "score": DEFAULT_SCORE,
        "duplicates": True,
        "resources": resources(arguments.trainable, _example(space), notes.append),
        **_objective(metric, mode, notes),
        **_ending(config, schedule, stop, failures.fail_fast),
        **_schedule(schedule, space),
        **_keeping(keeping, metric, mode, notes),
    }
    own, state = None, arguments.state or storage_path(arguments.run)
    if search.own is not None:
        pickled = own_searcher(search.own, arguments.param_space, metric, mode, trials)
        root = Places.at(state).root
        own = OwnSearcher(pickled=pickled, root=root)
    if search.defined is not None:
        options["enqueue"] = points or None
    else:
        options["points"] = [{"config": point} for point in points] or None
    if search.repeats > 1:
        # num_samples counts all trials; what is left of the last configuration's is added.
        options |= {"repeats": search.repeats, "trials": trials + -trials % search.repeats}
    most = failures.max_failures
    options["retries"] = {"error": "unlimited" if most < 0 else most, "anew": arguments.anew}
    if run.storage_filesystem is not None:
        problem = "is a file system of PyArrow's, which no other process can open by its name"
        hint = "give storage_path alone: a folder, or s3://BUCKET/PREFIX"
        raise SpecError("storage_filesystem", repr(run.storage_filesystem), problem, hint)
    run.get("storage_path")
    options["state"] = state
    fast = failures.fail_fast
    for elsewhere in ("callbacks", "verbose"):  # which the Tuner itself uses
        run.get(elsewhere)
    notes += [line for settings in (config, run, failures, keeping) for line in settings.unused()]
    trainable = Trainable(
        theirs=arguments.trainable,
        template=space.template,
        experiment=name,
        stop=stop.trial,
        explored=schedule.explored,
        defined=search.defined,
        searcher=own,
        bundle=bundle(options["resources"]),
        repeats=search.repeats if search.indexed else 1,
        root=None if state is not None and "://" in state else Places.at(state).root,
        origin=os.getcwd(),
        apart=os.environ.get(CHDIR, "1") != "0",
    )
    chosen = {key: value for key, value in options.items() if value is not None}
    return Translation(
        trainable=trainable,
        options=chosen,
        metric=metric,
        mode=mode,
        stopping=stop,
        notes=notes,
        scheduler=schedule.own,
        raises=isinstance(fast, str) and fast.lower() == "raise",
    )


def _objective(metric: Any, mode: Any, notes: list[str]) -> dict[str, Any]:
    if metric is None:
        notes.append(
            f"no metric is named: trials are ranked by {ITERATION} until get_best_result names one"
        )
        return {"metric": ITERATION, "mode": "max"}
    if isinstance(metric, str):
        return {"metric": metric, "mode": mode or "max"}
    several = [{"name": name, "mode": how} for name, how in zip(metric, mode, strict=True)]
    return {"metric": several, "mode": None}


def _space(
    arguments: TuneArguments,
    config: Arguments,
    search: Searching,
    schedule: TranslatedScheduler,
    notes: list[str],
) -> tuple[Translated, int, list[dict[str, Any]]]:
    """Return the space including mutated parameters; the number of configurations, samples times
    the cells of grids; and the configurations to try first.
    """
    if search.own is not None:
        template = Suggested(dict(arguments.param_space))
        space = Translated(space={}, template=template, cells=1)
        return space, _samples(config), []
    given = dict(arguments.param_space) or dict(search.space or {})
    if search.defined is not None:  # trials tell the space, which is empty here
        beside = translate(given)
        if names := [name for name in beside.searched if name != NOTHING]:
            hint = "let the function of the searcher suggest them, too"
            raise SpecError("param_space", ", ".join(names), "is beside a function's space", hint)
        space = Translated(space={}, template=beside.template, cells=1)
        return space, _samples(config), list(search.points)
    if is_hyperopts(given):
        domains, template = hyperopts(given)
        space = Translated(space=domains, template=template, cells=1)
    else:
        space = translate(given)
    trials = _samples(config) * space.cells
    if schedule.mutations:
        space, first = with_mutations(space, schedule.mutations, search.seed, notes.append, trials)
        flat = first_points(space.space, first, trials, search.seed)
        whole = Space.parse(space.space)
    else:
        whole = Space.parse(space.space)
        flat = [
            _point(whole, point, number, search.seed) for number, point in enumerate(search.points)
        ]
    return space, trials, [whole.nest(point) for point in flat]


def _samples(config: Arguments) -> int:
    try:
        samples = operator.index(config.num_samples)
    except TypeError:
        hint = "write num_samples=10"
        given = config.num_samples
        raise SpecError("num_samples", given, "is not a whole number", hint) from None
    if samples < 0 and config.time_budget_s is None:
        raise SpecError(
            "num_samples", samples, "never ends", "give time_budget_s as well, or a number"
        )
    return ENDLESS if samples < 0 else samples


def _point(whole: Space, point: Mapping[str, Any], number: int, seed: int) -> dict[str, Any]:
    """Return the flat configuration of one of Tune's points; what it omits is drawn at random."""
    names = {parameter.name for parameter in whole.flat}
    given = {key.replace("/", "."): value for key, value in point.items()}
    known = {key: value for key, value in given.items() if key in names}
    return drawn(whole, number, seed + number, known)


def _ending(
    config: Any, schedule: TranslatedScheduler, stop: StopConditions, fast: object
) -> dict[str, Any]:
    """Return when trials and the experiment end. With a clock, the trial's stop limits steps.
    `fast`: whether the first failure is the end.
    """
    steps = None if schedule.clock else stop.steps
    # Rungs are derived from it; a trial's stop may come earlier.
    most = steps if schedule.most is None else schedule.most
    budget = config.time_budget_s
    seconds = budget.total_seconds() if isinstance(budget, dt.timedelta) else budget
    seconds = min((float(s) for s in (seconds, stop.seconds) if s is not None), default=None)
    ends: dict[str, Any] = {} if seconds is None else {"hours": seconds / 3600}
    ends["failures"] = 1 if fast else "unlimited"
    return {
        "max_steps": most,
        "stop": ends,
        "step_metric": schedule.clock,
    }


def _schedule(schedule: TranslatedScheduler, space: Translated) -> dict[str, Any]:
    found = schedule.schedule
    if schedule.mutations and isinstance(found, dict):
        ((name, options),) = found.items()
        mutate = changeable(space.space, schedule.mutations)
        return {"schedule": {name: {**options, "mutate": mutate}}}
    return {"schedule": found}


def _keeping(given: Arguments, metric: Any, mode: Any, notes: list[str]) -> dict[str, Any]:
    keep: dict[str, Any] = {}
    if given.checkpoint_frequency:
        keep["every_steps"] = int(given.checkpoint_frequency)
    count, by, order = (
        given.num_to_keep,
        given.checkpoint_score_attribute,
        given.checkpoint_score_order,
    )
    if count and by is not None:
        keep |= {"keep_last": 1, "keep_best": count}
        if (by, order) != (metric, mode or "max"):
            notes.append(
                f"CheckpointConfig: checkpoints are kept by the search's metric, {metric} ({mode}),"
                f" not by {by} ({order})"
            )
    elif count:
        keep |= {"keep_last": count, "keep_best": 0}
    return {"checkpoint": keep} if keep else {}


def _example(space: Translated) -> dict[str, Any]:
    """Return an example configuration, for code that needs one before there are any trials."""
    whole = Space.parse(space.space)
    flat = {p.name: p.domain.quantile(0.5) for p in whole.flat}
    return render(space.template, whole.nest(flat), 0)
