"""The reference of the specification, made of its JSON schema: every key with its type, default and
description.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

from regrow.search import space
from regrow.search.space.domains import Domain
from regrow.search.space.written import write
from regrow.search.spec import Spec

DOMAINS: dict[Callable[..., Domain], tuple[Any, ...]] = {
    space.uniform: (0.0, 0.6),
    space.loguniform: (1e-4, 0.1),
    space.quniform: (0.0, 1.0, 0.25),
    space.randint: (1, 3),
    space.logint: (16, 1024),
    space.normal: (0.0, 0.1),
    space.choice: (["sgd", "adam"],),
    space.grid: ([16, 32, 64],),
    space.constant: ([1, 2],),
}
"""The functions that make domains in Python, each with an example."""
_ELSEWHERE = {
    "Parameter": "[parameters](#space)",
    "Search": "[name](../algorithms.md#samplers), `{name: {option: value}}` or `module:Class`",
    "Schedule": "[name](../algorithms.md#schedulers), `{name: {option: value}}` or `module:Class`",
}
"""Parts that are no table of keys: what stands for them in one."""
_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "ge": "≥",
    "maximum": "≤",
    "exclusiveMaximum": "<",
}


def page() -> str:
    """Markdown: a table for the specification, then one for each part of it, in the order in which
    they are met.
    """
    schema = Spec.model_json_schema()
    parts: dict[str, Any] = {
        name: part for name, part in schema["$defs"].items() if name not in _ELSEWHERE
    }
    lines = [*_table(schema, parts)]
    for name in _met(schema, parts):
        said = as_text(parts[name].get("description", ""))
        lines += ["", f"## {name}", "", said, "", *_table(parts[name], parts)]
    return "\n".join(lines)


def domains() -> str:
    """Markdown: what a parameter may be, in YAML and in Python."""
    lines = ["| YAML | Python | |", "|---|---|---|"]
    for make, example in DOMAINS.items():
        written = json.dumps(write(make(*example))).replace('"', "")
        called = f"rg.{make.__name__}({', '.join(map(repr, example))})"
        lines.append(f"| `{written}` | `{called}` | {as_text(inspect.getdoc(make) or '')} |")
    return "\n".join(lines)


def _table(model: dict[str, Any], parts: dict[str, Any]) -> Iterator[str]:
    yield "| key | |"
    yield "|---|---|"
    required = model.get("required", [])
    for key, field in model["properties"].items():
        default = "required" if key in required else f"default {_default(field.get('default'))}"
        names = [name for name in _refs(field) if name in parts]
        said = field.get("description") or " ".join(
            parts[name].get("description", "") for name in names
        )
        yield f"| `{key}` | {as_text(said)}<br><small>{_type(field)}; {default}</small> |"


def _default(value: Any) -> str:
    if isinstance(value, dict) and value:
        return "as there"
    return f"`{json.dumps(value)}`"


def _type(field: dict[str, Any]) -> str:
    """A schema's type in words, with a link for a part that has a table of its own."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return _ELSEWHERE.get(name) or f"[{name}](#{_anchor(name)})"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(one) for one in field["anyOf"]))
    if "const" in field or "enum" in field:
        return " or ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}" if "items" in field else "list"
    if field.get("type") == "object":
        inner = field.get("additionalProperties")
        return f"map of {_type(inner)}" if isinstance(inner, dict) and inner else "map"
    bounds = "".join(
        f" {sign} {field[bound]:g}" for bound, sign in _BOUNDS.items() if bound in field
    )
    return {
        "string": "text",
        "integer": "integer",
        "number": "number",
        "boolean": "`true` or `false`",
        "null": "`null`",
    }.get(field.get("type", ""), "any") + bounds


def _refs(field: Any) -> Iterator[str]:
    """Names of the parts that a field refers to."""
    if isinstance(field, dict):
        if "$ref" in field:
            yield field["$ref"].rpartition("/")[2]
        for inner in field.values():
            yield from _refs(inner)
    elif isinstance(field, list):
        for inner in field:
            yield from _refs(inner)


def _met(model: dict[str, Any], parts: dict[str, Any]) -> list[str]:
    """Names of the parts that a model refers to, each followed by those that it refers to in
    turn.
    """
    found: dict[str, None] = {}

    def meet(one: dict[str, Any]) -> None:
        for name in _refs(one["properties"]):
            if name not in found and name in parts:
                found[name] = None
                meet(parts[name])

    meet(model)
    return list(found)


def _anchor(name: str) -> str:
    return name.lower()


def as_text(text: str) -> str:
    """Text that has no meaning to Markdown or HTML but for what stands in backticks."""
    pieces = " ".join(text.split()).split("`")
    for place in range(0, len(pieces), 2):
        for sign, written in {
            "&": "&amp;",
            "<": "&lt;",
            "*": "\\*",
            "_": "\\_",
            "{": "&#123;",
            "}": "&#125;",
        }.items():
            pieces[place] = pieces[place].replace(sign, written)
    return "`".join(pieces).replace("|", "\\|")
