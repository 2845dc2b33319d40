"""The parts of the published JSON schema that pydantic cannot derive: the forms of a space, and the
names that may be chosen.

Editors use it to mark errors while the user types. It accepts whatever `Spec.parse` accepts. Errors
that it cannot express (a lower bound above the upper one, a point outside of the space) are found
only by `Spec.parse`.
"""

from __future__ import annotations

import inspect
from typing import Any

from regrow.search import samplers, schedulers
from regrow.search.options import AUTO, Registry, option_types
from regrow.search.space.foreign import BOUNDS, DISTRIBUTIONS, NAMING, WORDS

Json = dict[str, Any]
_NUMBER: Json = {"type": "number"}
_WHOLE: Json = {"type": "integer"}
_WHEN: Json = {
    "type": "object",
    "minProperties": 1,
    "description": "{parameter: value}: there only where this holds.",
}
_TEXT: Json = {
    "type": "boolean",
    "description": "Whether values that look like numbers are meant as text.",
}
_SCALAR: Json = {"type": ["string", "number", "boolean", "null"]}
_PARAMETER: Json = {"$ref": "#/$defs/Parameter"}


def complete(schema: Json) -> Json:
    """Return the schema of a specification with its space, its samplers and its schedulers."""
    schema["$defs"] |= {
        "Parameter": parameter(),
        "Search": _choice("A sampler", samplers.REGISTRY),
        "Schedule": _choice("A scheduler", schedulers.REGISTRY),
    }
    for key, part in (("search", "Search"), ("schedule", "Schedule")):
        kept = {
            name: schema["properties"][key][name] for name in ("default", "description", "title")
        }
        schema["properties"][key] = {**kept, "$ref": f"#/$defs/{part}"}
    schema["properties"]["space"] |= {
        "additionalProperties": _PARAMETER,
        "propertyNames": {"pattern": r"^[^.]+$"},
    }
    return schema


def parameter() -> Json:
    """Return the schema of a parameter: a plain value, a domain, or a group of parameters."""
    two, three = _listed(_NUMBER, 2, 2), _listed(_NUMBER, 3, 3)
    return {
        "title": "Parameter",
        "description": (
            "A constant, a domain such as {loguniform: [1.0e-4, 1.0e-1]}, or a map of parameters."
        ),
        "anyOf": [
            _SCALAR,
            _domain("A real number in [low, high].", uniform=two),
            _domain("A real number in [low, high], uniform in its logarithm.", loguniform=two),
            _domain("low, low + step, ... up to high.", quniform=three),
            _domain(
                "low, low + step, ... up to high.",
                quniform=two,
                step=_NUMBER,
                needed=("quniform", "step"),
            ),
            _domain(
                "A whole number from low to high, both included.",
                int=_listed(_WHOLE, 2, 2),
                step=_WHOLE,
            ),
            _domain("A whole number, uniform in its logarithm.", logint=_listed(_WHOLE, 2, 2)),
            _domain("A real number of this mean and standard deviation.", normal=two),
            _domain(
                "One of these values; probabilities: of each, else all the same.",
                choice=_listed({}, 1),
                text=_TEXT,
                probabilities=_listed({"type": "number", "minimum": 0}, 1),
            ),
            _domain("Each of these values in turn.", grid=_listed({}, 1), text=_TEXT),
            _domain("Always this value.", constant={}, text=_TEXT),
            _group(),
        ],
    }


def _domain(description: str, needed: tuple[str, ...] = (), **properties: Json) -> Json:
    first = next(iter(properties))
    return {
        "type": "object",
        "description": description,
        "properties": {**properties, "when": _WHEN},
        "required": list(needed or (first,)),
        "additionalProperties": False,
    }


def _listed(items: Json, least: int, most: int | None = None) -> Json:
    return {"type": "array", "items": items, "minItems": least} | (
        {} if most is None else {"maxItems": most}
    )


def _group() -> Json:
    """Return the schema of a map of parameters. It excludes a range or a constant in another tool's
    form, and a domain without its list.
    """
    ends = [{"anyOf": [_with(name, _NUMBER) for name in names]} for names in BOUNDS]
    named = {
        "anyOf": [
            _with(name, {"enum": [*DISTRIBUTIONS]}) for name in ("type", "_type", "distribution")
        ]
    }
    leaves = {"additionalProperties": _SCALAR}
    ranges = ("uniform", "loguniform", "quniform", "int", "logint", "normal")
    return {
        "type": "object",
        "description": "A group of parameters.",
        "minProperties": 1,
        "properties": {"when": _WHEN},
        "additionalProperties": _PARAMETER,
        "propertyNames": {"pattern": r"^[^.]+$"},
        "not": {
            "anyOf": [
                {**leaves, "propertyNames": {"enum": sorted(WORDS - {*NAMING})}, "allOf": ends},
                {
                    **leaves,
                    "propertyNames": {"enum": sorted({*WORDS, "_type"})},
                    "allOf": [*ends, named],
                },
                *({**_with(name, _SCALAR), "maxProperties": 1} for name in ("value", *ranges)),
            ]
        },
    }


def _with(name: str, form: Json) -> Json:
    return {"required": [name], "properties": {name: form}}


def _choice(what: str, registry: Registry) -> Json:
    """Return the schema of a choice: a name, alone or with its options; or an import path."""
    known = {name: registry.registered(name) for name in registry.known}
    return {
        "title": what.rsplit(maxsplit=1)[-1].capitalize(),
        "description": (
            f"{what}: a name, or a name and its options; or a class of your own, module:Class; or"
            " auto."
        ),
        "anyOf": [
            {"type": "string", "enum": [AUTO, *known]},
            {"type": "string", "pattern": ":"},
            {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": False,
                "properties": {name: _options(make) for name, make in known.items()},
                "patternProperties": {":": {"type": ["object", "null"]}},
            },
        ],
    }


def _options(make: Any) -> Json:
    """Return the schema of a sampler's or scheduler's options, with their types and defaults."""
    properties: dict[str, Json] = {}
    for name, (annotation, default) in option_types(make).items():
        form = (
            {"$ref": "#/$defs/Schedule"}
            if name == "schedule"
            else {"type": [_TYPES[one.strip().partition("[")[0]] for one in annotation.split("|")]}
        )
        properties[name] = (
            form
            if default is None or default is inspect.Parameter.empty
            else {**form, "default": default}
        )
    description = (inspect.getdoc(make) or "").split("\n\n")[0].replace("\n", " ")
    return {
        "type": ["object", "null"],
        "description": description,
        "properties": properties,
        "additionalProperties": False,
    }


_TYPES = {
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "str": "string",
    "None": "null",
    "list": "array",
    "dict": "object",
}
