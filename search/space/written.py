"""Reads the written form of a search space (from a YAML file or from Python): nested maps into
named domains.

Only this module decides what a map means. A map is a domain if it has a domain's keyword with a
list as its value (`{uniform: [0, 1]}`); any other map is a group of parameters. A bare list is
refused, because it could be a choice or a constant and the wrong guess would train the wrong thing.
Conditions stay as written (see space.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.search.space import domains
from regrow.search.space.domains import Choice, Constant, Domain, Json
from regrow.search.space.foreign import flow, kind_of, meant, meant_by_text, of_list
from regrow.search.space.scalars import as_yaml_number, check_json

_WITH_STEP = 3  # numbers in [low, high, step]


class Written(NamedTuple):
    """One parameter as written.

    Attributes:
        name: its dotted name.
        key: its path in the specification, for errors.
        domain: its domain.
        conditions: pairs of the group that a condition was written in ("" at the top) and its map.

    """

    name: str
    key: str
    domain: Domain
    conditions: tuple[tuple[str, Any], ...]


def read(space: Mapping[str, Any], key: str) -> Iterator[Written]:
    """Yield the parameters of `space` as written. `key` is its path in the specification."""
    yield from _group(space, key, "", ())


def refuse_foreign(space: Mapping[str, Any], key: str) -> None:
    """Raise SpecError for a constant that is a range or a choice in another tool's form. The error
    names the domain to write.

    Not part of `read`, which must still accept what older logs hold.
    """
    for name, value in space.items():
        here = f"{key}.{name}"
        if isinstance(value, str) and (form := meant_by_text(value)) is not None:
            hint = f"write {name}: {flow(form)}"
            raise SpecError(here, value, "is text, which searches nothing", hint)
        if isinstance(value, Choice):
            _refuse_domains(list(value.values), f"{here}.{value.kind}")
        if not isinstance(value, Mapping) or _is_domain(value):
            for word in ("choice", "grid"):
                if isinstance(value, Mapping) and word in value:
                    _refuse_domains(value[word], f"{here}.{word}")
            continue
        if (form := meant(value)) is not None:
            raise _searches_nothing(str(name), value, form, here)
        for word, inner in value.items():
            near = kind_of(word, near=True)
            if near is None or not isinstance(inner, Mapping):
                continue
            if (form := meant(inner, word=word)) is not None:
                hint = f"write {name}: {flow(form)}"
                raise SpecError(f"{here}.{word}", dict(inner), "is a map, not a list", hint)
        refuse_foreign({n: v for n, v in value.items() if n != "when"}, here)


def _refuse_domains(value: Any, key: str) -> None:
    """Raise SpecError for a domain among a choice's values: trainables would get a map."""
    if isinstance(value, Domain) or (isinstance(value, Mapping) and _is_domain(value)):
        form = write(value) if isinstance(value, Domain) else dict(value)
        hint = "make it a parameter of its own, with `when` for the choice that it belongs to"
        raise SpecError(key, form, "is a domain inside a choice, which would not be searched", hint)
    inside = value.values() if isinstance(value, Mapping) else value
    for inner in inside if isinstance(value, (Mapping, list, tuple)) else ():
        _refuse_domains(inner, key)


def _is_domain(value: Mapping[Any, Any]) -> bool:
    others = [name for name in value if name not in ("when", "step", "text")]
    return any(
        name in KINDS and _is_argument(name, value[name], len(others) == 1) for name in others
    )


def _searches_nothing(
    name: str, value: Mapping[Any, Any], form: Mapping[str, Any], key: str
) -> SpecError:
    members = {n: v for n, v in value.items() if n != "when"}
    constants = not any(isinstance(v, (list, tuple)) for v in members.values())
    plain = form.get("constant")
    scalar = plain is not None and not isinstance(plain, (list, Mapping))
    hint = f"write {name}: {flow(plain if scalar else form)}"
    if not constants:
        return SpecError(key, dict(value), "is no domain in this form", hint)
    names = [f"{name}.{member}" for member in members]
    would = {1: f"the constant {names[0]}", 2: f"two constants, {' and '.join(names)}"}.get(
        len(names), f"constants, {', '.join(names)}"
    )
    hint += f", or {name}: {flow({'constant': members})} if constants are meant"
    return SpecError(key, dict(value), f"searches nothing: it would be {would}", hint)


