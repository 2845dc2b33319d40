"""The specification of an experiment: one frozen, validated form, whether it came from YAML or from Python.

Its keys, their defaults and their checks live here; what stands below them is in `search/spec/parts.py`, how a mistake is told in
`search/spec/errors.py`; files are read in `infra/state/spec_file.py`. The search space is parsed by `space.py`, the names under
`search` and `schedule` are known to their registries.
"""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from regrow.search import samplers, schedulers
from regrow.search.constraints import Constraint
from regrow.search.curve import Score
from regrow.search.durations import Span, seconds
from regrow.search.endings import Ending
from regrow.search.errors import SpecError
from regrow.search.mode import Mode
from regrow.search.options import AUTO, chosen, is_path
from regrow.search.secret import holds_secret, is_secret
from regrow.search.space import Space
from regrow.search.space.scalars import plain
from regrow.search.space.setting import Setting
from regrow.search.spec.auto import Choice, choose
from regrow.search.spec.checks import COMMAND, check
from regrow.search.spec.command import as_command
from regrow.search.spec.errors import explain
from regrow.search.spec.foreign import check_keys
from regrow.search.spec.notify import Notify
from regrow.search.spec.parts import (
    Checkpointing,
    Children,
    Count,
    Market,
    Metric,
    Number,
    Part,
    Point,
    Recording,
    Reports,
    Resources,
    Retries,
    StepCount,
    Stop,
    StopTrial,
    WarmStart,
    as_market,
    as_names,
    as_point,
    as_step_count,
    as_warm_start,
)
from regrow.search.spec.rllib import RLlib
from regrow.search.spec.schema import complete
from regrow.search.spec.serve import Serve
from regrow.search.spec.when import When
from regrow.search.step_metric import StepMetric

__all__ = ["COMMAND", "MOST_STEPS", "NAME", "PER_SESSION", "Named", "Spec"]


def _space(value: Any, info: ValidationInfo) -> Space:
    return Space.parse(value, recorded=_recorded(info))


def _recorded(info: ValidationInfo) -> bool:
    """Whether it stands in a log: what was taken when that was written is taken."""
    return bool(info.context and info.context.get("recorded"))


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
CommandField = Annotated[
    tuple[str, ...],
    BeforeValidator(as_command),
    WithJsonSchema({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}]}}),
]
MarketField = Annotated[Market, BeforeValidator(as_market, json_schema_input_type=Market | Literal["spot", "on-demand"])]
Named = str | dict[str, dict[str, Any] | None]


def _is_path(choice: Named) -> bool:
    """Whether a sampler or scheduler is the user's own, by import path. Reading a log imports nothing of a user's."""
    return is_path(chosen(choice))


warnings.filterwarnings("ignore", 'Field name "register" in "Spec"', UserWarning)
"""Pydantic warns of a field that hides an attribute of its base; this one is of classes (ABCMeta): nobody asks a Spec for it."""


