"""The parts of a specification: the values below its keys. The whole is in `spec.py`."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import zlib
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from regrow.search.bounds import LARGEST, LONGEST, MOST, MOST_HOURS, MOST_TOGETHER
from regrow.search.durations import Span, bounded_seconds
from regrow.search.errors import SpecError
from regrow.search.measured import Traffic
from regrow.search.mode import Mode, sign_of
from regrow.search.needs import Bundle, Needs, Shape
from regrow.search.space import Space
from regrow.search.spec.moments import moment

IMPORT_PATH = re.compile(r"(?:[^:\n]+\.py|[^\W\d]\w*(?:\.[^\W\d]\w*)*):[^\W\d]\w*(?:\.[^\W\d]\w*)*")
"""Form of the path of a function or class: in a file, or in a module."""
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
"""Form of an experiment's name."""


def as_name(written: str, otherwise: str) -> str:
    """Return the name of an experiment that another tool calls `written`: the same if it has the
    form, else its letters, with what tells it from others of the same letters. `otherwise`: the
    letters of one that has none.
    """
    if re.fullmatch(NAME, written):
        return written
    letters = re.sub(r"[^A-Za-z0-9_.-]+", "-", written).strip("-._")[:54] or otherwise
    return f"{letters}-{zlib.crc32(written.encode(errors='backslashreplace')):08x}"


def _unbounded(schema: dict[str, Any]) -> None:
    """Leave LARGEST out of a JSON schema: to readers of the reference it says nothing."""
    if schema.get("maximum") == LARGEST:
        del schema["maximum"]


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Seconds = Annotated[Number, BeforeValidator(bounded_seconds, json_schema_input_type=Span)]
"""A number, or text such as "10min"."""
Hours = Annotated[Number, Field(gt=0, le=MOST_HOURS)]
Deadline = Annotated[
    Annotated[float, Field(gt=0)] | str,
    BeforeValidator(moment, json_schema_input_type=Span | str),
]
"""Seconds from the creation, or a time in ISO 8601 with an offset."""
Count = Annotated[int, Field(strict=True, le=LARGEST, json_schema_extra=_unbounded)]
Text = Annotated[str, Field(min_length=1)]


def alone(key: str) -> Callable[[Any], Any]:
    """Return a validator that expands text alone to {key: text}."""
    return lambda value: {key: value} if isinstance(value, str) else value


def descriptions(model: type) -> dict[str, str]:
    """Return the text below each field that has one, as one line, for a JSON schema.

    Pydantic can do this itself (`use_attribute_docstrings`), but reads the source when a class is
    made: 70 ms for each process. Here it is read only when the schema is requested.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                found[name] = " ".join(text.split())
    return found


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add the text below each field to the schema, for editors and the reference."""
        schema = handler(core)
        fields = handler.resolve_ref_schema(schema)["properties"]
        for one in cls.__mro__:  # a field may be that of a base
            for name, text in (
                descriptions(one).items() if issubclass(one, Part) and one is not Part else ()
            ):
                fields[name].setdefault("description", text)
        return schema

    def to_json(self) -> dict[str, Any]:
        """Return plain data that makes an equal one."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Metric(Part):
    """A metric that the trainable reports, and whether less or more of it is better."""

    name: Annotated[str, Field(min_length=1, max_length=250)]
    """Its name in the trainable's reports."""
    mode: Mode
    """Whether less (`min`) or more (`max`) of it is better."""

    @property
    def sign(self) -> float:
        """The factor that makes the metric a cost, of which less is better."""
        return sign_of(self.mode)


def in_bytes(value: Any) -> Any:
    """Return '2 GiB' or '500MB' in bytes; anything else unchanged, for pydantic to check."""
    if isinstance(value, str) and (
        m := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?|)b?\s*", value.lower())
    ):
        return int(min(float(m[1]) * _UNITS[m[2]], 2.0 * LARGEST))  # which is refused
    return value


