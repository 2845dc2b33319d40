"""The parts of a specification: what stands below its keys. The specification itself is in `spec.py`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from regrow.search.durations import Span, seconds
from regrow.search.errors import SpecError
from regrow.search.mode import Mode, sign_of
from regrow.search.needs import Bundle, Needs, Shape
from regrow.search.spec.descriptions import descriptions

IMPORT_PATH = re.compile(r"(?:[^:\n]+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):[^\W\d]\w*(?:\.[^\W\d]\w*)*")
"""Of a function or class: in a file, or in a module."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True)]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema says what stands below each field: editors show it, and the reference is made of it."""
        schema = handler(core)
        fields = handler.resolve_ref_schema(schema)["properties"]
        for one in cls.__mro__:  # a field may be that of a base
            for name, text in descriptions(one).items() if issubclass(one, Part) and one is not Part else ():
                fields[name].setdefault("description", text)
        return schema


class Metric(Part):
    """A metric that the trainable reports, and whether less or more of it is better."""

    name: Annotated[str, Field(min_length=1, max_length=250)]
    """As the trainable reports it."""
    mode: Mode
    """Whether less (`min`) or more (`max`) of it is better."""

    @property
    def sign(self) -> float:
        """What makes it a cost, of which less is better, by multiplication."""
        return sign_of(self.mode)


def in_bytes(value: Any) -> Any:
    """'2 GiB' or '500MB' as a number of bytes; anything else unchanged, for pydantic to judge."""
    if isinstance(value, str) and (m := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", value.lower())):
        return int(float(m[1]) * _UNITS[m[2]])
    return value


_RANGE = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2}
Memory = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^\s*\d+(\.\d+)?\s*([kmgtKMGT][iI]?)?[bB]?\s*$")]


Bytes = Annotated[Count, BeforeValidator(in_bytes, json_schema_input_type=Memory), Field(ge=0)]
Worker = Annotated[Count, Field(ge=1)]


class Bundled(Part):
    """What lies on one node in one piece."""

    cpu: Annotated[Number, Field(ge=0)] = 1
    """CPUs."""
    gpu: Annotated[Number, Field(ge=0)] = 0
    """GPUs."""
    memory: Bytes = 0
    """Bytes, or text such as "2GiB"; 0 means not limited."""
    custom: dict[str, Annotated[Number, Field(gt=0)]] = {}
    """Custom Ray resources by name."""

    @property
    def bundle(self) -> Bundle:
        """By Ray's names; what is not needed is left out."""
        each = {"CPU": self.cpu, "GPU": self.gpu, "memory": self.memory, **self.custom}
        return {name: amount for name, amount in each.items() if amount}


class Children(Bundled):
    """What the tasks and actors of Ray that a trial starts itself have of the cluster: `count` times this."""

    count: Annotated[Count, Field(ge=1)] = 1
    """How many of these bundles."""


class Resources(Bundled):
    """What one slot of an attempt needs, and each of its `workers`, in Ray's units; fractions of a CPU or GPU share it."""

    workers: Worker | Annotated[tuple[Worker, ...], WithJsonSchema(_RANGE)] | None = None
    """A trial is a group of so many processes, which all run the trainable; `[2, 4]`: of as many of these as there is room for
    when an attempt starts. None: it is one process."""
    reduce: Literal["rank0", "mean"] = "rank0"
    """Whose metrics count, of a group: those of the first worker, or of each metric the mean over all workers."""
    children: Children | None = None
    """What a trial has beside its own for the tasks and actors of Ray that it starts itself, which end with it. None: nothing."""

    @model_validator(mode="after")
    def _one_range(self) -> Self:
        if isinstance(self.workers, tuple):
            given, key = list(self.workers), "resources.workers"
            if len(given) != 2:
                raise SpecError(key=key, value=given, problem="is no range", hint="write [least, most], or one number")
            if given[0] > given[1]:
                raise SpecError(key=key, value=given, problem="bounds are reversed", hint=f"write {given[::-1]}")
        return self

    @property
    def widths(self) -> tuple[int, int]:
        """How many workers a trial has at least and at most; (1, 1) without `workers`."""
        match self.workers:
            case None:
                return 1, 1
            case int(fixed):
                return fixed, fixed
            case (least, most):
                return least, most
        raise AssertionError(self.workers)

    @property
    def ranked(self) -> bool:
        """Whether an attempt may have several workers."""
        return self.widths[1] > 1

    @property
    def grouped(self) -> bool:
        """Whether an attempt has a placement group, whose bundles may lie on several nodes."""
        return self.ranked or self.children is not None

    @property
    def shape(self) -> Shape:
        """What its attempts may need, whatever their width."""
        (least, most), children = self.widths, self.children
        return Shape(
            slot=self.bundle, child=children.bundle if children is not None else {},
            children=children.count if children is not None else 0, grouped=self.grouped, least=least, most=most,
        )

    def needs(self, width: int = 1) -> Needs:
        """What an attempt of `width` slots needs: a bundle for each, then those of its children."""
        return self.shape.needs(width)


Budget = Annotated[Count, Field(ge=0)] | Literal["unlimited"]


