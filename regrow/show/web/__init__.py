"""The base of all our pages: the report, the page of a state root, the documentation of a served
model, and what a notebook shows.

Templates escape every value. jinja2 is only imported when a page is made.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import yaml

from regrow.search.numbers import readable

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def templates(package: str = __name__) -> Environment:
    """Return the templates of a package (in its folder `templates`) and the shared ones.

    In a template, `inline(name, ...)` are our assets, `data | tojson` is safe in a script element,
    and `number | readable` is a number for people.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader(__name__)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    made.filters["readable"] = readable
    made.globals["inline"] = lambda *names: Markup(inline(package, *names))  # noqa: S704 - our files
    return made


def inline(package: str, *names: str) -> str:
    """Return assets as one text."""
    return "".join(asset(name, package) for name in names)


@cache
def asset(name: str, package: str = __name__) -> str:
    """Return a shared style sheet or script, followed by that of the same name in the folder
    `static` of a package. Either may be missing.
    """
    found = [files(one) / "static" / name for one in dict.fromkeys((__name__, package))]
    return "".join(file.read_text(encoding="utf-8") for file in found if file.is_file())


def digest(text: str) -> str:
    """Return the source expression of a policy that allows the script or style with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(package: str, scripts: Sequence[str]) -> str:
    """Return the policy of a page that is one file: only its own script, and what it unpacks."""
    return (
        f"default-src 'none'; script-src {digest(inline(package, *scripts))} blob:;"
        " style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def moment(t: float) -> dict[str, str]:
    """Return a time for machines, and as text for browsers without the script."""
    at = datetime.fromtimestamp(t, UTC)
    return {"iso": at.isoformat(timespec="seconds"), "text": at.strftime("%Y-%m-%d %H:%M UTC")}


def as_yaml(config: Mapping[str, Any]) -> str:
    """Return a configuration to paste into a specification."""
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=100).rstrip("\n")
