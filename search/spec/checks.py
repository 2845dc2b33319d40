"""Checks of a specification as a whole, run once, when it is made."""

from __future__ import annotations

from regrow.search import samplers, schedulers
from regrow.search.constraints import Constraint
from regrow.search.errors import SpecError
from regrow.search.options import chosen, nearest
from regrow.search.schedulers.base import Widening
from regrow.search.space import Choice, Constant
from regrow.search.space.smaller import is_number
from regrow.search.spec.auto import check as check_auto
from regrow.search.spec.command import check as check_command
from regrow.search.spec.keys import COMMAND, Keys
from regrow.search.spec.parts import IMPORT_PATH, Bundled
from regrow.search.spec.rllib import check as check_rllib

_RAY_OWN = {"CPU": "cpu", "GPU": "gpu", "memory": "memory", "object_store_memory": None}
"""Names that Ray refuses as custom resources, and their keys in a specification."""


def check(spec: Keys, *, recorded: bool) -> None:
    """Raise SpecError for the first conflict. `recorded`: the specification comes from a log;
    checks that later versions added are skipped.
    """
    _metrics(spec)
    for place, text in enumerate(spec.constraints):
        Constraint.parse(text, f"constraints.{place}")
    check_auto(spec.search, spec.schedule)
    spec = spec.resolved
    if not spec.own_scheduler:
        schedulers.make(spec.schedule, spec.setting)
        if not recorded:
            schedulers.check_acts(spec.schedule, spec.setting, spec.total)
    _steps(spec)
    _suggests(spec)
    _halves(spec)
    _trials(spec, _search(spec))
    _trainable(spec)
    _resources(spec, recorded=recorded)
    _on_oom(spec)
    _when(spec)
    if not recorded:
        _check_trials_differ(spec)


def _when(spec: Keys) -> None:
    """Raise SpecError for what later runs of a schedule could not do."""
    if spec.when is None:
        return
    again, moment = spec.when.each == "continue", spec.stop.deadline
    if again and spec.trials is None:
        problem = "has nothing to raise without trials"
        raise SpecError("when.each", "continue", problem, "write each: new, or give trials")
    if moment is not None and (again or isinstance(moment, str)):
        hint = "leave it out" if again else "write a span from the creation, such as 8h"
        raise SpecError("stop.deadline", moment, "would be over for a schedule's later runs", hint)


def _metrics(spec: Keys) -> None:
    if isinstance(spec.metric, str):
        if spec.mode is None:
            raise SpecError("mode", None, "is missing", "write mode: max or mode: min")
    elif not spec.metric:
        raise SpecError("metric", [], "is empty", "name at least one metric")
    elif len({metric.name for metric in spec.metric}) < len(spec.metric):
        names = [metric.name for metric in spec.metric]
        raise SpecError("metric", names, "names a metric twice", "give each name once")
    elif spec.mode is not None:
        raise SpecError("mode", spec.mode, "belongs to each metric here", "give each its mode")


def _steps(spec: Keys) -> None:
    """Raise SpecError for a step metric if each report must be one step."""
    if spec.step_metric is None:
        return
    name = spec.step_metric.name
    if name in {metric.name for metric in spec.metrics}:
        problem = "is to become better, it cannot count steps"
        hint = "name another metric, or leave step_metric out"
        raise SpecError("step_metric", name, problem, hint)
    for schedule in schedulers.named(spec.schedule):
        if schedulers.kind(schedule).layout == "population":
            problem = f"does not go with {schedule}, which copies trials at their reports"
            raise SpecError("step_metric", name, problem, "leave step_metric out")


def _suggests(spec: Keys) -> None:
    """Raise SpecError for keys that do not go with define-by-run trials, or only with these."""
    if not samplers.suggests(spec.search):
        if spec.enqueue:
            problem, hint = "is for search: define_by_run", "write points: in its place"
            raise SpecError("enqueue", list(spec.enqueue), problem, hint)
        return
    problem = "does not go with search: define_by_run"
    for key in ("points", "warm_start", "learn_from", "command"):
        if value := getattr(spec, key):
            raise SpecError(key, len(value), problem, "leave it out")
    if spec.repeats > 1:
        raise SpecError("repeats", spec.repeats, problem, "leave it out")
    if spec.resources.ranked:
        problem += ", whose trials are one process each"
        raise SpecError("resources.workers", spec.resources.widths[1], problem, "leave it out")


