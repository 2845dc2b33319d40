"""The command that is used instead of a trainable: its placeholders, and the arguments that they
become.

Pure text: nothing is run here, and no shell is used. `check` is called when a specification is
read, `arguments` by each attempt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from regrow.search.errors import SpecError
from regrow.search.nested import leaves
from regrow.search.options import nearest
from regrow.search.space import Space

OURS = {
    "trial": "the trial's number, from 0",
    "attempt": "the attempt's number, from 1",
    "seed": "the trial's seed",
    "name": "the experiment's name",
    "max_steps": "as specified",
    "step": "steps done so far, 0 at first",
    "checkpoint": "the folder to save into",
    "restored": "the folder to continue from; empty at first",
    "scratch": "a folder of the attempt's own, gone afterwards",
    "config_file": "a file with the parameters, one map of JSON",
    "report": "the file of `report: {file: ...}`",
}
"""Placeholders other than parameters."""
_PREFIXES = {
    "args:wandb": "--",
    "args:no_hyphens": "",
    "args:append_hydra": "+",
    "args:override_hydra": "++",
}
ALL = ("args", "args:hydra", *_PREFIXES, "args:no_boolean_flags", "args:no_equals", "args:json")
"""Placeholders for all parameters at once, each as one argument: `--lr=0.1`, `lr=0.1` in Hydra's
form, and in the forms of W&B's agent: `--x=True`, `x=True`, `+x=True`, `++x=True`, `--x` or
nothing, `--x` and `True`, and one argument of JSON.
"""
ENV = "env:"
"""Prefix of an environment variable's name; the worker fills in its value, never stored."""
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_PLAIN = re.compile(r"[\w./:@%+-]+")
"""Text that Hydra reads without quotes."""


def as_command(value: Any) -> Any:
    """Return the command with numbers and truth values as text. Raises SpecError."""
    if isinstance(value, str):
        hint = 'write a list, [python, train.py, --lr, "{lr}"]; no shell reads it'
        raise SpecError("command", value, "is not a list of arguments", hint)
    if not isinstance(value, (list, tuple)):
        return value
    return [_written(argument, place) for place, argument in enumerate(value)]


def _written(argument: Any, place: int) -> str:
    if isinstance(argument, dict) and len(argument) == 1 and next(iter(argument.values())) is None:
        hint = f'put quotes around it: "{{{next(iter(argument))}}}"'
        raise SpecError(f"command.{place}", argument, "is a map of YAML's", hint)
    if isinstance(argument, (str, int, float)):
        return as_text(argument)
    problem = "is no argument of a command"
    raise SpecError(f"command.{place}", argument, problem, "write text, in quotes")


def check(
    command: tuple[str, ...],
    space: Space,
    *,
    max_steps: int | None,
    file: str | None,
    env: Collection[str] = (),
) -> None:
    """Raise SpecError for a placeholder that cannot be filled: by a parameter of the space, the
    steps, the file of the reports, or a variable that the workers have.
    """
    parameters = {parameter.name: bool(parameter.when) for parameter in space.parameters}
    for name, conditional in parameters.items():
        if conditional and name in OURS:
            problem = f"has the name of the placeholder {{{name}}}, and may be absent"
            raise SpecError(f"space.{name}", None, problem, "call it otherwise")
    lacking: dict[str, tuple[str, str]] = {}
    if max_steps is None:
        lacking["max_steps"] = "max_steps is not given", "add max_steps: to the specification"
    if file is None:
        lacking["report"] = "no file is given", "add report: {file: metrics.jsonl}"
    if not command[0].strip():
        hint = "write the program's name, then its arguments"
        raise SpecError("command.0", command[0], "is no program", hint)

    for place, argument in enumerate(command):
        for token in _TOKEN.finditer(argument):
            before = command[place - 1] if place else ""
            found = _wrong(token, argument, before, parameters, {*env})
            if found is None and token[1] not in parameters:
                found = lacking.get(token[1])
            if found is not None:
                raise SpecError(f"command.{place}", argument, *found)


def _wrong(
    token: re.Match[str],
    argument: str,
    before: str,
    parameters: Mapping[str, bool],
    env: Collection[str],
) -> tuple[str, str] | None:
    """Return problem and hint of a placeholder or brace, None if it can be filled."""
    name = token[1]
    if name is None:
        lone = f"has a lone {token[0]!r}", f"write {token[0] * 2!r} for a brace"
        return lone if len(token[0]) == 1 else None
    flag = before.startswith("-") and "=" not in before and "{" not in before
    if flag and argument == token[0] and parameters.get(name, name == "restored"):
        hint = f'write one argument, "{before}={argument}", which is then left out'
        return f"{name} may be absent, and {before} would stay", hint
    if name in parameters:
        return None
    variable = name.removeprefix(ENV)
    if name in ALL:
        several = f"{{{name}}} is several arguments", "let it stand alone"
        return several if argument != token[0] else None
    if name.startswith(ENV):
        hint = f"add env: {{{variable}: null}}, which forwards it and stores no value"
        problem = f"the variable {variable} is not forwarded to trials"
        return (problem, hint) if variable not in env else None
    if name not in OURS:
        hint = nearest(name, [*parameters, *OURS, *ALL])
        return f"there is no parameter {name!r}", f"{hint}; for braces write {{{{ and }}}}"
    return None


def arguments(
    command: tuple[str, ...], config: Mapping[str, Any], ours: Mapping[str, str]
) -> list[str]:
    """Return the command with its placeholders filled. `config` is nested; `ours` has a text for
    each name of OURS and `env:NAME`.

    An argument with an inactive parameter, or with an empty `{restored}`, is left out.
    """
    return [text for argument in command for text in _filled(argument, config, ours)]


def _filled(argument: str, config: Mapping[str, Any], ours: Mapping[str, str]) -> Iterator[str]:
    form = argument[1:-1]
    if form in ALL and argument == f"{{{form}}}" and form not in config:
        yield from _all(form, config)
        return
    values = {
        token[1]: _value(token[1], config, ours)
        for token in _TOKEN.finditer(argument)
        if token[1] is not None
    }
    if None not in values.values():
        yield _TOKEN.sub(
            lambda token: token[0][0] if token[1] is None else str(values[token[1]]), argument
        )


def _all(form: str, config: Mapping[str, Any]) -> Iterator[str]:
    if form == "args:json":
        yield json.dumps(config, ensure_ascii=False)
        return
    for name, value in leaves(config):
        if form == "args:no_boolean_flags" and isinstance(value, bool):
            yield from [f"--{name}"] if value else []
        elif form == "args:no_equals":
            yield from (f"--{name}", str(value))
        elif form in ("args", "args:hydra"):
            yield f"--{name}={as_text(value)}" if form == "args" else f"{name}={_hydra(value)}"
        else:
            yield f"{_PREFIXES.get(form, '--')}{name}={value}"


def _value(name: str, config: Mapping[str, Any], ours: Mapping[str, str]) -> str | None:
    """Return the value of a placeholder, None if absent. A parameter precedes `ours`."""
    found: Any = config
    for word in name.split("."):
        if not isinstance(found, Mapping) or word not in found:
            return ours.get(name) or None
        found = found[word]
    return as_text(found)


def as_text(value: Any) -> str:
    """Return a value as an argument: text unchanged, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _hydra(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides."""
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, list):
        return f"[{','.join(map(_hydra, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{_hydra(one)}' for key, one in value.items())}}}"
    return as_text(value)
