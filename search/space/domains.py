"""The domains that a parameter can have: ranges, choices, constants. Frozen values, checked when
they are made.

A domain knows only its own values: no names, no conditions between parameters (see space.py), no
sampler. Sampling is one pure function, `quantile`: the value at a point of [0, 1) under the
domain's prior.
"""

from __future__ import annotations

import bisect
import copy
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from statistics import NormalDist
from typing import Any, ClassVar, TypeAlias

from regrow.search.errors import SpecError, quoted
from regrow.search.numbers import finite
from regrow.search.space.scalars import check_json, check_number, check_whole, is_finite, plain

Json: TypeAlias = Any  # None, bool, int, float, str, or lists and string-keyed maps of these

_ROUNDING = Decimal("1e-9")
"""Fraction of a step by which a computed number may differ from the value that is meant."""
# as the user wrote it: {"optimizer": "sgd"} or {"optimizer": ["sgd", "adam"]}
When: TypeAlias = Mapping[str, Any] | None


def value_key(value: Json) -> Hashable:
    """Return a key that is equal for equal JSON values. 1 and 1.0 are the same (a JSON writer may
    change one into the other); 1, true and "1" are not. NumPy's values count as Python's. Raises
    TypeError for a value that is not JSON.
    """
    if value is None or isinstance(value, (bool, str)):
        return (type(value).__name__, value)
    if isinstance(value, (int, float)):
        return ("number", value)
    if isinstance(value, dict):
        return ("map", frozenset((k, value_key(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(value_key(v) for v in value))
    if (own := plain(value)) is value:
        raise TypeError(f"{type(value).__name__} is no type of JSON")
    return value_key(own)


def fresh(value: Json) -> Json:
    """Return the value, copied if it is a container, which a trainable could change."""
    return copy.deepcopy(value) if isinstance(value, (list, dict)) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain(ABC):
    """The values that a parameter may take, and the prior probability of each.

    `when` is the condition as written. It is kept until `Space.parse` has found the parameters that
    it names.
    """

    when: When = None

    @property
    @abstractmethod
    def kind(self) -> str:
        """The keyword of the written form, such as "loguniform"."""

    @property
    @abstractmethod
    def cells(self) -> int | None:
        """Number of different values, None for a continuous domain."""

    @abstractmethod
    def cell(self, index: int) -> Json:
        """Return value number `index`, 0 <= index < cells. Raises TypeError if continuous."""

    @abstractmethod
    def quantile(self, u: float) -> Json:
        """Return the value at `u` (0 < u < 1) of the prior."""

    @abstractmethod
    def contains(self, value: Json) -> bool:
        """Return whether the parameter can ever be `value`."""

    @abstractmethod
    def own(self, value: Json) -> Json:
        """Return a contained value in the domain's own form: 3 for 3.0 where numbers are whole, 1.0
        for 1 where they are real, the exact cell for a value that differs by rounding. Raises
        ValueError for a value that the domain does not contain.
        """

    def _contained(self, value: Json) -> Json:
        """Return `value`. Raises ValueError if the domain does not contain it."""
        try:
            contained = self.contains(value)
        except TypeError:  # not JSON
            contained = False
        if not contained:
            raise ValueError(f"{value!r} is not a value of {self.to_json()}")
        return value

    @abstractmethod
    def to_json(self) -> Json:
        """Return the written form without `when`; `Space.parse` makes an equal domain of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range(Domain):
    """Base of Float and Int: `cells` values from `low` in steps, or a continuum."""

    @property
    def _step(self) -> int | float | None:
        raise NotImplementedError

    def _bounds(self) -> tuple[Any, Any]:
        raise NotImplementedError

    @property
    def cells(self) -> int | None:
        low, high = self._bounds()
        if self._step is None:
            return None
        # Decimal, as the numbers were written: (0.3 - 0.0) / 0.1 is 2.9999999999999996 in floats.
        # Computed bounds carry rounding, such as 1 - 0.9 as the upper bound of steps of 0.05.
        width = Decimal(str(high)) - Decimal(str(low))
        return int(width / Decimal(str(self._step)) + _ROUNDING) + 1

    def cell(self, index: int) -> Json:
        low, high = self._bounds()
        if self._step is None:
            raise TypeError(f"a {self.kind} domain is continuous: it has no cell {index}")
        step = Decimal(str(self._step))
        value = Decimal(str(low)) + index * step
        return high if value > Decimal(str(high)) - _ROUNDING * step else type(low)(value)

    def nearest(self, value: float) -> int:
        """Return the index of the cell nearest to `value`."""
        low, _ = self._bounds()
        cells = self.cells
        if self._step is None or cells is None:
            raise TypeError(f"a {self.kind} domain is continuous: it has no cells")
        return int(min(max(round((value - low) / self._step), 0), cells - 1))

    def contains(self, value: Json) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        low, high = self._bounds()
        if self._step is None or not low <= value <= high:
            return bool(low <= value <= high)
        return bool(abs(self.cell(self.nearest(value)) - value) <= float(_ROUNDING) * self._step)

    def own(self, value: Json) -> Json:
        value = self._contained(value)
        return float(value) if self._step is None else self.cell(self.nearest(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Float(_Range):
    """A real number in [low, high]: uniform, log-uniform, or in steps of `step` from `low`."""

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        written = [self.low, self.high] if self.step is None else [self.low, self.high, self.step]
        low, high = (check_number(self.kind, written, bound) for bound in (self.low, self.high))
        _check_bounds(self.kind, written, low, high, log=self.log)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        if self.step is not None:
            step = check_number(self.kind, written, self.step)
            _check_step(self.kind, written, step, high - low, log=self.log)
            object.__setattr__(self, "step", step)

    @property
    def kind(self) -> str:
        return "loguniform" if self.log else "uniform" if self.step is None else "quniform"

    @property
    def _step(self) -> float | None:
        return self.step

    def _bounds(self) -> tuple[float, float]:
        return self.low, self.high

    def quantile(self, u: float) -> float:
        cells = self.cells
        if cells is not None:
            return float(self.cell(int(u * cells)))
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            value = math.exp(low + (high - low) * u)
        else:
            value = self.low + (self.high - self.low) * u
        # exp(log(x)) may miss x by one unit in the last place
        return min(max(value, self.low), self.high)

    def to_json(self) -> Json:
        bounds = [self.low, self.high]
        return {self.kind: bounds if self.step is None else [*bounds, self.step]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Int(_Range):
    """A whole number from `low` to `high`, both included: in steps of `step`, or log-uniform."""

    low: int
    high: int
    log: bool = False
    step: int = 1

    def __post_init__(self) -> None:
        written = [self.low, self.high]
        low, high = (check_whole(self.kind, written, bound) for bound in (self.low, self.high))
        _check_bounds(self.kind, written, low, high, log=self.log)
        step = check_whole("step", self.step, self.step)
        for name, value in (("low", low), ("high", high), ("step", step)):
            object.__setattr__(self, name, value)
        if step != 1:
            _check_step("step", self.step, step, high - low, log=self.log)

    @property
    def kind(self) -> str:
        return "logint" if self.log else "int"

    @property
    def _step(self) -> int:
        return self.step

    def _bounds(self) -> tuple[int, int]:
        return self.low, self.high

    def contains(self, value: Json) -> bool:
        # Exactly, not by `nearest`: 3.0000000001 is not 3, and floats skip numbers beyond 2**53.
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        if not self.low <= value <= self.high or value != int(value):
            return False
        return (int(value) - self.low) % self.step == 0

    def own(self, value: Json) -> int:
        return int(self._contained(value))

    @property
    def cells(self) -> int:
        return (self.high - self.low) // self.step + 1

    def cell(self, index: int) -> int:
        return self.low + index * self.step

    def quantile(self, u: float) -> int:
        if self.log:  # each whole number gets the share of the interval half a unit around it
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return min(max(round(math.exp(low + (high - low) * u)), self.low), self.high)
        return self.cell(int(u * self.cells))

    def to_json(self) -> Json:
        return {self.kind: [self.low, self.high]} | ({} if self.step == 1 else {"step": self.step})


@dataclass(frozen=True, slots=True, kw_only=True)
class Normal(Domain):
    """A real number with a normal prior of mean `mean` and standard deviation `sd`; unbounded."""

    kind: ClassVar[str] = "normal"
    cells: ClassVar[None] = None
    mean: float
    sd: float

    def __post_init__(self) -> None:
        written = [self.mean, self.sd]
        for name in ("mean", "sd"):
            object.__setattr__(self, name, check_number(self.kind, written, getattr(self, name)))
        if self.sd <= 0:
            problem = "the standard deviation must be above 0"
            raise SpecError(self.kind, written, problem, "write [mean, sd]")

    def cell(self, index: int) -> Json:
        raise TypeError(f"a normal domain is continuous: it has no cell {index}")

    def quantile(self, u: float) -> float:
        return finite(NormalDist(self.mean, self.sd).inv_cdf(u))

    def contains(self, value: Json) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return is_finite(value)

    def own(self, value: Json) -> float:
        return float(self._contained(value))

    def to_json(self) -> Json:
        return {self.kind: [self.mean, self.sd]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Domain):
    """One of `values` (JSON scalars, lists or maps), equally likely unless `probabilities` are
    given, one a value, whose sum is the whole.
    """

    values: tuple[Json, ...]
    probabilities: tuple[float, ...] | None = None
    _index: dict[Hashable, int] = field(init=False, repr=False, compare=False, default_factory=dict)
    kind: ClassVar[str] = "choice"

    def __post_init__(self) -> None:
        written = self.values
        # the order of a set differs from process to process
        unordered = isinstance(written, (str, bytes, set, frozenset, Mapping))
        if unordered or not hasattr(written, "__iter__"):
            hint = f"write {self.kind}: [first, second]"
            raise SpecError(self.kind, written, "is not a list of values", hint)
        object.__setattr__(self, "values", tuple(check_json(self.kind, value) for value in written))
        if not self.values:
            problem = "there is nothing to choose from"
            raise SpecError(self.kind, [], problem, "give at least one value")
        for position, value in enumerate(self.values):
            if self._index.setdefault(value_key(value), position) != position:
                problem = f"the value {quoted(value)} is there twice"
                raise SpecError(self.kind, list(self.values), problem, "remove the duplicate")
        if self.probabilities is not None:
            object.__setattr__(self, "probabilities", self._shares(self.probabilities))

    def _shares(self, given: Any) -> tuple[float, ...]:
        """Return the probabilities, checked. Raises SpecError."""
        name = "probabilities"
        hint = f"write {len(self.values)} numbers, such as {name}: [0.5, 0.25, ...]"
        if not isinstance(given, (list, tuple)) or len(given) != len(self.values):
            raise SpecError(name, given, f"is no list of {len(self.values)} numbers", hint)
        shares = tuple(check_number(name, list(given), one) for one in given)
        if min(shares) < 0 or sum(shares) <= 0:
            raise SpecError(name, list(given), "has a number below 0, or nothing above it", hint)
        if math.isinf(sum(shares)):
            shares = tuple(share / len(shares) / 2 for share in shares)
        return shares

    @property
    def cells(self) -> int:
        return len(self.values)

    def cell(self, index: int) -> Json:
        return fresh(self.values[index])

    def index(self, value: Json) -> int:
        """Return the position of `value` among the values. Raises KeyError for another."""
        return self._index[value_key(value)]

    def quantile(self, u: float) -> Json:
        if self.probabilities is None:
            return self.cell(int(u * len(self.values)))
        ends = list(itertools.accumulate(self.probabilities))
        place = bisect.bisect_right(ends, u * ends[-1])
        return self.cell(min(place, len(ends) - 1))

    def contains(self, value: Json) -> bool:
        return value_key(value) in self._index

    def own(self, value: Json) -> Json:
        return self.cell(self.index(self._contained(value)))

    def to_json(self) -> Json:
        shares = {"probabilities": list(self.probabilities)} if self.probabilities else {}
        return {self.kind: [fresh(value) for value in self.values], **shares}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid(Choice):
    """Each of `values` in turn, with any sampler: trial n takes cell n of all grids' product."""

    kind: ClassVar[str] = "grid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(Domain):
    """Always `value` (JSON)."""

    kind: ClassVar[str] = "constant"
    cells: ClassVar[int] = 1
    value: Json

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_json(self.kind, self.value))

    def cell(self, index: int) -> Json:
        return fresh(self.value)

    def quantile(self, u: float) -> Json:
        return fresh(self.value)

    def contains(self, value: Json) -> bool:
        return value_key(value) == value_key(self.value)

    def own(self, value: Json) -> Json:
        self._contained(value)
        return fresh(self.value)

    def to_json(self) -> Json:
        return {self.kind: fresh(self.value)}


def _check_bounds(kind: str, written: Any, low: float, high: float, *, log: bool) -> None:
    if low > high:
        raise SpecError(kind, written, "bounds are reversed", "write [low, high]")
    if low == high:
        raise SpecError(kind, written, "bounds are equal", f"write the constant {low} instead")
    if log and low <= 0:
        hint = "raise low, or drop the log"
        raise SpecError(kind, written, "a logarithm needs bounds above 0", hint)
    if math.isinf(high - low):
        raise SpecError(kind, written, "the range is too wide for a float", "write narrower bounds")


def _check_step(kind: str, written: Any, step: float, width: float, *, log: bool) -> None:
    if log:
        hint = "use choice or grid: [...]"
        raise SpecError(kind, written, "a logarithmic range has no step", hint)
    if step <= 0:
        raise SpecError(kind, written, f"the step {step} is not above 0", "write a positive step")
    if step > width:
        problem = f"the step {step} is bigger than the range {width}"
        raise SpecError(kind, written, problem, "write a smaller step")


# ---- in Python


def uniform(low: float, high: float, *, when: When = None) -> Float:
    """Return a domain of real numbers in [low, high].

    `when`, here and below, is the condition: {"optimizer": "sgd"}, or a list of values.
    """
    return Float(low=low, high=high, when=when)


def loguniform(low: float, high: float, *, when: When = None) -> Float:
    """Return a domain of real numbers in [low, high], uniform in the logarithm; low > 0."""
    return Float(low=low, high=high, log=True, when=when)


def quniform(low: float, high: float, step: float, *, when: When = None) -> Float:
    """Return a domain of low, low + step, ... up to high, all equally likely."""
    return Float(low=low, high=high, step=step, when=when)


def randint(low: int, high: int, step: int = 1, *, when: When = None) -> Int:
    """Return a domain of whole numbers from low to high, BOTH included (unlike Ray Tune's), in
    steps of `step`.
    """
    return Int(low=low, high=high, step=step, when=when)


integer = randint  # published as `rg.int`; `int` would hide the built-in one in this module


def logint(low: int, high: int, *, when: When = None) -> Int:
    """Return a domain of whole numbers from low to high, both included, uniform in the logarithm;
    low >= 1.
    """
    return Int(low=low, high=high, log=True, when=when)


def normal(mean: float, sd: float, *, when: When = None) -> Normal:
    """Return a domain of real numbers from a normal distribution with standard deviation `sd`."""
    return Normal(mean=mean, sd=sd, when=when)


def choice(
    values: Sequence[Json], *, probabilities: Sequence[float] | None = None, when: When = None
) -> Choice:
    """Return a domain of `values`: JSON scalars, lists or maps. `probabilities`: of each value, for
    what is drawn at random; None: all the same.
    """
    return Choice(values=values, probabilities=probabilities, when=when)  # type: ignore[arg-type]  # made tuples there, or refused


def grid(values: Sequence[Json], *, when: When = None) -> Grid:
    """Return a domain whose `values` are used in turn, also if the sampler is not "grid"."""
    return Grid(values=values, when=when)  # type: ignore[arg-type]  # made a tuple there, or refused


def constant(value: Json, *, when: When = None) -> Constant:
    """Return a domain that is always `value` (JSON), which may also be a list or map."""
    return Constant(value=value, when=when)
