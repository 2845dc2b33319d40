"""What a new experiment learns from earlier ones of its state root, read when it is created."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec

from regrow.infra.log.log import Log
from regrow.infra.log.reading import first_event, replay
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import Created
from regrow.search.measured import Known
from regrow.search.options import AUTO
from regrow.search.planning import agreement
from regrow.search.planning.learning import MOST_EXPERIMENTS, learnt_from
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.ports.store import Store

MOST_LOOKED_AT = 300
"""Experiments of a state root whose first event is read to find those that may be learnt from."""
MOST_LINES = 20_000
"""Events that are read of these in all, the newest experiments first: about half a second."""
READERS = 8
"""First events that are read at a time."""
_UNREADABLE = (RegrowError, SpecError, msgspec.MsgspecError)


def learnt(places: Places, spec: Spec) -> list[Known]:
    """Return the results of the experiments that a new one learns from. Raises SpecError for a
    named experiment without usable results.
    """
    if spec.learn_from is None:
        return _agreeing(places, spec) if spec.search == AUTO and spec.takes_first else []
    if spec.learn_from == AUTO:
        return _newest_fitting_results(places, spec) if spec.takes_first else []
    found: list[Known] = []
    for number, name in enumerate(spec.learn_from):
        key = f"learn_from.{number}"
        try:
            kept = learnt_from(replay(places.known(name), name), spec, name, key)
        except UserError as error:
            hint = "write auto for whatever fits" if name.lower() == AUTO else ""
            raise SpecError(key, name, str(error), hint) from None
        if not kept:
            problem = "has no trial in this space that ended with a value"
            raise SpecError(key, name, problem, "leave it out")
        found += kept
    return found


def names(known: list[Known]) -> tuple[str, ...]:
    """Return the experiments that results come from, in their order."""
    return tuple(dict.fromkeys(one.origin.rpartition(":")[0] for one in known))


def _newest_fitting_results(places: Places, spec: Spec) -> list[Known]:
    """Return the results of the newest readable experiments with this space and metric."""
    found: list[tuple[float, list[Known]]] = []
    for name in places.experiments():
        if name == spec.name:
            continue
        with suppress(*_UNREADABLE):
            history = replay(places.known(name), name)
            if history.created is not None and (
                kept := learnt_from(history, spec, name, "learn_from")
            ):
                found.append((history.created.t, kept))
    found.sort(key=lambda one: -one[0])
    return [known for _, kept in found[:MOST_EXPERIMENTS] for known in kept]


def _agreeing(places: Places, spec: Spec) -> list[Known]:
    """Return the results of the newest experiments with this space and metric, if they were seen to
    tell about each other; else none.
    """
    found: list[list[Known]] = []
    left = MOST_LINES
    for _, name in sorted(_alike(places, spec), reverse=True):
        if len(found) == MOST_EXPERIMENTS:
            break
        with suppress(*_UNREADABLE):
            store = places.known(name)
            left -= (lines := _lines(store, left))
            if left < 0 or not lines:
                break
            history = replay(store, name)
            if history.closed is None:
                continue  # it still runs, or is to be resumed
            kept = learnt_from(history, spec, name, "learn_from")
            if len(kept) >= agreement.LEAST_TRIALS:
                found.append(kept)
    if len(found) < agreement.LEAST_EXPERIMENTS:
        return []
    correlations = agreement.agreement(spec, found)
    if agreement.least_mean(correlations) <= agreement.LEAST:
        return []
    return [
        known
        for kept, correlation in zip(found, correlations, strict=True)
        for known in kept
        if correlation > 0
    ]


def _alike(places: Places, spec: Spec) -> Iterator[tuple[float, str]]:
    """Yield creation time and name of the other experiments with these parameters and metric."""
    own = spec.model_dump(mode="json", include={"metric", "mode", "space"})
    others = [name for name in places.experiments() if name != spec.name][:MOST_LOOKED_AT]
    with ThreadPoolExecutor(READERS) as pool:
        for name, created in zip(
            others, pool.map(lambda name: _created(places.store(name)), others), strict=True
        ):
            if created is not None and _key(created.spec) == _key(own):
                yield created.t, name


def _key(spec: dict[str, Any]) -> tuple[object, object, list[str]]:
    space = spec.get("space")
    return spec.get("metric"), spec.get("mode"), sorted(space) if isinstance(space, dict) else []


def _created(store: Store) -> Created | None:
    with suppress(*_UNREADABLE):
        first = first_event(store)
        return first if isinstance(first, Created) else None
    return None


def _lines(store: Store, most: int) -> int:
    """Return how many events a log has; more than `most` once there are that many."""
    count = 0
    for _, lines in Log.read(store):
        count += len(lines)
        if count > most:
            break
    return count
