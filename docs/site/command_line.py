"""The reference of the command line, made of the Typer application: every command with its
arguments and options.

From the functions' own signatures, which are what Typer goes by: the objects that it makes of them
differ between its versions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo

from docs.site.specification import as_text
from regrow.cli.app import app

WORDS = {str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH", bool: ""}


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """An argument or an option: how it is written, what it is for, and what it is where it is not
    given.
    """

    written: str
    argument: bool
    required: bool
    help: str
    default: Any


def commands() -> dict[str, Callable[..., object]]:
    """The function of each command, in the order in which `regrow --help` lists them."""
    groups = (
        ("", app),
        *((f"{group.name} ", group.typer_instance) for group in app.registered_groups),
    )
    return {
        f"{before}{one.name or getattr(one.callback, '__name__', '')}": one.callback
        for before, typed in groups
        if typed is not None
        for one in typed.registered_commands
        if one.callback is not None and not one.hidden
    }


def parameters(function: Callable[..., object]) -> Iterator[Parameter]:
    """Those of a command, in the order of its signature."""
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
        hint, info = get_args(hints[name])[:2]
        kind = next((one for one in [*get_args(hint), hint] if one is not NoneType), str)
        required = parameter.default is inspect.Parameter.empty
        shown = None if required or not info.show_default or kind is bool else parameter.default
        if isinstance(info, ArgumentInfo):
            word = (info.metavar or name).upper() + ("..." if str(hint).startswith("list") else "")
            written = word if required else f"[{word}]"
        else:
            # Typer takes the first name of an option in Annotated for its default.
            first = (
                [info.default]
                if isinstance(info.default, str) and info.default.startswith("-")
                else []
            )
            names = [*first, *(info.param_decls or ())] or [f"--{name.replace('_', '-')}"]
            if kind is bool and names == [f"--{name.replace('_', '-')}"] and not first:
                names.append(f"--no-{name.replace('_', '-')}")
            written = ", ".join(
                f"{n} {info.metavar or WORDS.get(kind, 'TEXT')}".strip() for n in names
            )
        yield Parameter(
            written=written,
            argument=isinstance(info, ArgumentInfo),
            required=required,
            help=" ".join((info.help or "").split()),
            default=shown,
        )


def page() -> str:
    """Markdown: a section a command."""
    return "\n".join(
        line for name, function in commands().items() for line in _command(name, function)
    )


def _command(name: str, function: Callable[..., object]) -> Iterator[str]:
    found = sorted(parameters(function), key=lambda p: not p.argument)
    # Options first: what is after the script of `tune` is the script's.
    with_options = [] if all(p.argument for p in found) else ["[OPTIONS]"]
    usage = ["regrow", name, *with_options, *(p.written for p in found if p.argument)]
    yield from (
        "",
        f"## regrow {name}",
        "",
        as_text(inspect.getdoc(function) or ""),
        "",
    )
    yield from ("```text", " ".join(usage), "```", "")
    if found:
        yield from ("| | |", "|---|---|")
    for p in found:
        default = "" if p.default is None else f" (default: `{p.default}`)"
        written = ", ".join(f"`{part}`" for part in p.written.split(", "))
        yield f"| {written} | {as_text(p.help)}{default} |"
