"""Taking over an experiment's log: the first act of a session, and its first event."""

from __future__ import annotations

from typing import Any

import msgspec

from regrow.flows.coordinator.leases import holders
from regrow.flows.coordinator.ledger import Ledger
from regrow.infra.log.log import Superseded
from regrow.search.events import AnyEvent, Created, Hold, Opened
from regrow.search.measured import Known
from regrow.search.spec import Spec
from regrow.search.spec.keys import UNLIMITED
from regrow.tasks.ports.store import Store


class SessionOpening(msgspec.Struct, frozen=True, kw_only=True):
    """Settings with which a session opens the log. `id`, `spec`, `known`, `auto` and `learnt`
    create the experiment if the log is empty.

    Attributes:
        id: ID of the experiment.
        spec: the specification.
        slots: slots of the cluster.
        trials: new total number of trials; None to keep it.
        flow_run: ID of the Prefect flow run.
        code: hash of the pickled trainable; None for none.
        versions: versions of the libraries.
        known: trials of a warm start.
        auto: see Created.
        learnt: see Created.
        widest: slots that one attempt may have, see Opened.
        fixed: whether the number of slots was requested explicitly, regardless of the cluster's
            size.
        least, on_demand: slots that the planner knows at least, and such that stay, however small
            the cluster is.
        environment: the environment to record.
        retry_failed: whether failed trials are tried again.
        agent: see Opened.
        hold: see Opened.

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
    least: int = 0
    on_demand: int = 0
    environment: dict[str, Any] = {}
    retry_failed: bool = False
    agent: str = ""
    hold: Hold = ""


CLAIMS = 100
"""Tries to take over a log from an active writer: each of its segments may come first."""


def claimed(store: Store, opening: SessionOpening, driver: str) -> Ledger:
    """Take over an experiment's log for a driver, or for the same driver's next coordinator; return
    the ledger.

    A driver that was superseded meanwhile does not take the log back. Raises Superseded if others
    keep coming first.
    """
    spec = Spec.recorded(opening.spec)
    for _ in range(CLAIMS):
        ledger = Ledger(store)
        now, history = ledger.now(), ledger.history
        again = history.opened is not None and history.opened.driver == driver
        if driver in ledger.drivers and not again:
            ledger.retire()
            return ledger
        asked, before = opening.trials, history.total or spec.total
        if asked is None or before < UNLIMITED:  # the total only grows, unless there was no limit
            asked = max(asked or 0, before)
        created = history.created or Created(
            t=now,
            id=opening.id,
            spec=opening.spec,
            known=opening.known,
            auto=opening.auto,
            learnt=opening.learnt,
            distinct=not spec.duplicates,
        )
        first = Spec.recorded(created.spec)
        renamed = {} if first.name == spec.name else {"name": spec.name}
        opened = Opened(
            t=now,
            by="coordinator" if again else "driver",
            driver=driver,
            slots=opening.slots,
            trials=asked,
            flow_run=opening.flow_run,
            code=opening.code,
            versions=opening.versions,
            widest=opening.widest,
            settings=renamed | spec.settings_since(first),
            environment={} if again else opening.environment,
            retry_failed=opening.retry_failed and not again,
            agent=opening.agent,
            hold=opening.hold,
        )
        if again:  # the cluster's size may have changed since `opening`
            opened = msgspec.structs.replace(opened, slots=history.slots, widest=history.widest)
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
