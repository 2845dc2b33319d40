"""The specification of an experiment: one frozen, validated form, whether it came from YAML or from Python.

The fields, their defaults and their checks live here; reading files does not (that is `regrow.specfile`). The search
space is parsed by `space.py`, the names under `search` and `schedule` are known to their registries.
"""

from __future__ import annotations

import math
import re
import warnings
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from regrow.search import samplers, schedulers
from regrow.search.constraints import Constraint
from regrow.search.described import descriptions
from regrow.search.endings import Ending
from regrow.search.errors import SpecError
from regrow.search.options import chosen, is_path, nearest
from regrow.search.scalars import as_yaml_number
from regrow.search.setting import Setting
from regrow.search.space import Space

Mode = Literal["min", "max"]

_TRAINABLE = re.compile(r"(?:[^:\n]+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_RAY_OWN = {"CPU": "cpu", "GPU": "gpu", "memory": "memory", "object_store_memory": None}
"""Names that Ray refuses as custom resources, and what they are called here."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SECRET = re.compile(r"(?:^|[_.-])(?:api)?(?:key|token|pass|pat)(?:$|[_.-])|passw|secret|credential", re.IGNORECASE)
"""Names of secrets. By whole words: TOKENIZERS_PARALLELISM is none."""
_SECRET_VALUE = re.compile(r"://[^/@\s]*:[^/@\s]+@|^(?:sk-|ghp_|github_pat_|glpat-|hf_|xox[bp]-|AKIA)\w{8}")
"""An address with a password in it, or the beginning of a token of a well-known service."""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema says what stands below each field: editors show it, and the reference is made of it."""
        schema = handler(core)
        fields = handler.resolve_ref_schema(schema)["properties"]
        for name, text in descriptions(cls).items():
            fields[name].setdefault("description", text)
        return schema


class Metric(_Part):
    """A metric that the trainable reports, and whether less or more of it is better."""

    name: Annotated[str, Field(min_length=1, max_length=250)]
    """As the trainable reports it."""
    mode: Mode
    """Whether less (`min`) or more (`max`) of it is better."""


def is_secret(name: str) -> bool:
    """Whether a variable or key of this name is likely to hold a secret, whose value must not be shown or stored."""
    return _SECRET.search(name) is not None


def _bytes(value: Any) -> Any:
    """'2 GiB' or '500MB' as a number of bytes; anything else unchanged, for pydantic to judge."""
    if isinstance(value, str) and (m := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", value.lower())):
        return int(float(m[1]) * _UNITS[m[2]])
    return value


class Resources(_Part):
    """What one attempt needs on one node, in Ray's units; fractions of a CPU or GPU share it."""

    cpu: Annotated[Number, Field(ge=0)] = 1
    """CPUs."""
    gpu: Annotated[Number, Field(ge=0)] = 0
    """GPUs."""
    memory: Annotated[Count, BeforeValidator(_bytes), Field(ge=0)] = 0
    """Bytes, or text such as "2GiB"; 0 means not limited."""
    custom: dict[str, Annotated[Number, Field(gt=0)]] = {}
    """Custom Ray resources by name."""


Budget = Annotated[Count, Field(ge=0)] | Literal["unlimited"]


class Retries(_Part):
    """How many more attempts a trial gets after a loss, counted apart by class."""

    preempted: Budget = "unlimited"
    """The node went away, or the driver did."""
    infrastructure: Budget = 5
    """The worker was killed, ran out of memory, storage was away."""
    error: Budget = 0
    """The trainable raised."""
    spot: Annotated[Count, Field(ge=0)] = 3
    """After so many attempts whose node went away, a trial goes to nodes that are not spot, where there are any."""

    def allows(self, cause: str, used: int) -> bool:
        """Whether another attempt may follow after `used` attempts have ended for `cause`."""
        budget: Budget = getattr(self, cause)
        return budget == "unlimited" or used <= budget


class Checkpointing(_Part):
    """When checkpoints are taken, and which are kept. Steps count from 1."""

    every_steps: Annotated[Count, Field(ge=1)] | None = None
    """At every so many steps. With neither this nor `every_seconds` given: at every step."""
    every_seconds: Annotated[Number, Field(gt=0)] | None = None
    """At the first report after so many seconds since the last one."""
    keep_last: Annotated[Count, Field(ge=1)] = 2
    """How many of a trial's latest checkpoints are kept."""
    keep_best: Annotated[Count, Field(ge=0)] = 1
    """How many of its best ones (by the objective at their step) are kept beside these."""

    @model_validator(mode="after")
    def _one_rhythm(self) -> Self:
        if self.every_steps is not None and self.every_seconds is not None:
            raise SpecError(
                key="checkpoint.every_seconds", value=self.every_seconds, problem="excludes every_steps", hint="give one of them"
            )
        return self


class Plateau(_Part):
    """The best value improved by no more than `tolerance` for so many trials (or, for one trial, steps)."""

    trials: Annotated[Count, Field(ge=1)] | None = None
    """For an experiment: trials that ended since."""
    steps: Annotated[Count, Field(ge=1)] | None = None
    """For a trial: steps since."""
    tolerance: Annotated[Number, Field(ge=0)] = 0.0
    """In the objective's own unit."""


class StopTrial(_Part):
    """Conditions that end one trial as done before `max_steps`; the first that holds counts."""

    target: Number | None = None
    """Its objective reached this value."""
    plateau: Plateau | None = None
    """{steps: N, tolerance: X}."""
    function: str | None = None
    """Import path of a function (trial number, metrics of the step) -> bool, called at each report."""

    @property
    def watches(self) -> bool:
        """Whether it looks at the objective's values."""
        return self.target is not None or self.plateau is not None

    @model_validator(mode="after")
    def _by_steps(self) -> Self:
        if self.plateau is not None and (self.plateau.steps is None or self.plateau.trials is not None):
            hint = "write {steps: N}"
            raise SpecError(key="stop.trial.plateau", value=self.plateau.trials, problem="counts a trial's steps", hint=hint)
        if self.function is not None and not _TRAINABLE.fullmatch(self.function):
            hint = "write file.py:function or package.module:function"
            raise SpecError(key="stop.trial.function", value=self.function, problem="names no function", hint=hint)
        return self


class Stop(_Part):
    """Conditions that end the experiment before all its trials are done; the first that holds counts."""

    target: Number | None = None
    """The first metric reached this value (at a step that meets all constraints)."""
    hours: Annotated[Number, Field(gt=0)] | None = None
    """The experiment ran for so long, over all its sittings; the time between them does not count."""
    plateau: Plateau | None = None
    """{trials: N, tolerance: X}."""
    trials: Annotated[Count, Field(ge=1)] | None = None
    """So many trials have ended. (`trials:` at the top is how many there are at most.)"""
    all: tuple[Stop, ...] = ()
    """Holds when each of these holds."""
    trial: StopTrial = StopTrial()
    """Conditions that end one trial."""

    @model_validator(mode="after")
    def _by_trials(self) -> Self:
        if self.plateau is not None and (self.plateau.trials is None or self.plateau.steps is not None):
            hint = "write {trials: N}"
            raise SpecError(key="stop.plateau", value=self.plateau.steps, problem="counts the experiment's trials", hint=hint)
        if len({p.tolerance for p in self.plateaus()}) > 1:
            raise SpecError(key="stop", value="plateau", problem="has two tolerances", hint="give each plateau the same one")
        if any(inner.trial != StopTrial() for inner in self.all):
            raise SpecError(key="stop.all", value="trial", problem="is for experiments", hint="write stop: {trial: ...}")
        return self

    def plateaus(self) -> list[Plateau]:
        """Those of the experiment, wherever they stand."""
        own = [] if self.plateau is None else [self.plateau]
        return own + [p for inner in self.all for p in inner.plateaus()]


class Recording(_Part):
    """How the experiment is recorded in MLflow."""

    experiment: Annotated[str, Field(min_length=1, max_length=250)] | None = None
    """The MLflow experiment that its runs go to, which several experiments may share; None: one of its own, by its name."""
    system_metrics: Annotated[bool, Field(strict=True)] = False
    """Whether MLflow's monitor records the load of CPU, memory, disk, network and GPU in each trial's run (needs psutil)."""


class Point(_Part):
    """A configuration to try first or, with a result, to learn from without trying it."""

    config: dict[str, Any]
    """Nested as the space is."""
    metrics: dict[str, Number] | None = None
    """What is known of it; None: it is tried."""


class WarmStart(_Part):
    """An earlier experiment, and how its space differs."""

    experiment: str
    """Its name."""
    given: dict[str, Any] = {}
    """What a parameter that it did not have was there, by dotted name."""
    ignore: tuple[str, ...] = ()
    """Parameters that only it had, and that made no difference."""


def _warm_start(value: Any) -> Any:
    """An experiment may be given by its name alone."""
    return {"experiment": value} if isinstance(value, str) else value


def _point(value: Any) -> Any:
    """A point may be written as the configuration alone."""
    return {"config": value} if isinstance(value, dict) and not {"config", "metrics"} >= set(value) else value


def _space(value: Any) -> Space:
    return value if isinstance(value, Space) else Space.parse(value)


SpaceField = Annotated[
    Space,
    BeforeValidator(_space),
    PlainSerializer(lambda space: space.to_json()),
    WithJsonSchema(
        {
            "type": "object",
            "description": "Parameters: a constant, a domain such as {loguniform: [1.0e-4, 1.0e-1]}, or a nested map.",
        }
    ),
]
Named = str | dict[str, dict[str, Any] | None]


def _schedules(choice: object) -> list[str]:
    """The name of a schedule, and that of the one inside of it."""
    inner = next(iter(choice.values()), None) if isinstance(choice, dict) else None
    return [chosen(choice), *(_schedules(inner["schedule"]) if isinstance(inner, dict) and "schedule" in inner else [])]


def _is_path(choice: Named) -> bool:
    """Whether a sampler or scheduler is the user's own, by import path. Reading a log imports nothing of a user's."""
    return is_path(chosen(choice))


warnings.filterwarnings("ignore", 'Field name "register" in "Spec"', UserWarning)
"""Pydantic warns of a field that hides an attribute of its base; this one is of classes (ABCMeta): nobody asks a Spec for it."""


class Spec(_Part):
    """An experiment. Raises SpecError (through `parse`) naming key, value and what to do."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    """Letters, digits, '-', '_', '.'; also the name of its folder, its MLflow experiment and its flow run."""
    trainable: str
    """`file.py:function` (relative to the YAML file), `package.module:Class`, or "pickled" for an object from Python."""
    metric: Annotated[str, Field(min_length=1, max_length=250)] | tuple[Metric, ...]
    """The objective, or several metrics; the first governs the search and the schedule."""
    mode: Mode | None = None
    """Whether less or more of the metric is better; required where `metric` is one name."""
    space: SpaceField
    """Parameters by name: a constant, a domain such as `{loguniform: [1.0e-4, 1.0e-1]}`, or a nested map of the same."""
    search: Named = "tpe"
    """The sampler, by its name or with options, `{tpe: {n_startup_trials: 20}}`; or one of your own, `module:Class`."""
    schedule: Named = "fifo"
    """The scheduler, by its name or with options, `{asha: {grace_period: 1}}`; or one of your own, `module:Class`."""
    trials: Annotated[Count, Field(ge=1)] | None = None
    """The TOTAL number of trials, also after a resume. None: every cell of a grid, only with `search: grid`."""
    max_steps: Annotated[Count, Field(ge=1)] | None = None
    """Steps of a trial at most; None: until the trainable returns."""
    concurrency: Annotated[Count, Field(ge=1)] | None = None
    """Attempts at a time; None: what the cluster can hold."""
    constraints: tuple[str, ...] = ()
    """Conditions on metrics, `latency <= 10`: a step that breaks one is never the best, and samplers are told."""
    points: tuple[Annotated[Point, BeforeValidator(_point)], ...] = ()
    """Configurations to try first, in this order; those with known metrics are only told to the sampler."""
    repeats: Annotated[Count, Field(ge=1)] = 1
    """Trials of each configuration, each with a seed of its own; the sampler learns their mean."""
    warm_start: tuple[Annotated[WarmStart, BeforeValidator(_warm_start)], ...] = ()
    """Earlier experiments of the same state root whose trials are told to the sampler, as they are when this one begins."""
    resources: Resources = Resources()
    retries: Retries = Retries()
    checkpoint: Checkpointing = Checkpointing()
    lease: Annotated[Number, Field(ge=3)] = 30
    """Seconds for which an attempt may be silent before it counts as lost; it says something once a second."""
    stop: Stop = Stop()
    seed: Annotated[Count, Field(ge=0)] = 0
    """All of the experiment's chance follows from it."""
    price_per_hour: Annotated[Number, Field(ge=0)] | None = None
    """What one slot costs, i.e. one running attempt of usual width, per hour, in any currency; None: no costs are shown."""
    mlflow: Recording = Recording()
    register: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")] | None = None
    """The name under which the best trial's model is registered in MLflow, as a new version at the end of a sitting."""
    state: str | None = None
    """Root of the durable state; None: $REGROW_STATE, else ./.regrow."""
    env: dict[str, str | None] = {}
    """Environment variables of the workers; None forwards the driver's value, which is never stored."""
    working_dir: str | None = None
    """Folder of the trainable's code, put on the workers' import path (and shipped to other machines). None: the spec file's."""

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, env: dict[str, str | None]) -> dict[str, str | None]:
        for name, value in env.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise SpecError(
                    key=f"env.{name}", value="***", problem="is no name of a variable", hint="write letters, digits and '_'"
                )
            if value is not None and (is_secret(name) or _SECRET_VALUE.search(value)):
                hint = f"write `{name}: null`, which forwards it from your environment"
                raise SpecError(key=f"env.{name}", value="***", problem="looks like a secret, which would be stored", hint=hint)
        return env

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if isinstance(self.metric, str):
            if self.mode is None:
                raise SpecError(key="mode", value=None, problem="is missing", hint="write mode: max or mode: min")
        elif not self.metric:
            raise SpecError(key="metric", value=[], problem="is empty", hint="name at least one metric")
        elif len({metric.name for metric in self.metric}) < len(self.metric):
            names = [metric.name for metric in self.metric]
            raise SpecError(key="metric", value=names, problem="names a metric twice", hint="give each name once")
        elif self.mode is not None:
            raise SpecError(key="mode", value=self.mode, problem="belongs to each metric here", hint="give each its mode")
        for place, text in enumerate(self.constraints):
            Constraint.parse(text, f"constraints.{place}")
        if not self.own_scheduler:
            schedulers.make(self.schedule, self.setting)
        if (chosen(self.search) == "dehb") != ("dehb" in _schedules(self.schedule)):
            problem, hint = "is half of an algorithm", "write both search: dehb and schedule: dehb"
            raise SpecError(key="search", value=chosen(self.search), problem=problem, hint=hint)
        cells = self._check_search()
        if self.trials is None and cells is None:
            raise SpecError(key="trials", value=None, problem="is missing", hint="write the total number of trials")
        if self.trials is not None and cells is not None and self.trials > cells:
            raise SpecError(key="trials", value=self.trials, problem=f"the grid has only {cells} cells", hint=f"write {cells}")
        if self.trials is not None and self.trials % self.repeats:
            hint = f"write {self.trials - self.trials % self.repeats + self.repeats}"
            raise SpecError(key="trials", value=self.trials, problem=f"is no multiple of repeats ({self.repeats})", hint=hint)
        if self.trainable != "pickled" and not _TRAINABLE.fullmatch(self.trainable):
            hint = "write file.py:function or package.module:Class"
            raise SpecError(key="trainable", value=self.trainable, problem="names no function or class", hint=hint)
        self._check_resources()
        return self

    def _check_search(self) -> int | None:
        """The number of trials that the sampler has to offer, None for any number."""
        cells = None if self.own_sampler else samplers.size(self.search, self.setting)
        for place, point in enumerate(self.points):
            key = f"points.{place}"
            if cells is not None and point.metrics is None:
                problem = "has no place where every configuration is tried once anyway"
                raise SpecError(key=key, value=point.config, problem=problem, hint="leave points out")
            self.space.point(point.config, key)
            needed = [self.objective.name, *(limit.metric for limit in self.limits)]
            if point.metrics is not None and (lacking := [name for name in needed if name not in point.metrics]):
                hint = f"give {lacking[0]}, or leave metrics out"
                what = "the objective" if lacking[0] == self.objective.name else "a metric of the constraints"
                raise SpecError(key=f"{key}.metrics", value=point.metrics, problem=f"lacks {what}", hint=hint)
        return None if cells is None else cells * self.repeats

    def _check_resources(self) -> None:
        wanted = self.resources
        for name, ours in _RAY_OWN.items():
            if name in wanted.custom:
                problem = "is no custom resource" if ours else "is no resource of a trial"
                hint = f"write resources: {{{ours}: ...}}" if ours else "leave it out"
                raise SpecError(key=f"resources.custom.{name}", value=wanted.custom[name], problem=problem, hint=hint)
        if not (wanted.cpu or wanted.gpu or wanted.memory or wanted.custom) and self.concurrency is None:
            problem = "a trial that needs nothing fits any number of times"
            raise SpecError(key="resources.cpu", value=wanted.cpu, problem=problem, hint="give cpu, or concurrency")

    @property
    def objective(self) -> Metric:
        """The metric that governs search, schedule and `best`."""
        if isinstance(self.metric, str):
            return Metric(name=self.metric, mode=self.mode or "min")
        return self.metric[0]

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics that are to become better, the objective first."""
        return (self.objective,) if isinstance(self.metric, str) else self.metric

    @property
    def limits(self) -> tuple[Constraint, ...]:
        """The constraints, read."""
        return tuple(Constraint.parse(text, f"constraints.{place}") for place, text in enumerate(self.constraints))

    @property
    def setting(self) -> Setting:
        """What its sampler and its scheduler are made for."""
        return Setting(
            space=self.space, modes=tuple(metric.mode for metric in self.metrics), max_steps=self.max_steps,
            trials=self.trials, seed=self.seed, constraints=len(self.constraints),
        )

    @property
    def total(self) -> int:
        """The total number of trials, each repeat counted."""
        if self.trials is not None:
            return self.trials
        return (samplers.size(self.search, self.setting) or 0) * self.repeats

    @property
    def own_sampler(self) -> bool:
        """Whether the sampler is a user's own, given by its import path (or by that of an Optuna sampler)."""
        return _is_path(self.search) or chosen(self.search) == "optuna"

    @property
    def own_scheduler(self) -> bool:
        """Whether the scheduler is a user's own, given by its import path."""
        return any(is_path(name) for name in _schedules(self.schedule))

    @property
    def ending(self) -> Ending:
        """When one trial has done enough, but for the user's function."""
        stop = self.stop.trial
        return Ending(
            sign=self.setting.sign, target=stop.target, steps=None if stop.plateau is None else stop.plateau.steps,
            tolerance=0.0 if stop.plateau is None else stop.plateau.tolerance,
        )

    def check_imports(self) -> None:
        """Makes a sampler and a scheduler of the user's own, which reading a log does not. Raises SpecError."""
        samplers.check_installed(self.search)
        samplers.make(self.search, self.setting)
        schedulers.make(self.schedule, self.setting)

    @classmethod
    def parse(cls, data: dict[str, Any], *, where: str = "") -> Spec:
        """A specification from plain data. Raises SpecError; `where` (a file's name) goes before the key."""
        try:
            return cls.model_validate(data)
        except SpecError as error:
            raise error.at(where) from None
        except ValidationError as error:
            raise _explain(error, data).at(where) from None

    def to_json(self) -> dict[str, Any]:
        """Plain data that `parse` turns into an equal specification."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def identity(self) -> dict[str, Any]:
        """What makes two specifications the same experiment: all but where it runs, how wide, and how many trials."""
        loose = {
            "state", "concurrency", "working_dir", "trials", "env", "stop", "retries", "resources", "lease", "price_per_hour",
            "mlflow", "register",
        }
        return self.model_dump(mode="json", exclude=loose)


_FORMS = {
    "metric": "write a name, or a list of {name: ..., mode: ...}",
    "search": "write NAME or {NAME: {option: value}}",
    "schedule": "write NAME or {NAME: {option: value}}",
    "retries": "write a whole number, or unlimited",
    "constraints": "write a list of METRIC <= NUMBER",
    "points": "write a list of configurations, or of {config: ..., metrics: ...}",
    "warm_start": "write a list of names, or of {experiment: ..., given: {...}, ignore: [...]}",
    "resources.memory": 'write a number of bytes, or text such as "2GiB"',
    "env": "write NAME: value, one a line",
}
"""What to write where a value of more than one form may stand."""
_PARTS: dict[str, type[BaseModel]] = {
    "metric": Metric, "resources": Resources, "retries": Retries, "checkpoint": Checkpointing, "stop": Stop,
    "mlflow": Recording,
}


def _explain(error: ValidationError, data: dict[str, Any]) -> SpecError:
    """One of pydantic's complaints, in our words: the key as the user wrote it, the value, what to do.

    A misspelt key comes first, for it explains a missing one; of the forms that a value may have, the one that fits most.
    """
    errors = sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    first = max((e for e in errors if e["loc"][:1] == errors[0]["loc"][:1]), key=lambda e: len(e["loc"]))
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, SpecError):
        return cause
    path = _path(first["loc"], data, missing=first["type"] == "missing")
    key, value = ".".join(path), first["input"]
    problem, hint = _wording(first["type"], first.get("ctx", {}), value)
    if path[0] == "env" or is_secret(path[-1]):
        value = "***"  # it may be a secret, and messages are kept
    if first["type"] == "extra_forbidden":
        part = _PARTS.get(path[0], Spec)
        return SpecError(key=key, value=value, problem="unknown key", hint=nearest(path[-1], part.model_fields))
    if first["type"] == "missing":
        return SpecError(key=key, value=None, problem="is missing", hint=f"add `{path[-1]}:` to the specification")
    if path[0] in _PARTS and first["type"] in ("model_type", "model_attributes_type"):
        hint = f"its keys are: {', '.join(_PARTS[path[0]].model_fields)}"
    elif first["type"].endswith("_type") and not (hint == _QUOTES and path[0] in ("metric", "env")):
        near = (form for at, form in _FORMS.items() if f"{key}.".startswith(f"{at}.") and len(path) <= at.count(".") + 2)
        hint = next(near, hint)
    return SpecError(key=key, value=value, problem=problem, hint=hint)


def _path(loc: tuple[int | str, ...], data: Any, *, missing: bool) -> list[str]:
    """The keys and positions of `loc` that `data` has; pydantic puts names of types between them."""
    path: list[str] = []
    for place, name in enumerate(loc):
        here = (isinstance(data, dict) and name in data) or (isinstance(data, (list, tuple)) and isinstance(name, int))
        if here:
            data = data[name]
        if here or (missing and place == len(loc) - 1):
            path.append(str(name))
    return path or [str(loc[0])]


_QUOTES = "put quotes around it"


def _wording(kind: str, ctx: dict[str, Any], value: Any) -> tuple[str, str]:
    """Problem and hint for one kind of pydantic's errors."""
    if isinstance(value, str) and kind.startswith(("int_", "float_")) and _numeric(value):
        whole = float(value).is_integer() and kind.startswith("int_")
        number = int(float(value)) if whole else as_yaml_number(value) or value
        return "is text, not a number", f"write {number}, without quotes"
    if value is None and kind.endswith("_type"):
        return "is empty", "give it a value, or leave the key out"
    match kind:
        case "string_type":
            return "is not text", _QUOTES if isinstance(value, int | float) else "write text"
        case "invalid_key":
            return "is not a key", _QUOTES
        case "int_type" | "int_from_float":
            whole = isinstance(value, float) and value.is_integer()
            return "is not a whole number", f"write {int(value)}" if whole else "write a whole number"
        case "float_type":
            return "is not a number", "write a number"
        case "bool_type":
            return "is neither true nor false", "write true or false"
        case "finite_number":
            return "is not a finite number", "write a finite number"
        case "greater_than_equal":
            return f"is below {ctx['ge']:g}", f"write {ctx['ge']:g} or more"
        case "greater_than":
            return f"is not above {ctx['gt']:g}", f"write a number above {ctx['gt']:g}"
        case "string_pattern_mismatch":
            return "is no name", "write 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter or digit"
        case "string_too_short":
            return "is empty", "write a name"
        case "string_too_long":
            return f"is longer than {ctx['max_length']} characters", "write a shorter name"
        case "literal_error":
            return f"is not {ctx['expected']}", nearest(value, re.findall(r"'(.*?)'", ctx["expected"]))
        case "dict_type" | "model_type" | "model_attributes_type":
            return "is not a map", "write {key: value}"
        case _:
            return str(ctx.get("error", kind.replace("_", " "))), "see `regrow schema` for what may stand here"


def _numeric(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