_RANGE = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2}
Memory = (
    Annotated[int, Field(ge=0)]
    | Annotated[str, Field(pattern=r"^\s*\d+(\.\d+)?\s*([kmgtKMGT][iI]?)?[bB]?\s*$")]
)


Bytes = Annotated[Count, BeforeValidator(in_bytes, json_schema_input_type=Memory), Field(ge=0)]
Worker = Annotated[Count, Field(ge=1, le=MOST_TOGETHER)]


_TYPE, _SOME = "accelerator_type:", 0.001
"""Ray's resource of nodes with a type of GPU, of which each has 1, and the part that Ray itself
asks for.
"""


_LEAST = 0.0001
"""The least amount of a resource that Ray takes."""


def _coarse(amount: float) -> float:
    """Return an amount that Ray takes. Raises ValueError, with what to write, for a finer one."""
    if 0 < amount < _LEAST:
        raise ValueError(f"is finer than Ray divides resources; write {_LEAST} or more")
    return amount


def _whole_gpus(amount: float) -> float:
    """Return a number of GPUs that Ray takes. Raises ValueError for 1.5."""
    if amount > 1 and amount != int(amount):
        raise ValueError(
            "is more than one GPU and not whole, which no trial can have; write"
            f" {int(amount)} or {int(amount) + 1}"
        )
    return amount


Amount = Annotated[Number, AfterValidator(_coarse)]
"""An amount of one of Ray's resources."""


class Bundled(Part):
    """Resources in one piece, on one node."""

    cpu: Annotated[Amount, Field(ge=0)] = 1
    """CPUs."""
    gpu: Annotated[Amount, Field(ge=0), AfterValidator(_whole_gpus)] | Literal["auto"] = 0.0
    """GPUs; a fraction shares one. `auto`: one if the cluster has some when a session starts, else
    none.
    """
    accelerator: Annotated[str, Field(pattern=r"^[\w.-]{1,60}$")] | None = None
    """The type of the GPU, by Ray's name: A100, H100, T4. None: any."""
    memory: Bytes = 0
    """Bytes, or text such as "2GiB"; 0 means not limited."""
    custom: dict[str, Annotated[Amount, Field(gt=0)]] = {}
    """Custom Ray resources by name."""

    @property
    def bundle(self) -> Bundle:
        """The resources by Ray's names; only what is needed is listed."""
        gpu = 0 if self.gpu == "auto" else self.gpu
        kind = {} if self.accelerator is None else {f"{_TYPE}{self.accelerator}": _SOME}
        each = {"CPU": self.cpu, "GPU": gpu, "memory": self.memory, **kind, **self.custom}
        return {name: amount for name, amount in each.items() if amount}


class Children(Bundled):
    """Resources for the Ray tasks and actors that a trial starts itself: `count` times this
    bundle.
    """

    count: Annotated[Count, Field(ge=1, le=MOST_TOGETHER)] = 1
    """How many of these bundles."""