def _halves(spec: Keys) -> None:
    """Raise SpecError unless a sampler with budgets has a scheduler that keeps them."""
    takes = any(schedulers.kind(name).takes_budgets for name in schedulers.named(spec.schedule))
    if samplers.gives_budgets(spec.search) != takes:
        search = next(name for name in samplers.NAMES if samplers.gives_budgets(name))
        schedule = next(name for name in schedulers.NAMES if schedulers.kind(name).takes_budgets)
        hint = f"write both search: {search} and schedule: {schedule}"
        raise SpecError("search", chosen(spec.search), "is half of an algorithm", hint)


def _trials(spec: Keys, cells: int | None) -> None:
    """Raise SpecError for trials that do not fit `cells`, which the sampler can propose."""
    if spec.trials is None and cells is None and not spec.limited:
        hint = (
            "write the total number of trials, or budget (30: as many steps as 30 full trainings),"
            " stop.dollars or stop.deadline"
        )
        raise SpecError("trials", None, "is missing", hint)
    _budget(spec)
    if spec.trials is not None and cells is not None and spec.trials > cells:
        raise SpecError("trials", spec.trials, f"the grid has only {cells} cells", f"write {cells}")
    if spec.trials is not None and spec.trials % spec.repeats:
        hint = f"write {spec.trials - spec.trials % spec.repeats + spec.repeats}"
        raise SpecError("trials", spec.trials, f"is no multiple of repeats ({spec.repeats})", hint)


def _budget(spec: Keys) -> None:
    """Raise SpecError for a budget without a trial's length, or for less than one trial."""
    budget = spec.budget
    if budget is None or budget.hours is not None:
        return
    key = "trainings" if budget.steps is None else "steps"
    given = getattr(budget, key)
    if spec.max_steps is None:
        hint = "write max_steps: 27, or a budget in hours, or trials in its place"
        problem = "is a number of steps, and how many a training has is not given"
        raise SpecError(f"budget.{key}", given, problem, hint)
    if (spec.budget_steps or 0) < spec.max_steps:
        problem = f"is less than one full training, which has {spec.max_steps:,} steps (max_steps)"
        hint = "give at least as many" if key == "steps" else "give at least 1"
        raise SpecError(f"budget.{key}", given, problem, hint)


def _search(spec: Keys) -> int | None:
    """Return how many trials the sampler can propose, None for any number. Raises SpecError."""
    cells = None if spec.own_sampler else samplers.size(spec.search, spec.setting)
    named = () if spec.learn_from in (None, "auto") else spec.learn_from
    if len({*named}) < len(named):
        raise SpecError("learn_from", list(named), "names one twice", "name each once")
    if named and not spec.takes_first:
        problem = (
            f"does not go with {chosen(spec.search)}, which itself decides what is tried first"
        )
        raise SpecError("learn_from", named, problem, "leave it out")
    for place, point in enumerate(spec.points):
        key = f"points.{place}"
        if cells is not None and point.metrics is None:
            problem = "has no place where every configuration is tried once anyway"
            raise SpecError(key, point.config, problem, "leave points out")
        spec.space.point(point.config, key)
        needed = [spec.objective.name, *(limit.metric for limit in spec.limits)]
        if point.metrics is not None and (
            lacking := [name for name in needed if name not in point.metrics]
        ):
            hint = f"give {lacking[0]}, or leave metrics out"
            what = "the objective" if lacking[0] == needed[0] else "a metric of the constraints"
            raise SpecError(f"{key}.metrics", point.metrics, f"lacks {what}", hint)
    return None if cells is None else cells * spec.repeats


def _trainable(spec: Keys) -> None:
    if spec.rllib is not None:
        trainable = spec.trainable if spec.trainable != COMMAND else ""
        for key, value in (("trainable", trainable), ("command", spec.command)):
            if value:
                raise SpecError(key, value, "stands beside rllib", "keep one of them")
        check_rllib(spec.rllib, spec.space, workers=spec.resources.widths[1])
    elif spec.command:
        if spec.trainable != COMMAND:
            hint = "keep one of them"
            raise SpecError("trainable", spec.trainable, "stands beside a command", hint)
        if spec.checkpoint.every_steps is not None:
            problem = "is the command's own business"
            hint = "leave it out: what it saved is kept at its next report"
            raise SpecError("checkpoint.every_steps", spec.checkpoint.every_steps, problem, hint)
        check_command(
            spec.command, spec.space, max_steps=spec.max_steps, file=spec.report.file, env=spec.env
        )
    elif spec.trainable == COMMAND:
        hint = "write trainable: file.py:function, or command: [python, file.py, ...]"
        raise SpecError("trainable", None, "is missing", hint)
    elif spec.trainable != "pickled" and not IMPORT_PATH.fullmatch(spec.trainable):
        hint = "write file.py:function or package.module:Class"
        raise SpecError("trainable", spec.trainable, "names no function or class", hint)
    if spec.report.file is not None and not spec.command:
        problem, hint = "is for a command", "leave it out; a trainable calls trial.report"
        raise SpecError("report.file", spec.report.file, problem, hint)


