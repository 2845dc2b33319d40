"""Templates: plain YAML in which a text `$NAME` stands for a value."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

import yaml


@cache
def parts(file: Path) -> dict[str, Any]:
    """Return the templates in a YAML file by name."""
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Return a template with its values. Whatever is None then is left out of its map or list."""
    match template:
        case dict():
            found = {key: filled(value, values) for key, value in template.items()}
            return {key: value for key, value in found.items() if value is not None}
        case list():
            return [one for value in template if (one := filled(value, values)) is not None]
        case str() if template[:1] == "$" and template[1:] in values:
            return values[template[1:]]
        case str():
            return Template(template).substitute(values)
        case _:
            return template