class Resources(Bundled):
    """What one slot of an attempt needs, and each of its `workers`, in Ray's units; fractions of a
    CPU or GPU share it.
    """

    gpu_memory: Bytes = 0
    """Instead of `gpu`: the memory of one GPU that a trial needs, bytes or text such as "6GB". As
    many trials share a GPU as fit, each limited to its part. 0: by `gpu`.
    """
    workers: Worker | Annotated[tuple[Worker, ...], WithJsonSchema(_RANGE)] | None = None
    """A trial is a group of this many processes, which all run the trainable; `[2, 4]`: as many of
    these as there is room for when an attempt starts. None: it is one process.
    """
    reduce: Literal["rank0", "mean"] = "rank0"
    """Whose metrics count in a group: those of the first worker, or for each metric the mean over
    all workers.
    """
    children: Children | None = None
    """What a trial has in addition for the Ray tasks and actors that it starts itself, which end
    with it. None: nothing.
    """

    @model_validator(mode="after")
    def _one_range(self) -> Self:
        if isinstance(self.workers, tuple):
            given, key = list(self.workers), "resources.workers"
            if len(given) != 2:
                raise SpecError(key, given, "is no range", "write [least, most], or one number")
            if given[0] > given[1]:
                raise SpecError(key, given, "bounds are reversed", f"write {given[::-1]}")
        return self

    @property
    def gpu_share(self) -> float | None:
        """The part of a GPU's memory that each attempt is limited to; None for no limit."""
        part = 0.0 if self.gpu == "auto" else self.gpu
        return part if self.gpu_memory and 0 < part < 1 else None

    @property
    def widths(self) -> tuple[int, int]:
        """Fewest and most workers of a trial; (1, 1) without `workers`."""
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
        """Whether an attempt has a placement group, whose bundles may be on several nodes."""
        return self.ranked or self.children is not None

    @property
    def shape(self) -> Shape:
        """What its attempts may need, for any width."""
        (least, most), children = self.widths, self.children
        return Shape(
            slot=self.bundle,
            child=children.bundle if children is not None else {},
            children=children.count if children is not None else 0,
            grouped=self.grouped,
            least=least,
            most=most,
        )

    def needs(self, width: int = 1) -> Needs:
        """Return the bundles of an attempt of `width` slots: its own, then its children's."""
        return self.shape.needs(width)


Budget = Annotated[Count, Field(ge=0)] | Literal["unlimited"]


class Retries(Part):
    """How many more attempts a trial gets after a loss, counted separately for each class."""

    preempted: Budget = "unlimited"
    """The node went away, or the driver did."""
    infrastructure: Budget = 5
    """The worker was killed, asked to end by others than regrow, or ran out of memory, or storage
    was unavailable.
    """
    error: Budget = 0
    """The trainable raised."""
    stalled: Budget = 2
    """It reported nothing for as long as `stall` allows."""
    oom: Budget | None = None
    """The memory of its GPU was full. None: 5 if `on_oom` makes the configuration smaller, else 0.
    """
    no_progress: Budget = 10
    """Attempts in a row that may be preempted without one step that the trial has not done
    before.
    """
    spot: Annotated[Count, Field(ge=0)] = 3
    """After this many attempts whose node went away, a trial goes to nodes that are not spot, if
    there are any.
    """

    anew: bool = False
    """Failed trials that are tried again at the user's request (`--retry-failed`) begin anew: their
    checkpoints are deleted.
    """

    @model_validator(mode="before")
    @classmethod
    def _before_no_progress(cls, data: Any, info: ValidationInfo) -> Any:
        """Keep the behaviour of a log before `no_progress`. A log names all of its limits."""
        old = info.context is not None and info.context["recorded"] and isinstance(data, dict)
        if old and data.keys() >= {"preempted", "infrastructure", "error"}:
            return {"no_progress": "unlimited", **data}
        return data

    def allows(self, cause: str, used: int, *, smaller: bool = False) -> bool:
        """Return whether another attempt may follow after `used` have ended for `cause`. `smaller`:
        it would have a smaller configuration.
        """
        budget: Budget | None = getattr(self, cause)
        if budget is None:
            budget = 5 if smaller else 0
        return self.within(budget, used)

    @staticmethod
    def within(budget: Budget, used: int) -> bool:
        """Return whether `used` attempts are within a budget."""
        return budget == "unlimited" or used <= budget


