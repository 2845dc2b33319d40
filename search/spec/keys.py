"""The keys of a specification, their defaults, and what follows from them.

The values below them are in `search/spec/parts.py`, checks of several keys together in
`search/spec/checks.py`. The search space is parsed by `space.py`; the names under `search` and
`schedule` are defined in their registries.
"""

from __future__ import annotations

import re
import warnings
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

from regrow.search import samplers, schedulers
from regrow.search.bounds import LONGEST
from regrow.search.constraints import Constraint
from regrow.search.curve import Score
from regrow.search.endings import Ending
from regrow.search.errors import SpecError
from regrow.search.mode import Mode
from regrow.search.options import AUTO, Named, chosen, is_path
from regrow.search.secret import holds_secret, is_secret
from regrow.search.space import Space
from regrow.search.space.setting import Setting
from regrow.search.spec import parts
from regrow.search.spec.auto import SearchChoice, choose
from regrow.search.spec.command import as_command
from regrow.search.spec.rllib import RLlib
from regrow.search.spec.station import Notify, Serve, When
from regrow.search.step_metric import StepMetric

COMMAND = "command"
"""The value of `trainable` if a command is given instead."""


def _space(value: Any, info: ValidationInfo) -> Space:
    return Space.parse(value, recorded=is_recorded(info))


def is_recorded(info: ValidationInfo) -> bool:
    """Return whether it comes from a log, and may hold what was once accepted."""
    return bool(info.context and info.context.get("recorded"))


SpaceField = Annotated[
    Space,
    BeforeValidator(_space),
    PlainSerializer(lambda space: space.to_json()),
    WithJsonSchema(
        {
            "type": "object",
            "description": (
                "Parameters: a constant, a domain such as {loguniform: [1.0e-4, 1.0e-1]}, or a"
                " nested map."
            ),
        }
    ),
]
CommandField = Annotated[
    tuple[str, ...],
    BeforeValidator(as_command),
    WithJsonSchema({"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number"}]}}),
]
Kind = Literal["spot", "on-demand"]
MarketField = Annotated[
    parts.Market, BeforeValidator(parts.alone("first"), json_schema_input_type=parts.Market | Kind)
]
SavingField = Annotated[
    parts.Checkpointing,
    BeforeValidator(
        parts.alone("every"), json_schema_input_type=parts.Checkpointing | Literal["auto"]
    ),
]
Steps = Annotated[
    parts.StepCount,
    BeforeValidator(parts.alone("name"), json_schema_input_type=parts.StepCount | str),
]
Earlier = Annotated[
    parts.WarmStart,
    BeforeValidator(parts.alone("experiment"), json_schema_input_type=parts.WarmStart | str),
]
BudgetField = Annotated[
    parts.Training,
    BeforeValidator(parts.as_training, json_schema_input_type=parts.Training | float),
]
Known = Annotated[
    parts.Point,
    BeforeValidator(parts.as_point, json_schema_input_type=parts.Point | dict[str, Any]),
]
RegisterField = Annotated[str, Field(pattern=parts.NAME)] | None

warnings.filterwarnings("ignore", 'Field name "register" in "(Keys|Spec)"', UserWarning)
"""Pydantic warns about a field that hides an attribute of its base; this one belongs to classes
(ABCMeta) and is never used on a specification.
"""


PER_SESSION = (
    "concurrency",
    "working_dir",
    "env",
    "budget",
    "stop",
    "retries",
    "on_oom",
    "resources",
    "lease",
    "stall",
    "market",
    "price_per_hour",
    "store_prices",
    "mlflow",
    "register",
    "notify",
    "serve",
    "event",
    "enqueue",
)
"""Keys that may differ between sessions; the state root may move, the total be raised."""

MOST_VARIABLE = 100_000
"""Most bytes of a variable of `env`. Linux starts no process with one of 128 KiB."""
MOST_STEPS = 1_000_000
"""Steps of a trial without `max_steps`. A function that never returns would otherwise fill the log
without end (60 bytes a step and more).
"""


UNLIMITED = 1_000_000
"""The total of trials where a budget, money or a deadline alone limit them."""


