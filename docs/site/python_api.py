"""The reference of the Python API as plain Markdown, for pages that are read where the repository
is: names, signatures and docstrings.

On the site mkdocstrings makes it, of the same docstrings and with the same options, with links.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import yaml

ROOT = Path(__file__).resolve().parents[2]
LEVEL = 3
"""Of the headings."""
LINE = 88
"""Characters up to which a signature stands in one line."""
DEFAULTS: dict[str, Any] = {"filters": ["!^_"], "merge_init_into_class": True}
"""As in mkdocs.yml."""


_LISTS = {
    griffe.DocstringSectionKind.parameters,
    griffe.DocstringSectionKind.attributes,
    griffe.DocstringSectionKind.raises,
}


@cache
def _package() -> Any:
    return griffe.load("regrow", search_paths=[str(ROOT)], resolve_aliases=True)


def directive(said: str) -> str:
    """What mkdocstrings reads: `regrow.Trial {members: [step]}` is a name and its options."""
    name, _, options = said.partition(" ")
    return f"::: {name}\n" + (f"    options: {options}\n" if options else "")


def page(said: str) -> str:
    """Markdown of a name with its options."""
    name, _, options = said.partition(" ")
    found = _package()[name.removeprefix("regrow.")]
    wanted = {**DEFAULTS, **(yaml.safe_load(options) if options else {})}
    return "\n".join(_section(name, _own(found), wanted)).strip("\n")


def _own(one: Any) -> Any:
    return one.final_target if one.is_alias else one


def _section(name: str, one: Any, options: dict[str, Any], level: int = LEVEL) -> Iterator[str]:
    """A heading, the signature, the docstring; then the members."""
    short = name.rpartition(".")[2]
    merged = one.is_class and options["merge_init_into_class"]
    init = one.members.get("__init__") if merged else None
    if level == LEVEL:
        yield from (f'<a id="{name}"></a>', "")
    yield from (f"{'#' * level} {short}", "")
    yield from ("```py", *_signature(short, one, init), "```", "")
    for docstring in (one.docstring, init.docstring if init is not None else None):
        if docstring is not None:
            yield from _docstring(docstring)
    members = list(_members(one, options)) if one.is_class else []
    if plain := [member for member in members if not (member.is_function or member.is_class)]:
        yield from (*map(_attribute, plain), "")
    for member in members:
        if member not in plain:
            yield from _section(f"{name}.{member.name}", member, options, level + 1)


def _attribute(one: Any) -> str:
    hint = f" (`{one.annotation}`)" if one.annotation is not None else ""
    return f"* `{one.name}`{hint}: {' '.join(one.docstring.value.split())}"


def _members(one: Any, options: dict[str, Any]) -> Iterator[Any]:
    """Those of a class with a docstring, in the order of the source."""
    wanted = options.get("members")
    if wanted is False:
        return
    names = options.get("inherited_members", ())
    inherited = {name: one.inherited_members[name].final_target for name in names}
    for name, member in {**one.members, **inherited}.items():
        if member.is_alias or member.docstring is None or name == "__init__":
            continue
        if isinstance(wanted, list):
            if name in wanted:
                yield member
        elif not any(re.search(rule.removeprefix("!"), name) for rule in options["filters"]):
            yield member


def _signature(name: str, one: Any, init: Any) -> list[str]:
    """In one line, or with a line for each parameter."""
    function = init if one.is_class else one
    before = "class " if one.is_class else "async " if "async" in one.labels else ""
    if function is None:
        return [f"{before}{name}"]
    parameters = [part for part in function.parameters if part.name not in ("self", "cls")]
    written = list(_parameters(parameters))
    returned = (
        f" -> {function.returns}" if not one.is_class and function.returns is not None else ""
    )
    line = f"{before}{name}({', '.join(written)}){returned}"
    if len(line) <= LINE:
        return [line]
    return [f"{before}{name}(", *(f"    {part}," for part in written), f"){returned}"]


def _parameters(parameters: list[Any]) -> Iterator[str]:
    kinds = griffe.ParameterKind
    starred = False
    for place, one in enumerate(parameters):
        if one.kind is kinds.keyword_only and not starred:
            starred = True
            yield "*"
        stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}.get(one.kind, "")
        starred = starred or stars == "*"
        hint = f": {one.annotation}" if one.annotation is not None else ""
        equal = " = " if hint else "="
        has_default = one.default is not None and not stars
        yield f"{stars}{one.name}{hint}" + (f"{equal}{one.default}" if has_default else "")
        after = parameters[place + 1].kind if place + 1 < len(parameters) else None
        if one.kind is kinds.positional_only and after is not kinds.positional_only:
            yield "/"


def _docstring(docstring: Any) -> Iterator[str]:
    for section in docstring.parse("google"):
        if section.kind is griffe.DocstringSectionKind.text:
            yield from (section.value, "")
        elif section.kind in _LISTS:
            yield from (f"{section.kind.value.capitalize()}:", "")
            for item in section.value:
                name = getattr(item, "name", None)
                named = f"`{item.annotation}`" if name is None else f"`{name}`"
                hint = f" (`{item.annotation}`)" if name and item.annotation is not None else ""
                yield f"* {named}{hint}: {' '.join(item.description.split())}"
            yield ""
        else:
            raise NotImplementedError(f"{docstring.parent.path}: a section {section.kind.value}")