class Market(Part):
    """The kind of machine that trials run on, by Ray's label "ray.io/market-type"."""

    first: Literal["spot", "on-demand"]
    """The kind that an attempt asks for first; a node without the label is on-demand."""
    after: Annotated[Seconds, Field(gt=0)] | None = None
    """An attempt that has waited this long for its machine asks for the other kind: seconds, or
    "10min". None: it waits on.
    """
    evictions: Annotated[Count, Field(ge=1)] | None = None
    """After this many attempts whose node went away, a trial asks for on-demand machines. None:
    never.
    """
    deadline: Deadline | None = None
    """With `first: spot`: all trials are to have ended by then, so on-demand machines are asked for
    as soon as spot machines alone would be too slow; in the forms of `stop.deadline`. None: that
    one, if it is set and the number of trials is limited.
    """

    @model_validator(mode="after")
    def _of_spot(self) -> Self:
        if self.deadline is not None and self.first != "spot":
            problem = "says when to change from spot to on-demand machines"
            raise SpecError("market.deadline", self.deadline, problem, "write first: spot")
        return self


class Checkpointing(Part):
    """When checkpoints are taken, and which are kept. Steps count from 1."""

    every: Literal["auto"] | None = None
    """`auto`: after a time that follows from how long checkpoints take and how often attempts are
    lost (Young and Daly); at every step until both are known.
    """
    every_steps: Annotated[Count, Field(ge=1)] | None = None
    """Every this many steps. With none of the three given: at every step."""
    every_seconds: Annotated[Number, Field(gt=0, le=LONGEST)] | None = None
    """At the first report after this many seconds since the last checkpoint."""
    keep_last: Annotated[Count, Field(ge=1)] = 2
    """How many of a trial's latest checkpoints are kept."""
    keep_best: Annotated[Count, Field(ge=0)] = 1
    """How many of its best ones (by the objective at their step) are kept in addition."""

    @model_validator(mode="after")
    def _one_rhythm(self) -> Self:
        if self.every_steps is not None and self.every_seconds is not None:
            problem = "excludes every_steps"
            key = "checkpoint.every_seconds"
            raise SpecError(key, self.every_seconds, problem, "give one of them")
        if self.every is not None and (self.every_steps or self.every_seconds):
            problem = "excludes every_steps and every_seconds"
            raise SpecError("checkpoint.every", self.every, problem, "give one of them")
        return self


class Reports(Part):
    """Where the reports of a `command` come from, if not from its standard output."""

    file: Annotated[str, Field(min_length=1)] | None = None
    """A file that it writes, lines of JSON or, with the ending .csv, CSV; relative to `{scratch}`.
    It may begin with `{scratch}/` or `{checkpoint}/`. The placeholder `{report}` is its path.
    """

    @field_validator("file")
    @classmethod
    def _filled(cls, file: str | None) -> str | None:
        if file is None:
            return None
        for placeholder, folder in (("{scratch}/", ""), ("{checkpoint}/", "checkpoint/")):
            if file.startswith(placeholder):
                file = folder + file.removeprefix(placeholder)
        if (found := re.search(r"\{[^{}]*\}", file)) is not None:
            problem = f"has the placeholder {found[0]}, which is not filled in here"
            hint = "begin with {scratch}/ or {checkpoint}/; the command gets the path as {report}"
            raise SpecError("report.file", file, problem, hint)
        return file

    @model_validator(mode="after")
    def _below(self) -> Self:
        if self.file is not None and (self.file.startswith("/") or ".." in self.file.split("/")):
            hint = (
                "write a relative path; the command gets the whole path as {report} and"
                " $REGROW_REPORT"
            )
            raise SpecError("report.file", self.file, "is outside of the trial's own folder", hint)
        return self


class StepCount(Part):
    """A metric that counts steps instead of the reports: `epoch`, or the samples seen so far."""

    name: Annotated[str, Field(min_length=1, max_length=250)]
    """Its name in the trainable's reports."""
    first: Annotated[Count, Field(ge=-MOST, le=MOST)] = 1
    """The number of the first step: 0 if it counts from 0."""


