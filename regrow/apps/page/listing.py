"""The list of experiments, one page at a time: filtered and grouped on the server, from summaries
alone, so that a thousand experiments need no log to be read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, get_args

from regrow.apps.page.asked import ListQuery, Status
from regrow.apps.page.experiment_state import Summary
from regrow.apps.page.groups import offered, part
from regrow.show.views.summaries import UNKNOWN

PER_PAGE = 100
"""Experiments per page of the list."""
OFFERED = 200
"""Maximum tags, or versions of the code, that are offered as filters."""
NO_TAG = "no tag"


def listing(summaries: Sequence[Summary], asked: ListQuery) -> dict[str, Any]:
    """Return what is asked of the experiments, in their order: the page that `part` makes of them
    (an experiment with several tags is in the group of each), how many are `matching`, the names of
    ticked ones `elsewhere` than on the page, and the filters: values, and texts for people.
    """
    found = [
        one
        for one in summaries
        if asked.q.lower() in one.name.lower()
        and (not asked.tag or asked.tag in one.tags)
        and (not asked.version or asked.version in one.versions)
        and (asked.state is None or asked.state == one.status)
    ]
    states = Counter(one.status for one in summaries)
    tags = Counter(tag for one in summaries for tag in one.tags)
    versions = Counter(version for one in summaries for version in one.versions)
    # The latest first, by the last event of the experiments that ran with it.
    heard: dict[str, float] = {}
    for one in summaries:
        for version in one.versions:
            last = one.heard if version == one.versions[-1] else 0.0
            heard[version] = max(heard.get(version, 0.0), last)
    latest = sorted(versions, key=lambda version: (-heard[version], version))
    known = get_args(Status)
    order = {"state": known, "version": latest, "tag": sorted(tags)}
    shown = part(
        found,
        _KEYS[asked.group] if asked.group else None,
        order.get(asked.group or "", ()),
        asked.page,
        PER_PAGE,
    )
    listed = {one.name for group in shown["groups"] for one in group["rows"]}
    return {
        **shown,
        "matching": len(found),
        "tags": offered(sorted(tags.most_common(OFFERED))),
        "versions": offered((version, versions[version]) for version in latest[:OFFERED]),
        "states": offered((state, states[state]) for state in known if states[state]),
        "elsewhere": [name for name in dict.fromkeys(asked.e) if name and name not in listed],
    }


def filter_text(asked: ListQuery) -> str:
    """Return the filters as text, "" for none: “a” in the name and the tag “b”."""
    found = [f"“{asked.q}” in the name"] if asked.q else []
    found += [f"the tag “{asked.tag}”"] if asked.tag else []
    found += [f"version “{asked.version}” of the code"] if asked.version else []
    found += [f"the state {asked.state}"] if asked.state else []
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


_KEYS: dict[str, Callable[[Summary], Sequence[str]]] = {
    "tag": lambda one: one.tags or (NO_TAG,),
    "version": lambda one: one.versions[-1:] or (UNKNOWN,),
    "state": lambda one: (one.status,),
}
