"""Taking over an experiment's log: the first act of a session, and its first event."""

from __future__ import annotations

import msgspec

from regrow.flows.coordinator.leases import holders
from regrow.flows.coordinator.ledger import Ledger
from regrow.infra.log.log import Superseded
from regrow.search.events import AnyEvent, Created, Opened
from regrow.search.spec import Spec
from regrow.search.spec.keys import UNLIMITED
from regrow.tasks.ports.store import Store


class SessionOpening(msgspec.Struct, frozen=True, kw_only=True):
    """How a session opens the log. `claimed` completes the events: `t`, `by`, `driver` and
    `settings` of `opened`, `distinct` of `created`.

    Attributes:
        created: the experiment, which begins with it if the log is empty; `spec` is this session's.
        opened: the session; 0 `trials` keep their number.
        fixed: whether the number of slots was requested explicitly, regardless of the cluster's
            size.
        least, on_demand: slots that the planner knows at least, and such that stay, however small
            the cluster is.

    """

    created: Created
    opened: Opened
    fixed: bool = False
    least: int = 0
    on_demand: int = 0


CLAIMS = 100
"""Tries to take over a log from an active writer: each of its segments may come first."""


def claimed(store: Store, opening: SessionOpening, driver: str) -> Ledger:
    """Take over an experiment's log for a driver, or for the same driver's next coordinator; return
    the ledger.

    A driver that was superseded meanwhile does not take the log back. Raises Superseded if others
    keep coming first.
    """
    spec = Spec.recorded(opening.created.spec)
    for _ in range(CLAIMS):
        ledger = Ledger(store)
        now, history = ledger.now(), ledger.history
        again = history.opened is not None and history.opened.driver == driver
        if driver in ledger.drivers and not again:
            ledger.retire()
            return ledger
        asked, before = opening.opened.trials, history.total or spec.total
        if not asked or before < UNLIMITED:  # the total only grows, unless there was no limit
            asked = max(asked, before)
        created = history.created or msgspec.structs.replace(
            opening.created, t=now, distinct=not spec.duplicates
        )
        first = Spec.recorded(created.spec)
        renamed = {} if first.name == spec.name else {"name": spec.name}
        opened = msgspec.structs.replace(
            opening.opened,
            t=now,
            by="coordinator" if again else "driver",
            driver=driver,
            trials=asked,
            settings=renamed | spec.settings_since(first),
        )
        if again:  # the cluster's size may have changed since `opening`
            opened = msgspec.structs.replace(
                opened,
                slots=history.slots,
                widest=history.widest,
                environment={},
                retry_failed=False,
            )
        events: list[AnyEvent] = [] if history.created is not None else [created]
        try:
            ledger.claim(*events, opened)
        except Superseded:
            continue
        if again:
            ledger.withdrawn = [
                (t.number, a.number) for t in history.trials for a in t.attempts if a.withdrawn
            ]
            # Attempts that have not begun are assigned again; the driver ignores those
            # that it submitted.
            ledger.starts = [(n, a.number) for n, a in holders(history) if a.t_began is None]
        return ledger
    raise Superseded(ledger.log.last)