class Plateau(Part):
    """The best value improved by no more than `tolerance` for a number of trials (or, for one
    trial, steps).
    """

    trials: Annotated[Count, Field(ge=1)] | None = None
    """For an experiment: trials that ended since the last improvement."""
    steps: Annotated[Count, Field(ge=1)] | None = None
    """For a trial: steps since the last improvement."""
    tolerance: Annotated[Number, Field(ge=0)] = 0.0
    """In the objective's own unit."""


class StopTrial(Part):
    """Conditions that end one trial as done before `max_steps`; the first that holds counts."""

    target: Number | None = None
    """The trial's objective reached this value."""
    hours: Hours | None = None
    """It ran for this long, all its attempts together: it ends at its next report, or soon after if
    none comes.
    """
    plateau: Plateau | None = None
    """{steps: N, tolerance: X}."""
    function: str | None = None
    """Import path of a function (trial number, metrics of the step) -> bool, called at each
    report.
    """

    @property
    def watches(self) -> bool:
        """Whether it needs the objective's values."""
        return self.target is not None or self.plateau is not None

    @model_validator(mode="after")
    def _by_steps(self) -> Self:
        plateau = self.plateau
        if plateau is not None and (plateau.steps is None or plateau.trials is not None):
            hint = "write {steps: N}"
            raise SpecError("stop.trial.plateau", plateau.trials, "counts a trial's steps", hint)
        if self.function is not None and not IMPORT_PATH.fullmatch(self.function):
            hint = "write file.py:function or package.module:function"
            raise SpecError("stop.trial.function", self.function, "names no function", hint)
        return self


class Stop(Part):
    """Conditions that end the experiment before all its trials are done; the first that holds
    counts.
    """

    target: Number | None = None
    """The first metric reached this value (at a step that meets all constraints)."""
    hours: Hours | None = None
    """The experiment ran for this long, over all its sessions; the time between them does not
    count.
    """
    dollars: Annotated[Number, Field(gt=0)] | None = None
    """The experiment may cost this much, in the currency of its prices. Before that all trials save
    and pause; a later session with more continues them. Nodes need a price: by their labels, or
    `price_per_hour`.
    """
    deadline: Deadline | None = None
    """At this moment all is saved and reported: a time such as 2026-12-04T08:00 (of this machine's
    time zone), "2026-12-04T08:00 Europe/Berlin" or 2026-12-04T08:00+01:00, or a span from the
    creation, such as 8h.
    """
    plateau: Plateau | None = None
    """{trials: N, tolerance: X}."""
    trials: Annotated[Count, Field(ge=1)] | None = None
    """This many trials have ended. (`trials:` at the top is the total number.)"""
    failures: Annotated[Count, Field(ge=1)] | Literal["unlimited"] | None = None
    """This many trials have failed, all retries used: the experiment ends as failed, and what still
    runs is stopped at once, without a last checkpoint. Without it a session ends after five failed
    trials if none has reported anything; `unlimited`: no number of failures ends it.
    """
    all: tuple[Stop, ...] = ()
    """Conditions that hold together: true when each of them holds."""
    trial: StopTrial = StopTrial()
    """Conditions that end one trial."""

    @model_validator(mode="after")
    def _by_trials(self) -> Self:
        plateau = self.plateau
        if plateau is not None and (plateau.trials is None or plateau.steps is not None):
            hint = "write {trials: N}"
            raise SpecError("stop.plateau", plateau.steps, "counts the experiment's trials", hint)
        if len({p.tolerance for p in self.plateaus()}) > 1:
            raise SpecError(
                "stop", "plateau", "has two tolerances", "give each plateau the same one"
            )
        if any(inner.trial != StopTrial() for inner in self.all):
            raise SpecError("stop.all", "trial", "is for experiments", "write stop: {trial: ...}")
        if any(inner.limited for inner in self.all):
            problem = "holds dollars or a deadline, which are limits by themselves"
            raise SpecError("stop.all", None, problem, "write stop: {dollars: ...}")
        return self

    @property
    def limited(self) -> bool:
        """Whether money or a deadline limit the experiment."""
        return self.dollars is not None or self.deadline is not None

    def plateaus(self) -> list[Plateau]:
        """Return the plateaus of the experiment, those in `all` included."""
        own = [] if self.plateau is None else [self.plateau]
        return own + [p for inner in self.all for p in inner.plateaus()]

    @property
    def tolerance(self) -> float:
        """By how much a value must be better to end a plateau; the same for all plateaus."""
        return min((p.tolerance for p in self.plateaus()), default=0.0)


