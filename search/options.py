"""Samplers and schedulers as they are chosen, `name` or `{name: {option: value}}`, and made."""

from __future__ import annotations

import difflib
import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from regrow.search.errors import SpecError

T = TypeVar("T")

Named = str | dict[str, dict[str, Any] | None]
"""A sampler or a scheduler: its name, or its name with options."""
AUTO = "auto"
"""Instead of a name: chosen by the rest of the specification (`search/spec/auto.py`)."""
_TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def nearest(word: object, known: Iterable[str]) -> str:
    """Return a hint for a word that is not among the known ones."""
    known = list(known)
    near = difflib.get_close_matches(str(word), known, n=1) or difflib.get_close_matches(
        str(word).lower(), known, n=1
    )
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


def is_path(name: str) -> bool:
    """Return whether a name is an import path (`package.module:Class`), not one of a registry."""
    return ":" in name


def chosen(choice: object) -> str:
    """Return the name in a choice of any form, including one that `split` would refuse."""
    return str(next(iter(choice), "")) if isinstance(choice, dict) else str(choice)


def imported(path: str, *, key: str) -> Any:
    """Import the user's object at an import path, `package.module:Class`. Raises SpecError if that
    fails; an exception of the user's module is its cause.
    """
    module, _, name = path.partition(":")
    try:
        found = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"cannot be imported: {type(error).__name__}: {error}"
        hint = "it must be importable from the folder of the specification"
        raise SpecError(key, path, problem, hint) from error
    target: Any = found
    for part in name.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            known = [other for other in vars(found) if not other.startswith("_")]
            raise SpecError(key, path, f"{module} has no {name!r}", nearest(name, known)) from None
    return target


class Registry(NamedTuple):
    """The samplers or the schedulers. A module of theirs is imported when it is used.

    Attributes:
        key: of the specification.
        package: where their modules are.
        known: by name, module and class, `module:Class`, and the names in other tools, without
            case and underscores, for hints.

    """

    key: str
    package: str
    known: Mapping[str, tuple[str, str]]

    def registered(self, choice: object) -> Any:
        """Return the class of a choice, None for a user's own, which is not imported here."""
        if (name := chosen(choice)) not in self.known:
            return None
        module, _, kind = self.known[name][0].partition(":")
        return getattr(importlib.import_module(f"{self.package}.{module}"), kind)

    def named(self, name: object) -> str | None:
        """Return our name of what another tool calls `name`, None for an unknown name."""
        word = str(name).rpartition(".")[2].lower().replace("_", "").replace("-", "")
        return next(
            (ours for ours, (_, words) in self.known.items() if word in words.split()), None
        )

    def split(self, choice: object) -> tuple[str, dict[str, Any]]:
        """Return name and options of a choice. Raises SpecError if it has another form, or if the
        name is neither known nor a path.
        """
        options: Any
        if isinstance(choice, str):
            name, options = choice, {}
        elif isinstance(choice, dict) and len(choice) == 1:
            name, options = next(iter(choice.items()))
            options = {} if options is None else options
        else:
            hint = "write NAME or {NAME: {option: value}}"
            raise SpecError(self.key, choice, "is not a name", hint)
        if name not in self.known and not (isinstance(name, str) and is_path(name)):
            known, ours = [AUTO, *self.known], self.named(name)
            also = f"here it is {ours}, or one of: {', '.join(known)}"
            raise SpecError(self.key, name, "is not known", also if ours else nearest(name, known))
        if not isinstance(options, dict):
            hint = "write {option: value}"
            raise SpecError(f"{self.key}.{name}", options, "is not a map of options", hint)
        return name, options

    def found(self, choice: object) -> tuple[str, dict[str, Any], Any]:
        """Return name, options and class of a choice, a user's imported. Raises SpecError."""
        name, options = self.split(choice)
        own = is_path(name)
        return name, options, imported(name, key=self.key) if own else self.registered(name)


def option_types(make: Callable[..., Any]) -> dict[str, tuple[str, Any]]:
    """Return annotation and default of the keyword-only parameters. Parameters of a base class come
    first, if the class passes `**options` on to it.
    """
    parameters = inspect.signature(make).parameters.values()
    mro = make.__mro__[1:] if isinstance(make, type) else ()
    bases = iter([base for base in mro if "__init__" in vars(base)])
    known: dict[str, tuple[str, Any]] = {}
    while True:
        known = {
            p.name: (str(p.annotation), p.default) for p in parameters if p.kind is p.KEYWORD_ONLY
        } | known
        passes = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if not passes or (base := next(bases, None)) is None:
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
            raise SpecError(f"{key}.{name}", value, "unknown option", hint)
        default = known[name]
        if default is None or default is inspect.Parameter.empty:
            continue
        accepted = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, accepted) or (
            isinstance(value, bool) and not isinstance(default, bool)
        ):
            shown = str(default).lower() if isinstance(default, bool) else str(default)
            problem = f"is not {_TYPES[type(default)]}"
            raise SpecError(f"{key}.{name}", value, problem, f"the default is {shown}")
    try:
        return make(**fixed, **options)
    except SpecError as error:
        raise (
            error.within(key) if error.key.partition(".")[0] in known else error
        ) from error.__cause__


def check_whole(option: str, value: Any, least: int, hint: str = "") -> None:
    """Raise SpecError unless an option is a whole number from `least`, or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(option, value, "is not a whole number", hint or f"write {least}")
    if value < least:
        raise SpecError(option, value, f"is below {least}", hint or f"write {least} or more")


def check_within(option: str, value: Any, least: float, most: float, hint: str) -> None:
    """Raise SpecError unless an option is a number from `least` to `most`, or None."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and least <= value <= most):
        raise SpecError(option, value, f"is not between {least:g} and {most:g}", hint)


def check_between(option: str, value: float, least: float, most: float, hint: str) -> None:
    """Raise SpecError unless an option is above `least` and below `most`."""
    if not least < value < most:
        above = f"is not above {least:g}"
        problem = above if most == math.inf else f"is not between {least:g} and {most:g}"
        raise SpecError(option, value, problem, hint)
