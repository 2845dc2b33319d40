"""Dropping, keeping and stopping trials: written to the log by the driver, else from here."""

from __future__ import annotations

import time
from collections.abc import Sequence

from regrow.flows.coordinator.ledger import Ledger
from regrow.infra.log.log import Superseded
from regrow.infra.log.reading import replay
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.experiments import request_order
from regrow.infra.state.places import Places
from regrow.search.history import History, TrialRecord
from regrow.search.history.orders import TrialOrder, as_event, is_carried_out, why_not
from regrow.show.views import summaries
from regrow.tasks.errors import UserError

PATIENCE = 60.0
"""Seconds that a running experiment has to record it."""


def order(places: Places, name: str, trials: Sequence[int], what: TrialOrder) -> History:
    """Drop, keep or stop trials of an experiment; return the new history.

    Returns when the log has it. Raises UserError for trials that are not there or whose state does
    not allow it, and for an experiment whose last session was lost.
    """
    store = places.known(name)
    deadline = time.monotonic() + PATIENCE
    request: str | None = None
    while True:
        history = replay(store, name)
        left = [n for n in trials if not is_carried_out(_checked(history, n, what), what)]
        if not left:
            return history
        if time.monotonic() > deadline:
            store.delete([request] if request is not None else [])
            raise UserError(
                f"{name!r} runs, and has not recorded it after {PATIENCE:g} s; try again"
            )
        if not runs(places, name):
            if request is not None:
                store.delete([request])  # its driver has ended before it read the request
                request = None
            _write(places, name, left, what)
        elif request is None:
            request = request_order(store, left, what)
        else:
            time.sleep(0.5)


def _checked(history: History, number: int, what: TrialOrder) -> TrialRecord:
    trial = summaries.trial(history, number)
    if (why := why_not(trial, what)) is not None:
        raise UserError(f"trial {number} of {history.spec.name!r} {why}")
    return trial


def _write(places: Places, name: str, trials: Sequence[int], what: TrialOrder) -> None:
    """Write it to a closed log. A driver that begins at the same time wins: the caller looks again.

    Only to a closed one, in which no decision is due: an open one needs a session first.
    """
    ledger = Ledger(places.known(name))
    if ledger.history.closed is None:
        raise UserError(
            f"the last session of {name!r} was lost: `{places.command('resume', name)}` first"
        )
    found = ledger.history.trials
    left = [number for number in trials if not is_carried_out(found[number], what)]
    if not left:
        return
    try:
        ledger.claim(*(as_event(n, what, ledger.now()) for n in left))
    except Superseded:
        return