class StorePrices(Part):
    """What requests to the store of the state cost, in the currency of the other prices."""

    per_1000_writes: Annotated[Number, Field(ge=0, le=1e6)] = 0
    """A thousand requests that write or list ("PUT, COPY, POST, LIST", "Class A"). Deleting is
    free.
    """
    per_1000_reads: Annotated[Number, Field(ge=0, le=1e6)] = 0
    """A thousand requests that read ("GET", "Class B")."""
    per_gb_out: Annotated[Number, Field(ge=0, le=1e6)] = 0
    """A GB (10^9 bytes) that the store sends; 0 where machines and store are in one region."""

    def of(self, traffic: Traffic) -> float:
        """Return what requests and bytes cost."""
        asked = traffic.writes * self.per_1000_writes + traffic.reads * self.per_1000_reads
        return asked / 1000.0 + traffic.sent / 1e9 * self.per_gb_out


class Training(Part):
    """How much training all trials together may do; exactly one of these."""

    trainings: Annotated[Count | Number, Field(gt=0, le=MOST_HOURS)] | None = None
    """Full trainings: this many times `max_steps` steps, which all trials share."""
    steps: Annotated[Count, Field(ge=1)] | None = None
    """Steps of all trials together. A step that is done again after a loss counts once."""
    hours: Hours | None = None
    """Hours that the experiment runs, over all its sessions, however many trials run at a time; the
    time between sessions does not count.
    """

    @model_validator(mode="after")
    def _one_unit(self) -> Self:
        given = {key: value for key, value in self if value is not None}
        if len(given) != 1:
            problem = f"has {len(given)} units" if given else "is empty"
            hint = "give one of trainings, steps and hours"
            raise SpecError("budget", given, problem, hint)
        return self


def as_training(value: Any) -> Any:
    """Expand a number alone to {trainings: number}."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"trainings": value} if number else value


class Recording(Part):
    """How the experiment is recorded in MLflow."""

    experiment: Annotated[str, Field(min_length=1, max_length=250)] | None = None
    """The MLflow experiment that its runs go to, which several experiments may share; None: a
    separate one with the experiment's name.
    """
    system_metrics: Annotated[bool, Field(strict=True)] = False
    """Whether MLflow's monitor records the load of CPU, memory, disk, network and GPU in each
    trial's run (needs psutil).
    """


class Point(Part):
    """A configuration to try first or, with a result, to learn from without trying it."""

    config: dict[str, Any]
    """Nested like the space."""
    metrics: dict[str, Number] | None = None
    """Its known result; None: it is tried."""

    def within(self, space: Space, place: int) -> Self:
        """Return point number `place` in values of `space`. Raises SpecError."""
        return self.model_copy(update={"config": space.converted(self.config, f"points.{place}")})


class WarmStart(Part):
    """An earlier experiment, and how its space differs."""

    experiment: str
    """Its name."""
    given: dict[str, Any] = {}
    """The value there of a parameter that it did not have, by dotted name."""
    ignore: tuple[str, ...] = ()
    """Parameters that only it had, and that made no difference."""


def as_names(value: Any) -> Any:
    """Expand one name alone to a list; keep "auto"."""
    return [value] if isinstance(value, str) and value != "auto" else value


def as_point(value: Any) -> Any:
    """Expand a configuration alone to {config: ...}."""
    bare = isinstance(value, dict) and not {"config", "metrics"} >= set(value)
    return {"config": value} if bare else value