def _group(
    group: Any, key: str, prefix: str, outer: tuple[tuple[str, Any], ...]
) -> Iterator[Written]:
    if not isinstance(group, Mapping):
        raise SpecError(key, group, "is not a map of parameters", "write name: domain, one a line")
    for name in group:
        if isinstance(name, bool):
            yaml = "some readers of YAML take on, off, yes and no for true and false"
            raise SpecError(key, name, f"is not a name: {yaml}", "put quotes around the name")
        if not isinstance(name, str):
            raise SpecError(key, name, "is not a name", "put quotes around it")
        if not name or "." in name:
            problem = "a name has no dots and isn't empty"
            raise SpecError(key, name, problem, "nest maps: model: {layers: ...}")
    if "when" in group and prefix:
        outer = (*outer, (prefix.rpartition(".")[0], group["when"]))
    members = {name: value for name, value in group.items() if not (name == "when" and prefix)}
    if prefix and not members:
        hint = "write {constant: {}} if the empty map is meant"
        raise SpecError(key, dict(group), "is an empty map", hint)
    for name, value in members.items():
        yield from _entry(value, f"{key}.{name}", f"{prefix}.{name}" if prefix else name, outer)


def _entry(
    value: Any, key: str, name: str, outer: tuple[tuple[str, Any], ...]
) -> Iterator[Written]:
    group = name.rpartition(".")[0]
    if hasattr(value, "to_json") and not isinstance(value, Domain):
        value = value.to_json()  # a Space inside of a space
    if isinstance(value, Domain):
        conditions = outer if value.when is None else (*outer, (group, value.when))
        yield Written(name, key, value, conditions)
    elif isinstance(value, Mapping):
        keyword = _keyword(value, key)
        if keyword is None:
            yield from _group(value, key, name, outer)
            return
        conditions = (*outer, (group, value["when"])) if "when" in value else outer
        yield Written(name, key, _domain(value, keyword, key), conditions)
    elif isinstance(value, (list, tuple)):
        hint = "write {choice: [...]} to try each, {constant: [...]} to pass it whole"
        raise SpecError(key, value, "a bare list could be a choice or a constant", hint)
    else:
        made = _made(lambda: Constant(value=value), key, "", values=[value])
        yield Written(name, key, made, outer)


def _keyword(value: Mapping[Any, Any], key: str) -> str | None:
    """Return the keyword of a domain, None for a group. Raises SpecError for a misspelt one."""
    others = [name for name in value if name not in ("when", "step", "text")]
    alone = len(others) == 1
    found = [name for name in others if name in KINDS and _is_argument(name, value[name], alone)]
    if len(found) > 1:
        problem = f"has two domains, {found[0]} and {found[1]}"
        raise SpecError(key, dict(value), problem, "keep one of them")
    if found:
        allowed = ("when", *KINDS[found[0]][1])
        for name in value:
            if name != found[0] and name not in allowed:
                hint = nearest(name, allowed)
                if name == "step" and found[0] == "uniform":
                    hint = "use quniform: [low, high, step]"
                raise SpecError(f"{key}.{name}", value[name], f"unknown option of {found[0]}", hint)
        return str(found[0])
    if alone and isinstance(value[others[0]], (list, tuple)):
        word = str(others[0])
        form = of_list(word, value[word], value)
        hint = nearest(word, KINDS) if form is None else f"did you mean {flow(form)}?"
        raise SpecError(f"{key}.{word}", value[word], f"unknown domain {word!r}", hint)
    return None


def _is_argument(keyword: str, value: Any, alone: bool) -> bool:
    """Return whether `value` beside `keyword` makes a domain, not a group with such a member."""
    if isinstance(value, (list, tuple)):
        return True
    return alone and (keyword == "constant" or not isinstance(value, (Mapping, Domain)))