class Retries(Part):
    """How many more attempts a trial gets after a loss, counted apart by class."""

    preempted: Budget = "unlimited"
    """The node went away, or the driver did."""
    infrastructure: Budget = 5
    """The worker was killed, ran out of memory, storage was away."""
    error: Budget = 0
    """The trainable raised."""
    stalled: Budget = 2
    """It reported nothing for as long as `stall` says."""
    spot: Annotated[Count, Field(ge=0)] = 3
    """After so many attempts whose node went away, a trial goes to nodes that are not spot, where there are any."""

    def allows(self, cause: str, used: int) -> bool:
        """Whether another attempt may follow after `used` attempts have ended for `cause`."""
        budget: Budget = getattr(self, cause)
        return budget == "unlimited" or used <= budget


class Market(Part):
    """The kind of machine that trials run on, as Ray's label "ray.io/market-type" tells them apart."""

    first: Literal["spot", "on-demand"]
    """The kind that an attempt asks for first; a node without the label is on-demand."""
    after: Annotated[Number, BeforeValidator(seconds, json_schema_input_type=Span), Field(gt=0)] | None = None
    """An attempt that has waited so long for its machine asks for the other kind: seconds, or "10min". None: it waits on."""
    evictions: Annotated[Count, Field(ge=1)] | None = None
    """After so many attempts whose node went away, a trial asks for machines on demand. None: never."""


def as_market(value: Any) -> Any:
    """`market: spot` is short for {first: spot}."""
    return {"first": value} if isinstance(value, str) else value


class Checkpointing(Part):
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


class Reports(Part):
    """Where the reports of a `command` come from, if not from its standard output."""

    file: Annotated[str, Field(min_length=1)] | None = None
    """A file that it writes, lines of JSON or, if its name ends so, .csv; relative to `{scratch}`. It is told as `{report}`."""

    @model_validator(mode="after")
    def _below(self) -> Self:
        if self.file is not None and (self.file.startswith("/") or ".." in self.file.split("/")):
            hint = "write a relative path; the command is told the whole one as {report} and $REGROW_REPORT"
            raise SpecError(key="report.file", value=self.file, problem="is outside of the trial's own folder", hint=hint)
        return self


class StepCount(Part):
    """A metric that counts steps, where reports do not: `epoch`, or the samples seen so far."""

    name: Annotated[str, Field(min_length=1, max_length=250)]
    """As the trainable reports it."""
    first: Count = 1
    """The number of the first step: 0 where it counts from 0."""


def as_step_count(value: Any) -> Any:
    """It may be given by its name alone."""
    return {"name": value} if isinstance(value, str) else value


class Plateau(Part):
    """The best value improved by no more than `tolerance` for so many trials (or, for one trial, steps)."""

    trials: Annotated[Count, Field(ge=1)] | None = None
    """For an experiment: trials that ended since."""
    steps: Annotated[Count, Field(ge=1)] | None = None
    """For a trial: steps since."""
    tolerance: Annotated[Number, Field(ge=0)] = 0.0
    """In the objective's own unit."""


class StopTrial(Part):
    """Conditions that end one trial as done before `max_steps`; the first that holds counts."""

    target: Number | None = None
    """Its objective reached this value."""
    hours: Annotated[Number, Field(gt=0)] | None = None
    """It ran for so long, all its attempts together: it ends at its next report, or soon after where none comes."""
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
        if self.function is not None and not IMPORT_PATH.fullmatch(self.function):
            hint = "write file.py:function or package.module:function"
            raise SpecError(key="stop.trial.function", value=self.function, problem="names no function", hint=hint)
        return self


class Stop(Part):
    """Conditions that end the experiment before all its trials are done; the first that holds counts."""

    target: Number | None = None
    """The first metric reached this value (at a step that meets all constraints)."""
    hours: Annotated[Number, Field(gt=0)] | None = None
    """The experiment ran for so long, over all its sessions; the time between them does not count."""
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

    @property
    def tolerance(self) -> float:
        """By how much a value must be better to end a plateau of the experiment; all of these have the same."""
        return min((p.tolerance for p in self.plateaus()), default=0.0)


class Recording(Part):
    """How the experiment is recorded in MLflow."""

    experiment: Annotated[str, Field(min_length=1, max_length=250)] | None = None
    """The MLflow experiment that its runs go to, which several experiments may share; None: one of its own, by its name."""
    system_metrics: Annotated[bool, Field(strict=True)] = False
    """Whether MLflow's monitor records the load of CPU, memory, disk, network and GPU in each trial's run (needs psutil)."""


class Point(Part):
    """A configuration to try first or, with a result, to learn from without trying it."""

    config: dict[str, Any]
    """Nested as the space is."""
    metrics: dict[str, Number] | None = None
    """What is known of it; None: it is tried."""


class WarmStart(Part):
    """An earlier experiment, and how its space differs."""

    experiment: str
    """Its name."""
    given: dict[str, Any] = {}
    """What a parameter that it did not have was there, by dotted name."""
    ignore: tuple[str, ...] = ()
    """Parameters that only it had, and that made no difference."""


def as_warm_start(value: Any) -> Any:
    """An experiment may be given by its name alone."""
    return {"experiment": value} if isinstance(value, str) else value


def as_names(value: Any) -> Any:
    """One name may be given alone; "auto" is none."""
    return [value] if isinstance(value, str) and value != "auto" else value


def as_point(value: Any) -> Any:
    """A point may be written as the configuration alone."""
    return {"config": value} if isinstance(value, dict) and not {"config", "metrics"} >= set(value) else value
