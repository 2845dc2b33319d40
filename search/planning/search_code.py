"""What the user's own sampler or scheduler is given, and what it returned: checked, and in the form
in which a log has it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from regrow.search.errors import SpecError
from regrow.search.samplers.base import Proposal, Result
from regrow.search.space import Space


def given(result: Result) -> Result:
    """Return a result that the user's class may change: the history keeps its own."""
    config, state = copy.deepcopy((dict(result.config), dict(result.state)))
    return replace(result, config=config, state=state)


def proposal(space: Space, returned: object, name: str) -> Proposal:
    """Return what the user's sampler `name` proposed. Raises SpecError."""
    if not isinstance(returned, Proposal) or not isinstance(returned.state, Mapping):
        problem = f"proposes {returned!r:.60}"
        hint = "return a Proposal of two maps, config and state, or None"
        raise SpecError("search", name, problem, hint)
    config = configuration(space, returned.config, f"search: {name} proposed")
    return Proposal(config=config, state=_plain(dict(returned.state), "search", name))


def configuration(space: Space, returned: object, key: str) -> dict[str, Any]:
    """Return a configuration in values of the space, flat, and with the constants that were left
    out. Raises SpecError at `key`.
    """
    if not isinstance(returned, Mapping):
        raise SpecError(key, returned, "is no configuration", "return {parameter: value}")
    return _plain(space.point(returned, key, rounded=False), key)


def _plain(value: dict[str, Any], key: str, name: str = "") -> dict[str, Any]:
    """Return a value as it comes back from a log. Raises SpecError for one that none can hold."""
    try:
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError) as error:
        problem = f"returned what is not plain JSON: {error}"
        hint = "return Python's own numbers and text"
        raise SpecError(key, name or value, problem, hint) from None
    return found
