"""Taking an experiment's log over: the first thing that a session does, and what its first event says."""

from __future__ import annotations

from typing import Any

import msgspec

from regrow.infra.coordinator.ledger import Ledger
from regrow.infra.log.log import Superseded
from regrow.search.events import AnyEvent, Created, Known, Opened
from regrow.search.spec import Spec
from regrow.tasks.ports import Store


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """With what a session begins: slots (and those of one node, see Opened), the new total of trials (None: as it was), and
    who opens.

    `fixed`: so many slots were asked for, whatever the cluster has room for.
    `id`, `spec`, `known` (of a warm start), `auto` and `learnt` (see Created) create the experiment where the log is empty.
    """

    id: str
    spec: dict[str, Any]
    slots: int
    trials: int | None
    flow_run: str | None
    code: str | None
    versions: dict[str, str]
    known: list[Known] = []
    auto: dict[str, str] = {}
    learnt: list[Known] = []
    widest: int = 0
    fixed: bool = False
    environment: dict[str, Any] = {}
    retry_failed: bool = False


CLAIMS = 100
"""Tries to take a log over from a writer that still writes: each of its segments may come first."""


def claimed(store: Store, opening: Opening, driver: str) -> Ledger:
    """The ledger of an experiment, taken over by a driver, or by the same driver's next coordinator.

    One whose driver was superseded meanwhile takes nothing back. Raises Superseded if others keep coming first.
    """
    for _ in range(CLAIMS):
        ledger = Ledger(store)
        now, history = ledger.now(), ledger.history
        again = history.opened is not None and history.opened.driver == driver
        if driver in ledger.drivers and not again:
            ledger.retire()
            return ledger
        created = history.created or Created(
            t=now, id=opening.id, spec=opening.spec, known=opening.known, auto=opening.auto, learnt=opening.learnt
        )
        opened = Opened(
            t=now, by="coordinator" if again else "driver", driver=driver,
            slots=opening.slots, trials=max(opening.trials or 0, history.total or Spec.recorded(opening.spec).total),
            flow_run=opening.flow_run, code=opening.code, versions=opening.versions, widest=opening.widest,
            settings=_changed(created.spec, opening.spec), environment={} if again else opening.environment,
            retry_failed=opening.retry_failed and not again,
        )
        if again:  # the cluster may have become larger or smaller since
            opened = msgspec.structs.replace(opened, slots=history.slots, widest=history.widest)
        events: list[AnyEvent] = [] if history.created is not None else [created]
        try:
            ledger.claim(*events, opened)
        except Superseded:
            continue
        if again:
            ledger.withdrawn = [(t.number, a.number) for t in history.trials for a in t.attempts if a.withdrawn]
            # Attempts that nobody has seen running are handed out again; the driver ignores those that it submitted.
            ledger.starts = [
                (t, a.number)
                for t in sorted(history.running)
                if (a := history.trials[t].attempt) is not None and a.t_began is None
            ]
        return ledger
    raise Superseded(ledger.log.last)


def _changed(created: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """What a session has otherwise than the experiment's beginning."""
    first, now = Spec.recorded(created), Spec.recorded(current)
    renamed = {} if first.name == now.name else {"name": now.name}
    return renamed | {key: value for key, value in now.settings().items() if value != first.settings()[key]}
