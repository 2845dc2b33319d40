"""The search space: named parameters, the conditions between them, and the functions that make
domains in Python.

`Space.parse` is the only way to make one, from YAML and from Python alike. Configurations are flat
inside of regrow (`{"model.layers": 2}`) and nested for a trainable (`Space.nest`). No sampler lives
here.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.search.space.domains import (
    Choice,
    Constant,
    Domain,
    Float,
    Grid,
    Int,
    Json,
    Normal,
    When,
    fresh,
    value_key,
)
from regrow.search.space.scalars import plain
from regrow.search.space.written import Written, read, refuse_foreign, write, write_group

__all__ = [
    "Choice",
    "Condition",
    "Constant",
    "Domain",
    "Float",
    "Grid",
    "Int",
    "Json",
    "Normal",
    "Parameter",
    "Space",
    "choice",
    "constant",
    "grid",
    "integer",
    "logint",
    "loguniform",
    "normal",
    "quniform",
    "randint",
    "uniform",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The condition that the parameter `parameter` (its dotted name) has one of `values`."""

    parameter: str
    values: tuple[Json, ...]
    _keys: frozenset[Hashable] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_keys", frozenset(map(value_key, self.values)))

    def holds(self, config: Mapping[str, Json]) -> bool:
        """Return whether the condition holds in a flat configuration. It does not if the parameter
        is absent.
        """
        return self.parameter in config and value_key(config[self.parameter]) in self._keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A domain under its dotted name. It is part of a configuration only if all conditions in
    `when` hold.
    """

    name: str
    domain: Domain
    when: tuple[Condition, ...] = ()

    def active(self, config: Mapping[str, Json]) -> bool:
        """Return whether the parameter is part of a flat configuration, which has at least the
        parameters that its conditions name.
        """
        return all(condition.holds(config) for condition in self.when)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Parameters in the order in which they were written.

    `flat` has them in the order in which they are decided: a parameter after those that its
    conditions name, otherwise as written.
    """

    parameters: tuple[Parameter, ...]
    flat: tuple[Parameter, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "flat", tuple(_ordered(self.parameters)))

    @classmethod
    def parse(
        cls, mapping: Mapping[str, Any] | Space, key: str = "space", *, recorded: bool = False
    ) -> Space:
        """Return the space that `mapping` describes.

        Args:
            mapping: domains made by the functions below, their written form such as `{uniform: [0,
                1]}`, constants, or maps of the same.
            key: the mapping's own path, for messages.
            recorded: it comes from a log. Then a constant that looks like another tool's range is
                taken as a constant, as older versions did.

        Raises SpecError naming key, value and what to do.

        """
        if isinstance(mapping, Space):
            return mapping
        if isinstance(mapping, Mapping) and not recorded:
            refuse_foreign(mapping, key)
        written = {entry.name: entry for entry in read(mapping, key)}
        parameters = []
        for entry in written.values():
            when = tuple(_conditions(entry, written))
            parameters.append(
                Parameter(name=entry.name, domain=replace(entry.domain, when=None), when=when)
            )
        _refuse_cycle(parameters, {entry.name: entry.key for entry in written.values()})
        return cls(parameters=tuple(parameters))

    def to_json(self) -> dict[str, Json]:
        """Return the canonical written form: `Space.parse` makes an equal space of it. The order of
        its keys matters.
        """
        names = {parameter.name for parameter in self.parameters}
        forms: dict[str, Json] = {}
        for parameter in self.parameters:
            form = write(parameter.domain)
            if parameter.when:
                if not isinstance(form, dict):
                    form = {"constant": form}
                form["when"] = _written_when(parameter, names)
            forms[parameter.name] = form
        nested = _nested(forms)
        return {name: one if name in names else write_group(one) for name, one in nested.items()}

    def nest(self, config: Mapping[str, Json]) -> dict[str, Json]:
        """Return the configuration as the trainable sees it: "model.layers" becomes {"model":
        {"layers": ...}}.

        Lists and maps in it are copies. A group without an active parameter is absent.
        """
        return _nested({name: fresh(value) for name, value in config.items()})

    def point(
        self, written: Mapping[str, Any], key: str, *, rounded: bool = True
    ) -> dict[str, Json]:
        """Return the flat configuration that a user wrote, nested or with dotted names, in the
        order of `flat`.

        Constants may be left out. Values become the domain's own (`Domain.own`).

        Args:
            written: what the user wrote.
            key: its path, for messages.
            rounded: whether a value that equals one of the domain but for rounding becomes that
                one. False keeps it, as older logs have it.

        Raises SpecError below `key` for a name that is unknown or not active, a value outside of
        its domain, and a missing parameter.

        """
        names = {parameter.name for parameter in self.flat}
        given = dict(_leaves(plain(written), names))
        config: dict[str, Json] = {}
        for parameter in self.flat:
            name, domain = parameter.name, parameter.domain
            if not parameter.active(config):
                if name in given:
                    problem = "has no place: its condition does not hold"
                    raise SpecError(f"{key}.{name}", given[name], problem, "leave it out")
                continue
            if name not in given and not isinstance(domain, Constant):
                raise SpecError(f"{key}.{name}", None, "is missing", f"give one of {write(domain)}")
            value = given.get(name, domain.cell(0) if isinstance(domain, Constant) else None)
            try:
                own = domain.own(value)
            except ValueError:
                raise SpecError(
                    f"{key}.{name}",
                    value,
                    "is outside of its domain",
                    f"it is one of {write(domain)}",
                ) from None
            config[name] = own if rounded or own == value else value
        if unknown := [name for name in given if name not in names]:
            raise SpecError(
                f"{key}.{unknown[0]}",
                given[unknown[0]],
                "is no parameter",
                nearest(unknown[0], names),
            )
        return config

    def converted(self, written: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Return `written` in the form in which it is written, with the domains' own values. Raises
        as `point` does.
        """
        config = self.point(written, key)

        def own(part: Mapping[str, Any], group: str) -> dict[str, Any]:
            return {
                word: config[name]
                if (name := f"{group}{word}") in config
                else own(value, f"{name}.")
                for word, value in part.items()
            }

        return own(written, "")

    def active(self, config: Mapping[str, Json]) -> tuple[str, ...]:
        """Return the names of the parameters whose conditions hold in a (partial) flat
        configuration, in the order of `flat`.
        """
        return tuple(parameter.name for parameter in self.flat if parameter.active(config))


def _leaves(
    written: Mapping[str, Any], names: Collection[str], group: str = ""
) -> Iterator[tuple[str, Any]]:
    for word, value in written.items():
        name = f"{group}{word}"
        if isinstance(value, Mapping) and name not in names:
            yield from _leaves(value, names, f"{name}.")
        else:
            yield name, value


def _nested(flat: Mapping[str, Json]) -> dict[str, Json]:
    nested: dict[str, Json] = {}
    for name, value in flat.items():
        *groups, last = name.split(".")
        target = nested
        for group in groups:
            target = target.setdefault(group, {})
        target[last] = value
    return nested


def _conditions(entry: Written, written: Mapping[str, Written]) -> Iterable[Condition]:
    """Return the conditions on a parameter, its own and those of its groups, merged to one for each
    parent.
    """
    key = f"{entry.key}.when"
    merged: dict[str, Condition] = {}
    for group, form in entry.conditions:
        if not isinstance(form, Mapping) or not form:
            raise SpecError(
                key, form, "is not a map of conditions", "write when: {parameter: value}"
            )
        for name, values in plain(form).items():
            parent = _resolve(name, group, written)
            if parent is None:
                known = [other for other in written if other != entry.name]
                hint = nearest(name, known) if known else "there is no other parameter"
                raise SpecError(f"{key}.{name}", values, f"there is no parameter {name!r}", hint)
            _check_condition(f"{key}.{name}", values, parent, written[parent].domain)
            allowed = list(values) if isinstance(values, (list, tuple)) else [values]
            if parent in merged:
                allowed = [value for value in allowed if merged[parent].holds({parent: value})]
                if not allowed:
                    kept = list(merged[parent].values)
                    problem = f"contradicts the group's condition that {parent} is one of {kept}"
                    raise SpecError(f"{key}.{name}", values, problem, "remove one of them")
            merged[parent] = Condition(parameter=parent, values=tuple(allowed))
    return merged.values()


def _resolve(name: object, group: str, written: Mapping[str, Written]) -> str | None:
    """Return the dotted name of the parameter that a condition names: a sibling in `group`, else
    from the top; ".name" is from the top.
    """
    if not isinstance(name, str):
        return None
    candidates = (
        [name[1:]] if name.startswith(".") else [f"{group}.{name}", name] if group else [name]
    )
    return next((candidate for candidate in candidates if candidate in written), None)


def _check_condition(key: str, form: Any, parent: str, domain: Domain) -> None:
    values = form if isinstance(form, (list, tuple)) else [form]
    if not values:
        raise SpecError(key, form, "there is no value in the list", "give at least one value")
    if domain.cells is None:
        problem = f"{parent} is continuous, so it hardly ever has exactly this value"
        raise SpecError(
            key, form, problem, "let the condition refer to a choice, int, grid or quniform"
        )
    for position, value in enumerate(values):
        try:
            possible = domain.contains(value)
        except TypeError:  # not JSON, so it can't even be compared
            possible = False
        if not possible:
            hint = f"it is one of {write(domain)}"
            if values is form and domain.contains(form):
                hint = f"write [{form}] to mean the list"
            raise SpecError(key, form, f"{parent} can never be {value!r}", hint)
        if value_key(value) in map(value_key, values[:position]):
            raise SpecError(
                key, form, f"the value {value!r} is there twice", "remove the duplicate"
            )


def _refuse_cycle(parameters: Sequence[Parameter], keys: Mapping[str, str]) -> None:
    parents = {p.name: [c.parameter for c in p.when] for p in parameters}
    state: dict[str, bool] = {}  # False while below it, True when it is known to be free of cycles

    def visit(name: str, path: list[str]) -> None:
        if state.get(name) is False:
            loop = " -> ".join([*path[path.index(name) :], name])
            raise SpecError(
                f"{keys[name]}.when", loop, "conditions are cyclic", "remove one of them"
            )
        if name not in state:
            state[name] = False
            for parent in parents[name]:
                visit(parent, [*path, name])
            state[name] = True

    for name in parents:
        visit(name, [])


def _ordered(parameters: Sequence[Parameter]) -> Iterable[Parameter]:
    """Order parents before children, otherwise keep the given order."""
    by_name = {parameter.name: parameter for parameter in parameters}
    done: dict[str, Parameter] = {}

    def visit(parameter: Parameter) -> None:
        if parameter.name not in done:
            for condition in parameter.when:
                visit(by_name[condition.parameter])
            done[parameter.name] = parameter

    for parameter in parameters:
        visit(parameter)
    return done.values()


def _written_when(parameter: Parameter, names: set[str]) -> dict[str, Json]:
    group = parameter.name.rpartition(".")[0]
    when: dict[str, Json] = {}
    for condition in parameter.when:
        shadowed = bool(group) and f"{group}.{condition.parameter}" in names
        name = f".{condition.parameter}" if shadowed else condition.parameter
        when[name] = [fresh(value) for value in condition.values]
    return when


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


def choice(values: Sequence[Json], *, when: When = None) -> Choice:
    """Return a domain of `values`: JSON scalars, lists or maps."""
    return Choice(values=values, when=when)  # type: ignore[arg-type]  # made a tuple there, or refused


def grid(values: Sequence[Json], *, when: When = None) -> Grid:
    """Return a domain whose `values` are used in turn, also if the sampler is not "grid"."""
    return Grid(values=values, when=when)  # type: ignore[arg-type]  # made a tuple there, or refused


def constant(value: Json, *, when: When = None) -> Constant:
    """Return a domain that is always `value` (JSON). A plain value in the mapping means the same,
    except for a list or map.
    """
    return Constant(value=value, when=when)