def _resources(spec: Keys, *, recorded: bool) -> None:
    wanted = spec.resources
    # a log has both: the part was decided when a session began
    if wanted.gpu_memory and wanted.gpu and not recorded:
        problem = "stands beside gpu, and decides it"
        raise SpecError("resources.gpu_memory", wanted.gpu_memory, problem, "keep one of them")
    _custom(wanted, "resources", "resources: {{{}: ...}}")
    if wanted.children is not None:
        _custom(wanted.children, "resources.children", "resources: {{children: {{{}: ...}}}}")
    if not wanted.grouped:
        if not wanted.bundle and spec.concurrency is None:
            problem = "a trial that needs nothing fits any number of times"
            raise SpecError("resources.cpu", wanted.cpu, problem, "give cpu, or concurrency")
    else:
        _group(spec)


def _on_oom(spec: Keys) -> None:
    """Raise SpecError for a parameter that cannot become smaller."""
    domains = {parameter.name: parameter.domain for parameter in spec.space.flat}
    for name in spec.on_oom:
        key, domain = f"on_oom.{name}", domains.get(name)
        if domain is None:
            hint = nearest(name, domains)
            raise SpecError(key, spec.on_oom[name], "is no parameter of the space", hint)
        if isinstance(domain, Choice | Constant):
            values = domain.values if isinstance(domain, Choice) else (domain.value,)
            if not any(is_number(value) and value > 0 for value in values):
                problem = "has no numbers above 0 that could become smaller"
                raise SpecError(key, spec.on_oom[name], problem, "name another parameter")


def _custom(part: Bundled, key: str, form: str) -> None:
    for name, ours in _RAY_OWN.items():
        if name in part.custom:
            problem = "is no custom resource" if ours else "is no resource of a trial"
            hint = f"write {form.format(ours)}" if ours else "leave it out"
            raise SpecError(f"{key}.custom.{name}", part.custom[name], problem, hint)


def _group(spec: Keys) -> None:
    """Raise SpecError for an impossible group of workers, or trial with children."""
    wanted, children = spec.resources, spec.resources.children
    if children is not None and not children.bundle:
        problem, hint = "asks for nothing", "give cpu, gpu, memory or custom, or leave children out"
        raise SpecError("resources.children.cpu", children.cpu, problem, hint)
    if not wanted.bundle:
        problem = "a trial with children needs something of its own"
        if wanted.ranked:
            problem = "a worker needs something"
        raise SpecError("resources.cpu", wanted.cpu, problem, "give cpu, gpu, memory or custom")
    key = "workers" if wanted.ranked else "children"
    value = wanted.model_dump(mode="json", exclude_defaults=True)[key]
    if spec.command:
        hint = "leave it out; a command is one process, and may start others by itself"
        raise SpecError(f"resources.{key}", value, "is for a trainable", hint)
    least, most = wanted.widths
    for name in schedulers.named(spec.schedule):
        if least == most and issubclass(schedulers.kind(name), Widening):
            hint = f"write workers: [1, {max(4, most)}], or another schedule"
            problem = f"leaves the schedule {name} nothing to change"
            raise SpecError(f"resources.{key}", value, problem, hint)


def _check_trials_differ(spec: Keys) -> None:
    """Raise SpecError if all trials would be the same, unless the user asks for that."""
    domains = [p for p in spec.space.parameters if not isinstance(p.domain, Constant)]
    if (
        domains
        or spec.points
        or spec.own_sampler
        or samplers.suggests(spec.search)
        or spec.total <= spec.repeats
    ):
        return
    problem = f"searches nothing: all {spec.total} trials would be the same"
    first = next((p.name for p in spec.space.parameters if "." not in p.name), "lr")
    hint = (
        f"give a range, {first}: {{uniform: [0, 1]}}; or write trials: 1, or repeats: {spec.total}"
        " for as many seeds"
    )
    raise SpecError("space", spec.space.to_json(), problem, hint)
