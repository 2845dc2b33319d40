"""What the user's own sampler or scheduler is given, and what it returned: checked, and in the form
in which a log has it.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import msgspec

from regrow.search.bounds import MOST
from regrow.search.errors import SpecError
from regrow.search.samplers.base import Proposal, Result
from regrow.search.schedulers.base import Action, Verdict
from regrow.search.space import Space
from regrow.search.space.scalars import check_letters


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


def verdict(returned: object, name: str) -> Verdict:
    """Return what the user's scheduler `name` decided. Raises SpecError."""
    if not isinstance(returned, Verdict) or returned.action not in get_args(Action):
        problem = f"decides {returned!r:.60}"
        hint = f"return a Verdict whose action is one of {', '.join(get_args(Action))}"
        raise SpecError("schedule", name, problem, hint)
    return replace(
        returned,
        until=whole(returned.until, name, "as the step of the next decision"),
        why=reason(returned.why, name),
        source=whole(returned.source, name, "as the trial to continue from"),
        judged_from=whole(returned.judged_from, name, "as the step from which it judges"),
    )


def whole(returned: Any, name: str, what: str) -> int | None:
    """Return a whole number of the user's scheduler, `what` it is for. Raises SpecError."""
    try:
        found = None if returned is None else operator.index(returned)
    except TypeError:
        problem = f"gives {returned!r:.60} {what}"
        hint = "give a whole number, or None"
        raise SpecError("schedule", name, problem, hint) from None
    if found is not None and abs(found) > MOST:
        problem = f"gives a number beyond 2**53 {what}"
        raise SpecError("schedule", name, problem, "give a smaller number")
    return found


def reason(returned: object, name: str) -> str:
    """Return the reason that the user's scheduler gives, "" for None. Raises SpecError."""
    if returned is not None and not isinstance(returned, str):
        raise SpecError("schedule", name, f"gives {returned!r:.60} as why", "give text")
    check_letters("schedule", returned)
    return str(returned or "")


def _plain(value: dict[str, Any], key: str, name: str = "") -> dict[str, Any]:
    """Return a value as it comes back from a log. Raises SpecError for one that none can hold."""
    try:
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError) as error:
        problem = f"returned what is not plain JSON: {error}"
        hint = "return Python's own numbers and text"
        raise SpecError(key, name or value, problem, hint) from None
    return found
