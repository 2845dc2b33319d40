"""Reads `name` or `{name: {option: value}}`, the form in which samplers and schedulers are
chosen.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from regrow.search.errors import SpecError

T = TypeVar("T")

Named = str | dict[str, dict[str, Any] | None]
"""A sampler or a scheduler: its name, or its name with options."""
AUTO = "auto"
"""Written instead of a sampler's or scheduler's name: the choice then depends on the rest of the
specification (`search/spec/auto.py`).
"""
_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def nearest(word: object, known: Iterable[str]) -> str:
    """Return a hint for a word that is not among the known ones."""
    known = list(known)
    near = difflib.get_close_matches(str(word), known, n=1) or difflib.get_close_matches(
        str(word).lower(), known, n=1
    )
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def is_path(name: str) -> bool:
    """Return whether a name is an import path (`package.module:Class`) rather than a name of a
    registry.
    """
    return ":" in name


def chosen(choice: object) -> str:
    """Return the name in a choice of any form, including one that `split` would refuse."""
    return str(next(iter(choice), "")) if isinstance(choice, dict) else str(choice)


def load(module: str, name: str) -> Any:
    """Import an object of one of our own modules."""
    return getattr(importlib.import_module(module), name)


def imported(path: str, *, key: str) -> Any:
    """Import the user's object at an import path, `package.module:Class`. Raises SpecError if that
    fails.

    An exception of the user's module is the cause of that error.
    """
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"cannot be imported: {type(error).__name__}: {error}"
        raise SpecError(
            key, path, problem, "it must be importable from the folder of the specification"
        ) from error
    target: Any = found
    for part in name.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            known = [other for other in vars(found) if not other.startswith("_")]
            raise SpecError(key, path, f"{module} has no {name!r}", nearest(name, known)) from None
    return target


def named_here(name: object, elsewhere: Mapping[str, str]) -> str | None:
    """Return our name of what another tool calls `name`, None for an unknown name. `elsewhere`:
    names in other tools, by our names.
    """
    word = str(name).rpartition(".")[2].lower().replace("_", "").replace("-", "")
    return next((ours for ours, words in elsewhere.items() if word in words.split()), None)


def split(
    choice: object, *, key: str, known: Iterable[str], elsewhere: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
    """Return name and options of a choice. Raises SpecError if it has another form, or if the name
    is neither known nor a path.

    `elsewhere`: the names of the known ones in other tools, for a hint.
    """
    options: Any
    if isinstance(choice, str):
        name, options = choice, {}
    elif isinstance(choice, dict) and len(choice) == 1:
        name, options = next(iter(choice.items()))
        options = {} if options is None else options
    else:
        raise SpecError(
            key=key,
            value=choice,
            problem="is not a name",
            hint="write NAME or {NAME: {option: value}}",
        )
    known = list(known)
    if name not in known and not (isinstance(name, str) and is_path(name)):
        ours = named_here(name, elsewhere)
        hint = (
            nearest(name, [AUTO, *known])
            if ours is None
            else f"here it is {ours}, or one of: {', '.join([AUTO, *known])}"
        )
        raise SpecError(key=key, value=name, problem="is not known", hint=hint)
    if not isinstance(options, dict):
        raise SpecError(
            key=f"{key}.{name}",
            value=options,
            problem="is not a map of options",
            hint="write {option: value}",
        )
    return name, options


def _written(value: object) -> str:
    """Return a value as it is written in YAML."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def option_types(make: Callable[..., Any]) -> dict[str, tuple[str, Any]]:
    """Return annotation and default of the keyword-only parameters. Parameters of a base class come
    first, if the class passes `**options` on to it.
    """
    parameters = inspect.signature(make).parameters.values()
    bases = iter(
        [base for base in make.__mro__[1:] if "__init__" in vars(base)]
        if isinstance(make, type)
        else []
    )
    known: dict[str, tuple[str, Any]] = {}
    while True:
        known = {
            p.name: (str(p.annotation), p.default) for p in parameters if p.kind is p.KEYWORD_ONLY
        } | known
        if (
            not any(p.kind is p.VAR_KEYWORD for p in parameters)
            or (base := next(bases, None)) is None
        ):
            return known
        parameters = inspect.signature(vars(base)["__init__"]).parameters.values()


def build(make: Callable[..., T], options: dict[str, Any], *, key: str, **fixed: Any) -> T:
    """Call `make` with the `fixed` arguments and the user's options, which are its keyword-only
    parameters.

    A class whose `__init__` passes `**options` on to its base has the base's options too. Raises
    SpecError for an unknown option, or a value whose type differs from the default's. If `make`
    raises a SpecError that names an option, its key is moved below `key`.
    """
    known = {
        name: default for name, (_, default) in option_types(make).items() if name not in fixed
    }
    for name, value in options.items():
        if name not in known:
            hint = nearest(name, known) if known else "it has no options"
            raise SpecError(key=f"{key}.{name}", value=value, problem="unknown option", hint=hint)
        default = known[name]
        if default is None or default is inspect.Parameter.empty:
            continue
        accepted = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, accepted) or (
            isinstance(value, bool) and not isinstance(default, bool)
        ):
            problem, hint = f"is not {_TYPES[type(default)]}", f"the default is {_written(default)}"
            raise SpecError(key=f"{key}.{name}", value=value, problem=problem, hint=hint)
    try:
        return make(**fixed, **options)
    except SpecError as error:
        raise (
            error.within(key) if error.key.partition(".")[0] in known else error
        ) from error.__cause__