class Keys(parts.Part):
    """An experiment, each key by itself; `Spec` is one whose keys fit together."""

    model_config = ConfigDict(defer_build=True)

    name: Annotated[str, Field(pattern=parts.NAME)]
    """Letters, digits, '-', '_', '.'; also the name of its folder, its MLflow experiment and its
    flow run.
    """
    trainable: str = COMMAND
    """`file.py:function` (relative to the YAML file), `package.module:Class`, or "pickled" for an
    object from Python; "command" if `command` or `rllib` is given instead.
    """
    command: CommandField = ()
    """Instead of `trainable`: a program and its arguments, `[python, train.py, --lr, "{lr}"]`, with
    placeholders.
    """
    rllib: RLlib | None = None
    """Instead of `trainable`: an algorithm of RLlib, `{algorithm: PPO, env: CartPole-v1}`."""
    report: parts.Reports = parts.Reports()
    metric: Annotated[str, Field(min_length=1, max_length=250)] | tuple[parts.Metric, ...]
    """The objective, or several metrics; the first governs the search and the schedule."""
    mode: Mode | None = None
    """Whether less or more of the metric is better; required if `metric` is one name."""
    step_metric: Steps | None = None
    """A metric by which the schedule and `max_steps` count steps, if reports leave some out. None:
    each report is one step.
    """
    score: Score = "best"
    """The step by which a trial counts, for `best`, the sampler and the stop conditions: its `best`
    one; its `last` one, so far; or `final`, its last one if it ran to its end (other trials do not
    count). Schedulers compare by their own rules.
    """
    space: SpaceField
    """Parameters by name: a constant, a domain such as `{loguniform: [1.0e-4, 1.0e-1]}`, or a
    nested map of the same.
    """
    search: Named = AUTO
    """The sampler, by its name or with options, `{tpe: {n_startup_trials: 20}}`; or your own,
    `module:Class`. `auto`: chosen by the rest of the specification when the experiment is created;
    the choice is in its log.
    """
    schedule: Named = AUTO
    """The scheduler, by its name or with options, `{asha: {grace_period: 1}}`; or your own,
    `module:Class`. Left out: with `search: auto` it is chosen, too; with a named search it is
    `fifo`, every trial runs to its end.
    """
    trials: Annotated[parts.Count, Field(ge=1)] | None = None
    """The TOTAL number of trials, also after a resume, however short the schedule makes them. None:
    every cell of a grid; with `budget`, `stop.dollars` or `stop.deadline`, as many as these allow.
    """
    budget: BudgetField | None = None
    """In place of `trials`: how much training all trials together may do. `30`: as many steps as 30
    full trainings; or `{steps: 800}`, `{hours: 4}`. New trials begin as long as it lasts, and its
    end is for finishing the best. With `trials`, both are limits. None: not limited.
    """
    max_steps: Annotated[parts.Count, Field(ge=1)] | None = None
    """Most steps of a trial; None: until the trainable returns, at most 1,000,000."""
    concurrency: Annotated[parts.Count, Field(ge=1)] | None = None
    """Attempts at a time; None: as many as the cluster has room for."""
    constraints: tuple[str, ...] = ()
    """Conditions on metrics, `latency <= 10`: a step that breaks one is never the best, and
    samplers take it into account.
    """
    points: tuple[Known, ...] = ()
    """Configurations to try first, in this order; those with known metrics are not tried, the
    sampler only learns from them.
    """
    enqueue: tuple[dict[str, Any], ...] = ()
    """With `search: define_by_run`, values by parameter that trials get, in this order, one map for
    each trial.
    """
    repeats: Annotated[parts.Count, Field(ge=1)] = 1
    """Trials of each configuration, each with its own seed; the sampler learns from their mean."""
    duplicates: bool = False
    """Whether the sampler may propose a configuration twice while others are untried, as in Ray
    Tune.
    """
    warm_start: tuple[Earlier, ...] = ()
    """Earlier experiments of the same state root from whose trials the sampler learns, as they are
    when this one begins.
    """
    learn_from: Annotated[
        tuple[str, ...] | Literal["auto"] | None, BeforeValidator(parts.as_names)
    ] = None
    """Earlier experiments of the same state root, on other tasks, with the same parameters and
    metric: what did well in them is tried first, and "mobster" begins with their predictions.
    `auto`: the last eight experiments. None: with `search: auto` these, if they are three or more
    and were seen to tell about each other, as the log then names them; `[]`: none.
    """
    resources: parts.Resources = parts.Resources()
    retries: parts.Retries = parts.Retries()
    on_oom: dict[str, Annotated[parts.Number, Field(gt=0, lt=1)]] = Field(default={})
    """After an attempt whose GPU memory was full, the trial continues with these parameters of the
    space multiplied: `{batch_size: 0.5}`. Values stay within the space.
    """
    checkpoint: SavingField = parts.Checkpointing()
    lease: Annotated[parts.Number, Field(ge=3, le=LONGEST)] = 30
    """Seconds without a message after which an attempt counts as lost; it sends one each second."""
    stall: Annotated[parts.Seconds, Field(gt=0)] | None = None
    """An attempt that reports nothing for this long hangs and is retried: seconds, or "10min",
    "90s", "2h". None: never.
    """
    stop: parts.Stop = parts.Stop()
    seed: Annotated[int, Field(strict=True, ge=0)] = 0
    """Determines all random numbers of the experiment."""
    market: MarketField | None = None
    """On which kind of machine trials run: `spot`, `on-demand`, or spot first and when to change to
    the other kind. None: on any.
    """
    price_per_hour: Annotated[parts.Number, Field(ge=0)] | None = None
    """Price of one slot (a running attempt of usual width, or one of its workers) per hour, in any
    currency, on nodes whose labels have no price. None: time on these nodes is not counted as cost.
    """
    store_prices: parts.StorePrices | None = None
    """What the requests to the state's bucket, and the bytes that it sends, cost: they count as a
    part of the experiment's cost. None: they are not counted.
    """
    mlflow: parts.Recording = parts.Recording()
    register: RegisterField = None
    """The name under which the best trial's model is registered in MLflow, as a new version at the
    end of a session.
    """
    notify: Notify | None = None
    """Whom to notify about the experiment."""
    when: When | None = None
    """When the experiment starts automatically: `regrow schedule` makes a schedule of it. None: it
    is started by hand.
    """
    serve: Serve | None = None
    """What a station serves from the experiment, and keeps running. None: nothing."""
    event: dict[str, Any] | None = None
    """What started this run; the trainable can read it as `trial.event`. The station sets it."""
    state: str | None = None
    """Root of the durable state; None: $REGROW_STATE, else ./.regrow."""
    env: dict[str, str | None] = Field(default={})
    """Environment variables of the workers; None forwards the driver's value, which is never
    stored.
    """
    working_dir: str | None = None
    """Folder of the trainable's code, put on the workers' import path (and shipped to other
    machines). None: the spec file's.
    """

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, env: dict[str, str | None]) -> dict[str, str | None]:
        for name, value in env.items():
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                hint = "write letters, digits and '_'"
                raise SpecError(f"env.{name}", "***", "is no name of a variable", hint)
            if "\0" in (value or ""):
                raise SpecError(f"env.{name}", "***", "has a NUL", "write text without it")
            if len((value or "").encode()) > MOST_VARIABLE:
                problem = f"is longer than {MOST_VARIABLE:,} bytes, and systems take little more"
                hint = "write it into a file beside the code, and the file's name here"
                raise SpecError(f"env.{name}", "***", problem, hint)
            if value is not None and (is_secret(name) or holds_secret(value)):
                hint = f"write `{name}: null`, which forwards it from your environment"
                problem = "looks like a secret, which would be stored"
                raise SpecError(f"env.{name}", "***", problem, hint)
        return env

    @property
    def choice(self) -> SearchChoice:
        """The search and the schedule, with reasons for those left to regrow."""
        return choose(
            self.search,
            self.schedule,
            self.setting,
            repeats=self.repeats,
            first=any(point.metrics is None for point in self.points),
        )

    @property
    def resolved(self) -> Self:
        """The specification with the search and the schedule that a new experiment would get."""
        if self.search != AUTO:
            return self
        choice = self.choice
        return self.model_copy(update={"search": choice.search, "schedule": choice.schedule})

    def like(self, stored: Keys) -> Self:
        """Return the specification with the choices of the experiment `stored` for `auto`."""
        left = [key for key in ("search", "schedule") if getattr(self, key) == AUTO]
        left += ["learn_from"] if self.learn_from is None else []
        return self.model_copy(update={key: getattr(stored, key) for key in left})

    @property
    def objective(self) -> parts.Metric:
        """The metric that governs search, schedule and `best`."""
        if isinstance(self.metric, str):
            return parts.Metric(name=self.metric, mode=self.mode or "min")
        return self.metric[0]

    @property
    def metrics(self) -> tuple[parts.Metric, ...]:
        """All metrics to optimize, the objective first."""
        return (self.objective,) if isinstance(self.metric, str) else self.metric

    @property
    def clock(self) -> StepMetric | None:
        """How to read the time of a report; None: reports are counted."""
        count = self.step_metric
        return None if count is None else StepMetric(name=count.name, first=count.first)

    @property
    def limits(self) -> tuple[Constraint, ...]:
        """The parsed constraints."""
        return tuple(
            Constraint.parse(text, f"constraints.{place}")
            for place, text in enumerate(self.constraints)
        )

    @property
    def setting(self) -> Setting:
        """The input from which the sampler and the scheduler are made."""
        return Setting(
            space=self.space,
            modes=tuple(metric.mode for metric in self.metrics),
            max_steps=self.max_steps,
            trials=self.trials,
            trainings=self.trainings,
            seed=self.seed,
            constraints=len(self.constraints),
        )

    @property
    def budget_steps(self) -> int | None:
        """The steps that all trials together may do; None: not limited."""
        if self.budget is None or self.budget.hours is not None:
            return None
        if self.budget.steps is not None:
            return self.budget.steps
        return round((self.budget.trainings or 0) * (self.max_steps or 0))

    @property
    def trainings(self) -> float | None:
        """The full trainings that the budget allows; None: its steps are not limited."""
        steps = self.budget_steps
        return None if steps is None or self.max_steps is None else steps / self.max_steps

    @property
    def limited(self) -> bool:
        """Whether a budget, money or a deadline limit the experiment."""
        return self.budget is not None or self.stop.limited

    @property
    def total(self) -> int:
        """The total number of trials, each repeat counted."""
        if self.trials is not None:
            return self.trials
        cells = samplers.size(self.resolved.search, self.setting)
        if cells is not None:
            return cells * self.repeats
        return UNLIMITED * self.repeats if self.limited else 0

    @property
    def most_steps(self) -> int:
        """Most steps of a trial, with the default if `max_steps` is not given."""
        return self.max_steps or MOST_STEPS

    @property
    def endless(self) -> bool:
        """Whether no condition ends a trial before `most_steps`."""
        if self.max_steps is not None or self.stop.trial != parts.StopTrial():
            return False
        stops = (self.stop, *self.stop.all)
        timed = any(stop.hours is not None or stop.target is not None for stop in stops)
        return not (timed or schedulers.kind(self.resolved.schedule).decides)

    @property
    def program(self) -> str:
        """Where the code is: the trainable, the user's environment, or the first argument of the
        command that has a file's ending.
        """
        if self.rllib is not None:
            return self.rllib.env
        return next(
            (part for part in self.command if re.search(r"\.[A-Za-z]+$", part)), self.trainable
        )

    @property
    def takes_first(self) -> bool:
        """Whether the search accepts further configurations to try first. Not if it tries each
        configuration once, or in its own order.
        """
        search = self.resolved.search
        return self.own_sampler or (
            samplers.size(search, self.setting) is None and not samplers.gives_budgets(search)
        )

    @property
    def own_sampler(self) -> bool:
        """Whether the sampler is the user's, or Optuna's, given by its import path."""
        return is_path(chosen(self.search)) or chosen(self.search) == "optuna"

    @property
    def own_scheduler(self) -> bool:
        """Whether the scheduler is the user's, given by its import path."""
        return any(is_path(name) for name in schedulers.named(self.schedule))

    @property
    def ending(self) -> Ending:
        """When one trial has done enough, without the user's function."""
        plateau = self.stop.trial.plateau or parts.Plateau()
        return Ending(
            sign=self.objective.sign,
            target=self.stop.trial.target,
            steps=plateau.steps,
            tolerance=plateau.tolerance,
        )

    def identity(self) -> dict[str, Any]:
        """Return what identifies the experiment: all keys that are fixed between sessions."""
        return self.model_dump(
            mode="json", exclude={"state", "trials", "when", "duplicates", *PER_SESSION}
        )

    def settings(self) -> dict[str, Any]:
        """Return the values that may differ between sessions, as plain data."""
        return self.model_dump(mode="json", include=set(PER_SESSION))

    def settings_since(self, first: Keys) -> dict[str, Any]:
        """Return the settings that differ from those of the experiment as it was created."""
        before = first.settings()
        return {key: value for key, value in self.settings().items() if value != before[key]}

    @property
    def recorded_as(self) -> str:
        """The name of the MLflow experiment in which it is recorded."""
        return self.mlflow.experiment or self.name