PER_SESSION = (
    "concurrency", "working_dir", "env", "stop", "retries", "resources", "lease", "stall", "market", "price_per_hour", "mlflow",
    "register", "notify", "serve", "event", "enqueue",
)
"""Keys that an experiment's next session may have with other values; its state root may be moved and its total raised, too."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
"""What an experiment may be called."""


MOST_STEPS = 1_000_000
"""Steps of a trial without `max_steps`: a function that never returns would fill the log for ever (60 bytes a step and more)."""


class Spec(Part):
    """An experiment. Raises SpecError (through `parse`) naming key, value and what to do."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [one]} for one in ("trainable", "command", "rllib")]})

    name: Annotated[str, Field(pattern=NAME)]
    """Letters, digits, '-', '_', '.'; also the name of its folder, its MLflow experiment and its flow run."""
    trainable: str = COMMAND
    """`file.py:function` (relative to the YAML file), `package.module:Class`, or "pickled" for an object from Python;
    "command" where `command` or `rllib` stands in its place."""
    command: CommandField = ()
    """In place of `trainable`: a program and its arguments, `[python, train.py, --lr, "{lr}"]`, with placeholders."""
    rllib: RLlib | None = None
    """In place of `trainable`: an algorithm of RLlib's, `{algorithm: PPO, env: CartPole-v1}`."""
    report: Reports = Reports()
    metric: Annotated[str, Field(min_length=1, max_length=250)] | tuple[Metric, ...]
    """The objective, or several metrics; the first governs the search and the schedule."""
    mode: Mode | None = None
    """Whether less or more of the metric is better; required where `metric` is one name."""
    step_metric: Annotated[StepCount, BeforeValidator(as_step_count, json_schema_input_type=StepCount | str)] | None = None
    """A metric by which the schedule and `max_steps` count steps: reports may leave some out. None: each report is one step."""
    score: Score = "best"
    """By which step a trial counts, for `best`, the sampler and the stop conditions: its `best` one; its `last` one, so far; or
    `final`, its last one if it ran to its end, and none else. Schedulers compare as their own rules say."""
    space: SpaceField
    """Parameters by name: a constant, a domain such as `{loguniform: [1.0e-4, 1.0e-1]}`, or a nested map of the same."""
    search: Named = AUTO
    """The sampler, by its name or with options, `{tpe: {n_startup_trials: 20}}`; or one of your own, `module:Class`. `auto`:
    chosen by the rest when the experiment is created; its log has what was chosen."""
    schedule: Named = AUTO
    """The scheduler, by its name or with options, `{asha: {grace_period: 1}}`; or one of your own, `module:Class`. Left out: with
    `search: auto` it is chosen, too; beside a named search it is `fifo`, every trial runs to its end."""
    trials: Annotated[Count, Field(ge=1)] | None = None
    """The TOTAL number of trials, also after a resume. None: every cell of a grid, only with `search: grid`."""
    max_steps: Annotated[Count, Field(ge=1)] | None = None
    """Steps of a trial at most; None: until the trainable returns, at most 1,000,000."""
    concurrency: Annotated[Count, Field(ge=1)] | None = None
    """Attempts at a time; None: as many as the cluster has room for."""
    constraints: tuple[str, ...] = ()
    """Conditions on metrics, `latency <= 10`: a step that breaks one is never the best, and samplers are told."""
    points: tuple[Annotated[Point, BeforeValidator(as_point, json_schema_input_type=Point | dict[str, Any])], ...] = ()
    """Configurations to try first, in this order; those with known metrics are only told to the sampler."""
    enqueue: tuple[dict[str, Any], ...] = ()
    """With `search: define_by_run`, values by parameter that trials get, in this order, one map a trial."""
    repeats: Annotated[Count, Field(ge=1)] = 1
    """Trials of each configuration, each with a seed of its own; the sampler learns their mean."""
    warm_start: tuple[Annotated[WarmStart, BeforeValidator(as_warm_start, json_schema_input_type=WarmStart | str)], ...] = ()
    """Earlier experiments of the same state root whose trials are told to the sampler, as they are when this one begins."""
    learn_from: Annotated[tuple[str, ...] | Literal["auto"], BeforeValidator(as_names)] = ()
    """Earlier experiments of the same state root, on other tasks, with the same parameters and metric: what did well in them is
    tried first, and "mobster" begins with what they make it expect. `auto`: the last eight that there are."""
    resources: Resources = Resources()
    retries: Retries = Retries()
    checkpoint: Checkpointing = Checkpointing()
    lease: Annotated[Number, Field(ge=3)] = 30
    """Seconds for which an attempt may be silent before it counts as lost; it says something once a second."""
    stall: Annotated[Number, BeforeValidator(seconds, json_schema_input_type=Span), Field(gt=0)] | None = None
    """An attempt that reports nothing for so long hangs and is tried again: seconds, or "10min", "90s", "2h". None: never."""
    stop: Stop = Stop()
    seed: Annotated[Count, Field(ge=0)] = 0
    """All of the experiment's chance follows from it."""
    market: MarketField | None = None
    """On which kind of machine trials run: `spot`, `on-demand`, or spot first and when to change over. None: on any."""
    price_per_hour: Annotated[Number, Field(ge=0)] | None = None
    """What one slot costs, i.e. one running attempt of usual width, or a worker of one, per hour, in any currency, on nodes whose
    labels do not tell their price. None: these count for nothing."""
    mlflow: Recording = Recording()
    register: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")] | None = None
    """The name under which the best trial's model is registered in MLflow, as a new version at the end of a session."""
    notify: Notify | None = None
    """Whom to tell what becomes of it."""
    when: When | None = None
    """When it is started by itself: `regrow schedule` makes a schedule of it. None: only by hand."""
    serve: Serve | None = None
    """What a station serves of it, and keeps up. None: nothing."""
    event: dict[str, Any] | None = None
    """What started this run; the trainable has it as `trial.event`. The station fills it in."""
    state: str | None = None
    """Root of the durable state; None: $REGROW_STATE, else ./.regrow."""
    env: dict[str, str | None] = Field(default={})
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
            if value is not None and (is_secret(name) or holds_secret(value)):
                hint = f"write `{name}: null`, which forwards it from your environment"
                raise SpecError(key=f"env.{name}", value="***", problem="looks like a secret, which would be stored", hint=hint)
        return env

    @model_validator(mode="after")
    def _fits_together(self, info: ValidationInfo) -> Self:
        check(self, recorded=_recorded(info))
        return self

    @property
    def choice(self) -> Choice:
        """Its search and its schedule and, where it leaves these to regrow, why they are what they are."""
        return choose(self)

    @property
    def resolved(self) -> Spec:
        """The same with the search and the schedule that it gets as a new experiment."""
        if self.search != AUTO:
            return self
        choice = self.choice
        return self.model_copy(update={"search": choice.search, "schedule": choice.schedule})

    def like(self, stored: Spec) -> Spec:
        """The same where what it leaves to regrow is as in the experiment `stored`, which is there already."""
        return self.model_copy(update={key: getattr(stored, key) for key in ("search", "schedule") if getattr(self, key) == AUTO})

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
    def clock(self) -> StepMetric | None:
        """How the time of a report is read off it; None: reports are counted."""
        return None if self.step_metric is None else StepMetric(name=self.step_metric.name, first=self.step_metric.first)

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
        return (samplers.size(self.resolved.search, self.setting) or 0) * self.repeats

    @property
    def most_steps(self) -> int:
        """Steps of a trial at most, also where `max_steps` is not given."""
        return self.max_steps or MOST_STEPS

    @property
    def endless(self) -> bool:
        """Whether nothing in it ends a trial before `most_steps`."""
        stops = (self.stop, *self.stop.all)
        timed = any(stop.hours is not None or stop.target is not None for stop in stops)
        early = timed or self.stop.trial != StopTrial() or schedulers.kind(self.resolved.schedule).decides
        return self.max_steps is None and not early

    @property
    def program(self) -> str:
        """What tells where its code is: the trainable, an environment of one's own, or the first argument of its command that is
        a file by its ending.
        """
        if self.rllib is not None:
            return self.rllib.env
        return next((part for part in self.command if re.search(r"\.[A-Za-z]+$", part)), self.trainable)

    @property
    def takes_first(self) -> bool:
        """Whether its search may be given configurations to try first that nobody named: not one that tries each once anyway, or
        in an order of its own."""
        search = self.resolved.search
        return self.own_sampler or (samplers.size(search, self.setting) is None and not samplers.gives_budgets(search))

    @property
    def own_sampler(self) -> bool:
        """Whether the sampler is a user's own, given by its import path (or by that of an Optuna sampler)."""
        return _is_path(self.search) or chosen(self.search) == "optuna"

    @property
    def own_scheduler(self) -> bool:
        """Whether the scheduler is a user's own, given by its import path."""
        return any(is_path(name) for name in schedulers.named(self.schedule))

    @property
    def ending(self) -> Ending:
        """When one trial has done enough, but for the user's function."""
        stop = self.stop.trial
        return Ending(
            sign=self.objective.sign, target=stop.target, steps=None if stop.plateau is None else stop.plateau.steps,
            tolerance=0.0 if stop.plateau is None else stop.plateau.tolerance,
        )

    def check_imports(self) -> None:
        """Makes a sampler and a scheduler of the user's own, which reading a log does not. Raises SpecError."""
        whole = self.resolved
        samplers.check_installed(whole.search)
        samplers.make(whole.search, self.setting)
        schedulers.make(whole.schedule, self.setting)

    @classmethod
    def parse(cls, data: dict[str, Any], *, where: str = "") -> Spec:
        """A specification from plain data. Raises SpecError; `where` (a file's name) goes before the key."""
        return cls._made(data, where, recorded=False)

    @classmethod
    def recorded(cls, data: dict[str, Any], *, where: str = "") -> Spec:
        """A specification that stands in a log, which may be older than some of what `parse` refuses."""
        return cls._made(data, where, recorded=True)

    @classmethod
    def _made(cls, data: dict[str, Any], where: str, *, recorded: bool) -> Spec:
        try:
            if not recorded:
                data = plain(data)
                check_keys(data, cls.model_fields)
                if data.get("search", AUTO) != AUTO:
                    data = {"schedule": schedulers.DEFAULT, **data}
            else:
                data = {**_BEFORE_AUTO, **data}
            return cls.model_validate(data, context={"recorded": recorded})
        except SpecError as error:
            raise error.at(where) from None
        except ValidationError as error:
            raise explain(error, data, cls, _PARTS).at(where) from None

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        """The published schema, with what a space may hold and the options of each sampler and scheduler."""
        return complete(super().model_json_schema(*args, **options))

    def to_json(self) -> dict[str, Any]:
        """Plain data that `parse` turns into an equal specification."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def identity(self) -> dict[str, Any]:
        """What makes two specifications the same experiment: all but what a session may have otherwise."""
        return self.model_dump(mode="json", exclude={"state", "trials", "when", *PER_SESSION})

    def settings(self) -> dict[str, Any]:
        """What may change from session to session, as plain data."""
        return self.model_dump(mode="json", include=set(PER_SESSION))

    @property
    def recorded_as(self) -> str:
        """The name of the MLflow experiment in which it is recorded."""
        return self.mlflow.experiment or self.name


_BEFORE_AUTO = {"search": "tpe", "schedule": schedulers.DEFAULT}
"""What a log means that names none: it is of a version that had these as defaults, and left them out."""
_PARTS: dict[str, type[BaseModel]] = {
    "metric": Metric, "resources": Resources, "resources.children": Children, "retries": Retries, "market": Market,
    "checkpoint": Checkpointing, "stop": Stop, "mlflow": Recording, "report": Reports, "notify": Notify, "when": When,
    "rllib": RLlib, "step_metric": StepCount, "serve": Serve,
}
