"""The search space: named parameters, and the conditions between them.

`Space.parse` is the only way to make one, from YAML and from Python alike. Configurations are flat
inside of regrow (`{"model.layers": 2}`) and nested for a trainable (`Space.nest`). No sampler lives
here.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.nested import leaves
from regrow.search.options import nearest
from regrow.search.space.domains import Constant, Domain, Float, Json, fresh, value_key
from regrow.search.space.scalars import plain
from regrow.search.space.written import Written, read, refuse_foreign, write, write_group

MOST_STEPS = 2**50
"""Most values of a float in steps. A few roundings, each of one part in 2**53, make less than half
a step of so many.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The condition that the parameter `parameter` (its dotted name) has one of `values`."""

    parameter: str
    values: tuple[Json, ...]
    _keys: frozenset[Hashable] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_keys", frozenset(map(value_key, self.values)))

    def holds(self, config: Mapping[str, Json]) -> bool:
        """Return whether the condition holds; not if the parameter is absent."""
        return self.parameter in config and value_key(config[self.parameter]) in self._keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A domain under its dotted name, used only if all conditions in `when` hold."""

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
        """Return the space that `mapping` describes: domains made by the functions of `domains.py`,
        their written form such as `{uniform: [0, 1]}`, constants, or maps of the same.

        `recorded`: it comes from a log. Then a constant that looks like another tool's range is
        taken as a constant, as older versions did. Raises SpecError naming key (below `key`), value
        and what to do.
        """
        if isinstance(mapping, Space):
            return mapping
        if isinstance(mapping, Mapping) and not recorded:
            refuse_foreign(mapping, key)
        written = {entry.name: entry for entry in read(mapping, key)}
        parameters = []
        for entry in written.values():
            if not recorded:
                _check_range(entry)
            when = tuple(_conditions(entry, written))
            domain = replace(entry.domain, when=None)
            parameters.append(Parameter(name=entry.name, domain=domain, when=when))
        _refuse_cycle(parameters, {entry.name: entry.key for entry in written.values()})
        return cls(parameters=tuple(parameters))

    def to_json(self) -> dict[str, Json]:
        """Return the canonical written form, of which `Space.parse` makes an equal space."""
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
        """Return the flat configuration that a user wrote at `key`, nested or with dotted names, in
        the order of `flat`. Constants may be left out.

        Values become the domain's own (`Domain.own`); unless `rounded`, one that equals its own
        stays, as older logs have it. Raises SpecError below `key` for a name that is unknown or not
        active, a value outside of its domain, and a missing parameter.
        """
        names = {parameter.name for parameter in self.flat}
        found = leaves(plain(written), whole=names)
        given = {k: v for k, v in found if k in names or not isinstance(v, Mapping)}
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
                problem, hint = "is outside of its domain", f"it is one of {write(domain)}"
                raise SpecError(f"{key}.{name}", value, problem, hint) from None
            config[name] = own if rounded or own == value else value
        for name, value in given.items():
            if name not in names:
                raise SpecError(f"{key}.{name}", value, "is no parameter", nearest(name, names))
        return config

    def converted(self, written: Mapping[str, Any], key: str) -> dict[str, Any]:
        """Return `written` with the domains' own values in its form. Raises as `point` does."""
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
        """Return the active parameters of a (partial) flat configuration, in `flat` order."""
        return tuple(parameter.name for parameter in self.flat if parameter.active(config))


def _nested(flat: Mapping[str, Json]) -> dict[str, Json]:
    nested: dict[str, Json] = {}
    for name, value in flat.items():
        *groups, last = name.split(".")
        target = nested
        for group in groups:
            target = target.setdefault(group, {})
        target[last] = value
    return nested


def _check_range(entry: Written) -> None:
    """Raise SpecError for a range of floats that samplers cannot compute with: they take half a
    step more on either side, and rounding must leave its steps apart.
    """
    domain = entry.domain
    if not isinstance(domain, Float):
        return
    key, written = f"{entry.key}.{domain.kind}", domain.to_json()[domain.kind]
    if not domain.log and (domain.step or domain.high - domain.low) < sys.float_info.min:
        problem = f"is finer than {sys.float_info.min:.2g}, from where on floats lose digits"
        raise SpecError(key, written, problem, "use another unit")
    if domain.step is None:
        return
    if math.isinf(domain.high - domain.low + domain.step):
        problem = "the range and one step are too wide for a float"
        raise SpecError(key, written, problem, "write narrower bounds")
    if (domain.cells or 0) > MOST_STEPS:
        problem = f"has {Decimal(domain.cells or 0):.2e} values, more than floats tell apart"
        hint = f"write {{uniform: [{domain.low}, {domain.high}]}}, or a bigger step"
        raise SpecError(key, written, problem, hint)


def _conditions(entry: Written, written: Mapping[str, Written]) -> Iterable[Condition]:
    """Return the conditions on a parameter and its groups, merged to one for each parent."""
    key = f"{entry.key}.when"
    merged: dict[str, Condition] = {}
    for group, form in entry.conditions:
        if not isinstance(form, Mapping) or not form:
            hint = "write when: {parameter: value}"
            raise SpecError(key, form, "is not a map of conditions", hint)
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
        hint = "let the condition refer to a choice, int, grid or quniform"
        raise SpecError(key, form, problem, hint)
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
            problem = f"the value {value!r} is there twice"
            raise SpecError(key, form, problem, "remove the duplicate")


def _refuse_cycle(parameters: Sequence[Parameter], keys: Mapping[str, str]) -> None:
    _, loop = _sorted({p.name: [c.parameter for c in p.when] for p in parameters})
    if loop:
        key = f"{keys[loop[-1]]}.when"
        raise SpecError(key, " -> ".join(loop), "conditions are cyclic", "remove one of them")


def _ordered(parameters: Sequence[Parameter]) -> Iterable[Parameter]:
    """Order parents before children, otherwise keep the given order."""
    by_name = {parameter.name: parameter for parameter in parameters}
    names, _ = _sorted({p.name: [c.parameter for c in p.when] for p in parameters})
    return [by_name[name] for name in names]


def _sorted(parents: Mapping[str, Sequence[str]]) -> tuple[list[str], list[str]]:
    """Return the names, each after its parents, otherwise as given, and the first cycle's names;
    without one an empty list. Not by recursion: Python has only so many levels of calls.
    """
    done: dict[str, None] = {}
    for name in parents:
        path = {} if name in done else {name: iter(parents[name])}
        while path:
            last = next(reversed(path))
            parent = next((one for one in path[last] if one not in done), None)
            if parent is None:
                done[last] = None
                del path[last]
            elif parent in path:
                return list(done), [*list(path)[list(path).index(parent) :], parent]
            else:
                path[parent] = iter(parents[parent])
    return list(done), []


def _written_when(parameter: Parameter, names: set[str]) -> dict[str, Json]:
    group = parameter.name.rpartition(".")[0]
    when: dict[str, Json] = {}
    for condition in parameter.when:
        shadowed = bool(group) and f"{group}.{condition.parameter}" in names
        name = f".{condition.parameter}" if shadowed else condition.parameter
        when[name] = [fresh(value) for value in condition.values]
    return when
