"""A searcher of Ray Tune's interface, in the coordinator: the user's own class, or one of Ray's
that has a space in the words of its own library. What it suggests is an event before it is used.

With each suggestion its attributes are kept, pickled, as a file of the state, which the event names
by its hash: a searcher may be no function of the results. So it is not asked again after a kill.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from regrow.infra.state.places import Places
from regrow.integrations.tune.session import flat, reported
from regrow.search.errors import SpecError
from regrow.search.events import Answered, AnyEvent, Ended, Reported
from regrow.search.history import History
from regrow.search.lifecycle import TrialState
from regrow.search.samplers.external import External, Wanted
from regrow.tasks.ports.store import Exists, Missing, Store, Unavailable

_PREFIX = "searcher/"
_KEPT = "searcher"
"""Key of a proposal's state for the hash of the file with the attributes."""
_MOST_FILES = 2
MOST_BYTES = 64 << 20
"""Bytes of the file at most; beyond, and if they cannot be pickled, they are not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSearcher:
    """The searcher of an experiment, pickled with its trainable.

    Attributes:
        pickled: the searcher.
        root: the state root of the experiment.

    """

    pickled: bytes
    root: str

    def external(self, name: str) -> External:
        """Return it as the coordinator of the experiment `name` has it."""
        searcher = pickle.loads(self.pickled)  # noqa: S301 - a part of the experiment's own trainable
        return AnsweringSearcher(searcher, Places.at(self.root).store(name), name)


def prepared(
    searcher: Any, param_space: Mapping[str, Any], metric: Any, mode: Any, trials: int
) -> bytes:
    """Return the searcher, pickled, as Ray Tune hands it over to its controller. Raises SpecError.

    It gets metric, mode and the space, which it may decline if all of that is plain
    values.
    """
    from ray import cloudpickle

    from regrow.integrations.tune.space import holds_domain

    name = type(searcher).__name__
    try:
        took = searcher.set_search_properties(metric, mode, dict(param_space), num_samples=trials)
    except TypeError:  # an older class, without `**spec`
        took = searcher.set_search_properties(metric, mode, dict(param_space))
    if not took and holds_domain(dict(param_space)):
        hint = "leave the parameters to the searcher, or have set_search_properties return True"
        raise SpecError("param_space", name, "has domains that the searcher does not take", hint)
    try:
        data: bytes = cloudpickle.dumps(searcher)
    except Exception as error:
        problem = f"cannot be sent to the coordinator ({error})"
        hint = "make what cannot be pickled in suggest, at its first call"
        raise SpecError("search_alg", name, problem, hint) from error
    return data


class AnsweringSearcher:
    """The searcher in its process."""

    def __init__(self, searcher: Any, store: Store, name: str) -> None:
        self._searcher, self._store, self._name = searcher, store, name
        self._history = History(name)
        self._unheard: list[AnyEvent] | None = []
        """Events of earlier processes; None once the searcher has what it learnt of them."""
        self._last: dict[int, dict[str, Any]] = {}
        """By trial, its last result."""
        self._over = False

    def observe(self, event: AnyEvent) -> None:
        """See External."""
        self._history.apply(event)
        if self._unheard is not None:
            self._unheard.append(event)
        else:
            self._update_searcher(event)

    def answer(self, wanted: Wanted | None, now: float) -> Answered | None:
        """See External."""
        if wanted is None or wanted.name:
            return None
        from ray.tune.search import Searcher

        self._catch_up()
        suggested = self._searcher.suggest(self._id(wanted.trial))
        if suggested is None:
            return None
        if suggested == Searcher.FINISHED:
            return Answered(t=now, over="finished")
        values = plain(suggested, type(self._searcher).__name__)
        return Answered(t=now, about=wanted.trial, values=values, state=self._keep())

    def _catch_up(self) -> None:
        """Bring the searcher to where it was in earlier processes."""
        events, self._unheard = self._unheard, None
        if events is None:
            return
        begins = 0
        for place in range(len(events) - 1, -1, -1):
            event = events[place]
            if isinstance(event, Answered) and self._restore(event.state.get(_KEPT)):
                begins = place + 1
                break
        self._history = History(self._name)
        for place, event in enumerate(events):
            self._history.apply(event)
            if place < begins:
                self._note(event)
            elif isinstance(event, Answered) and event.about is not None:
                self._searcher.suggest(self._id(event.about))  # it was not kept
            else:
                self._update_searcher(event)

    def _update_searcher(self, event: AnyEvent) -> None:
        """Tell the searcher of results and ends, as Ray Tune's controller does."""
        for name, result in self._note(event):
            self._searcher.on_trial_result(name, result)
        if not isinstance(event, Ended):
            return
        state, name = self._history.trials[event.trial].state, self._id(event.trial)
        if state is TrialState.FAILED:
            self._searcher.on_trial_complete(name, error=True)
        elif state.final:
            last = self._last.get(event.trial)
            done = None if last is None else {**last, "done": True}
            self._searcher.on_trial_complete(name, result=done)

    def _note(self, event: AnyEvent) -> Iterator[tuple[str, dict[str, Any]]]:
        """Note the results of an event, and return them, each with its trial's id."""
        found = []
        if isinstance(event, Reported):
            trial = self._history.trials[event.trial]
            name = self._id(event.trial)
            for row in event.rows:
                result = reported(event, row, trial.config, name)
                self._last[event.trial] = flat(result)
                found.append((name, self._last[event.trial]))
        return iter(found)

    def _id(self, number: int) -> str:
        return f"{self._name}_{number:05d}"

    def _chain(self) -> Iterator[Any]:
        """Yield the searcher and those inside of it (ConcurrencyLimiter, Repeater)."""
        at = self._searcher
        while at is not None:
            yield at
            at = vars(at).get("searcher")

    def _keep(self) -> dict[str, Any]:
        """Keep the searcher's attributes. Return what names them; empty if they are not kept."""
        from ray import cloudpickle

        states = [{k: v for k, v in vars(o).items() if k != "searcher"} for o in self._chain()]
        try:
            data: bytes = cloudpickle.dumps(states)
        except Exception:  # noqa: BLE001 - a user's class: then it is asked again after a kill
            return {}
        if len(data) > MOST_BYTES:
            return {}
        digest = hashlib.sha256(data).hexdigest()
        kept = self._kept()
        number = int(kept[-1].removeprefix(_PREFIX)) + 1 if kept else 1
        try:
            self._store.create(f"{_PREFIX}{number:08d}", data)
            self._store.delete(kept[: 1 - _MOST_FILES])
        except (Exists, Unavailable):  # it is asked again, if this process ends before the next one
            return {}
        return {_KEPT: digest}

    def _kept(self) -> list[str]:
        with suppress(Unavailable):
            return self._store.list(_PREFIX)
        return []

    def _restore(self, digest: Any) -> bool:
        """Restore the attributes that an event names. Return whether they are there."""
        for key in reversed(self._kept()) if isinstance(digest, str) else ():
            with suppress(Missing, Unavailable):
                data = self._store.read(key)
                if hashlib.sha256(data).hexdigest() == digest:
                    states = pickle.loads(data)  # noqa: S301 - written by this experiment, verified by the hash in its log
                    for searcher, state in zip(self._chain(), states, strict=False):
                        vars(searcher).update(state)
                    return True
        return False


def plain(suggested: Any, who: str) -> dict[str, Any]:
    """Return a configuration in JSON's types. Raises SpecError for other objects."""

    def converted(value: Any) -> Any:
        if hasattr(value, "tolist"):  # NumPy's
            return value.tolist()
        raise TypeError(f"a {type(value).__name__} is in it")

    try:
        found = msgspec.json.decode(msgspec.json.encode(suggested, enc_hook=converted))
        if isinstance(found, dict):
            return found
        problem = f"suggested {suggested!r}, which is no configuration"
    except (TypeError, ValueError, OverflowError) as error:
        problem = f"suggested what a log cannot hold: {error}"
    raise SpecError("search_alg", who, problem, "return a map of numbers, texts, lists and maps")