def _domain(value: Mapping[str, Any], keyword: str, key: str) -> Domain:
    make, _ = KINDS[keyword]
    text = value.get("text", False)
    if not isinstance(text, bool):
        raise SpecError(f"{key}.text", text, "is not true or false", "write text: true")
    options = {}
    if "step" in value:
        options["step"] = math.nan if value["step"] is None else value["step"]
    if keyword == "choice" and "probabilities" in value:
        options["probabilities"] = value["probabilities"]
    argument = value[keyword]
    if keyword in ("choice", "grid", "constant"):
        values = [argument] if keyword == "constant" else argument
        return _made(lambda: make(argument, **options), key, keyword, values=() if text else values)
    return _made(lambda: make(*_pair(keyword, argument, options), **options), key, "")


def _made(make: Callable[[], Domain], key: str, keyword: str, values: Any = ()) -> Domain:
    """Return what `make` returns; its errors get the parameter's key.

    Raises SpecError if a text among `values` looks like a number.
    """
    try:
        for item in values if isinstance(values, (list, tuple)) else ():
            if isinstance(item, str):
                _refuse_number_as_text(keyword, item, values)
        return make()
    except SpecError as error:
        # a plain constant: the error is at the parameter's own key
        if not keyword and isinstance(values, list):
            raise SpecError(key, error.value, error.problem, error.hint) from None
        raise error.within(key) from None


def _refuse_number_as_text(keyword: str, item: str, values: Any) -> None:
    number = as_yaml_number(item)
    if number is None:
        return
    problem, text = f'"{item}" is text, not a number', f"{keyword or 'constant'}: ..., text: true"
    hint = f"write {number}, without quotes, or {{{text}}} if the text is meant"
    raise SpecError(keyword, list(values) if keyword in ("choice", "grid") else item, problem, hint)


def _pair(keyword: str, written: Any, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the two or three numbers of a range. Raises SpecError for another count."""
    given = len(written) if isinstance(written, (list, tuple)) else None
    form = {"normal": "[mean, sd]", "quniform": "[low, high, step]"}.get(keyword, "[low, high]")
    stepped = {"uniform": "{quniform: [low, high, step]}", "int": "{int: [low, high], step: 2}"}
    if given == (2 if options else len(form.split(","))):
        return tuple(written)
    if given == _WITH_STEP and keyword in stepped:
        hint = f"for steps write {stepped[keyword]}"
        raise SpecError(keyword, written, f"{keyword} has two bounds", hint)
    raise SpecError(keyword, written, f"{keyword} needs {form}", f"write {{{keyword}: {form}}}")


KINDS: Mapping[str, tuple[Callable[..., Domain], tuple[str, ...]]] = {
    "uniform": (domains.uniform, ()),
    "loguniform": (domains.loguniform, ()),
    "quniform": (domains.quniform, ("step",)),
    "int": (domains.randint, ("step",)),
    "logint": (domains.logint, ()),
    "normal": (domains.normal, ()),
    "choice": (domains.choice, ("text", "probabilities")),
    "grid": (domains.grid, ("text",)),
    "constant": (domains.constant, ("text",)),
}
"""By keyword: what makes the domain from its argument, and the options allowed beside it."""


def write_group(group: dict[str, Json]) -> dict[str, Json]:
    """Return written forms, with constants spelt out that would be taken for a foreign range."""
    whole = {
        name: write_group(one) if isinstance(one, dict) and not _is_domain(one) else one
        for name, one in group.items()
    }
    if meant(whole) is None:
        return whole
    return {
        name: one if isinstance(one, dict) else {"constant": one} for name, one in whole.items()
    }


def write(domain: Domain) -> Json:
    """Return a domain's written form without conditions, a plain scalar if that suffices."""
    form = domain.to_json()
    values = getattr(domain, "values", [getattr(domain, "value", None)])
    if any(isinstance(value, str) and as_yaml_number(value) for value in values):
        return form | {"text": True}
    if not isinstance(domain, Constant) or isinstance(domain.value, (list, dict)):
        return form
    if isinstance(domain.value, str) and meant_by_text(domain.value) is not None:
        return form
    return check_json("constant", form["constant"])
