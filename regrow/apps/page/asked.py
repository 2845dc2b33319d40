"""What an address may ask of a table: how it is filtered, grouped and sorted, which page of it is
shown, and what is ticked. The whole of it is in the address, so that a reload or a sent link shows
the same; anything else in the address is refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from regrow.search.lifecycle import TrialState

MOST_COMPARED = 8
"""Maximum experiments, or trials, of a comparison."""
MOST_TICKED = 50
"""Maximum ticks in an address, which servers cut at some thousand characters."""

Sort = Literal["value", "number", "steps", "attempts", "time"]
Order = Literal["asc", "desc"]
Status = Literal[
    "running",
    "finished",
    "stopped",
    "interrupted",
    "crashed",
    "failed",
    "empty",
    "damaged",
    "half-removed",
    "unreachable",
]
Text = Annotated[str, Field(max_length=255)]
_MISSING = BeforeValidator(lambda value: value or None)
"""A browser sends each field of a form, "" for what was not chosen."""


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    page: int = 1
    """From 1; a page beyond the last is the last one."""

    def query(self, changes: Mapping[str, Any]) -> str:
        """Return the query of an address that asks the same with these changes; None removes."""
        given = {**self.model_dump(mode="json", exclude_defaults=True), **changes}
        kept = {key: value for key, value in given.items() if value not in (None, "", [])}
        return "?" + urlencode(kept, doseq=True)


class ListQuery(_Asked):
    """What is asked of the list of experiments."""

    q: Text = ""
    """A part of the name."""
    tag: Text = ""
    version: Text = ""
    """A version of the code of any session."""
    state: Annotated[Status | None, _MISSING] = None
    group: Annotated[Literal["tag", "version", "state"] | None, _MISSING] = None
    e: Annotated[list[Text], Field(max_length=MOST_TICKED)] = []
    """Names of the ticked experiments."""


class TableQuery(_Asked):
    """What is asked of the table of trials."""

    sort: Sort = "value"
    order: Annotated[Order | None, _MISSING] = None
    """None: the best, the first or the most first."""
    state: Annotated[TrialState | None, _MISSING] = None
    version: Text = ""
    """A version of the code of any attempt."""
    group: Annotated[Literal["version", "state"] | None, _MISSING] = None
    t: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MOST_TICKED)] = []
    """Numbers of the ticked trials."""


def sentence(error: Mapping[str, Any]) -> str:
    """Return what is wrong with an address, from one of pydantic's errors."""
    name, value = str(error["loc"][1]), str(error.get("input"))[:60]
    match error["type"]:
        case "extra_forbidden":
            return f"“{name}” is nothing that this page can be asked for."
        case "literal_error" | "enum":
            known = str(error["ctx"]["expected"]).replace("'", "")
            return f"“{value}” is not known as “{name}”; known are {known}."
        case "too_long":
            return f"At most {error['ctx']['max_length']} can be ticked."
        case "string_too_long":
            return f"“{name}” takes at most {error['ctx']['max_length']} characters."
        case _:
            return f"“{value}” as “{name}” is no number from 0 up."
