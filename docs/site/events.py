"""The reference of events: those of the log, made of their types, and those that Prefect is told,
from where they are made.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from docs.site.specification import as_text
from regrow.infra.prefect import events as prefect_events
from regrow.search import events
from regrow.search.measured import Known, Usage


def page() -> str:
    """Markdown: a section an event, in the order of the union of all events; then what rows,
    places, machine use and known results are.
    """
    types = [*get_args(events.AnyEvent), events.Row, events.Place, Usage, Known]
    return "\n".join(line for one in types for line in _section(one))


def of_prefect() -> str:
    """Markdown: the table, and what it says below it, of the module that makes them."""
    told = inspect.getdoc(prefect_events) or ""
    table = told[told.index("| event |") :]
    return re.sub(r"<(\w+)>", lambda name: name[1].upper(), table)


def _section(one: Any) -> Iterator[str]:
    tag = one.__struct_config__.tag
    title = f"`{tag}`" if tag else one.__name__
    yield from ("", f"### {title}", "")
    yield as_text(inspect.getdoc(one) or "").replace("; `", "; `")
    yield from ("", "| field | type | default |", "|---|---|---|")
    for field in msgspec.structs.fields(one):
        if field.name == "t" and one is not events.Row:
            continue  # said once, above
        yield f"| `{field.name}` | `{_type(field.type)}` | {_default(field)} |"


def _type(hint: Any) -> str:
    """A type as it is written, without the modules' names."""
    shown = hint.__name__ if inspect.isclass(hint) and not get_args(hint) else str(hint)
    for module in ("events", "measured"):
        shown = shown.replace(f"regrow.search.{module}.", "")
    shown = shown.replace("typing.", "")
    return shown.replace("|", "or")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{field.default_factory()}`"
    return "required" if field.default is msgspec.NODEFAULT else f"`{field.default!r}`"
