"""Dropping trials and keeping them after all: written to the log by the driver, else from here."""

from __future__ import annotations

import time
from collections.abc import Sequence

from regrow.flows.coordinator.ledger import Ledger
from regrow.infra.log.log import Superseded
from regrow.infra.log.reading import replay
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.experiments import request_exclusion
from regrow.infra.state.places import Places
from regrow.search.events import Excluded
from regrow.search.history import History, TrialRecord
from regrow.tasks.errors import UserError

PATIENCE = 60.0
"""Seconds that a running experiment has to record it."""


def exclude(places: Places, name: str, trials: Sequence[int], *, excluded: bool) -> History:
    """Drop trials of an experiment, or keep dropped ones after all; return the new history.

    Returns when the log has it. Raises UserError for trials that are not there or have not ended,
    and for an experiment whose last session was lost.
    """
    store = places.known(name)
    deadline = time.monotonic() + PATIENCE
    request: str | None = None
    while True:
        history = replay(store, name)
        left = [n for n in trials if _checked(history, n).excluded is not excluded]
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
            _write(places, name, left, excluded=excluded)
        elif request is None:
            request = request_exclusion(store, left, excluded=excluded)
        else:
            time.sleep(0.5)


def _checked(history: History, number: int) -> TrialRecord:
    name = history.spec.name
    if not 0 <= number < len(history.trials):
        raise UserError(f"there is no trial {number} in {name!r}")
    trial = history.trials[number]
    if not trial.state.final:
        raise UserError(
            f"trial {number} of {name!r} is {trial.state.value}: only a trial that has ended can be"
            " dropped or kept"
        )
    return trial


def _write(places: Places, name: str, trials: Sequence[int], *, excluded: bool) -> None:
    """Write it to a closed log. A driver that begins at the same time wins: the caller looks again.

    Only to a closed one, in which no decision is due: an open one needs a session first.
    """
    ledger = Ledger(places.known(name))
    if ledger.history.closed is None:
        raise UserError(
            f"the last session of {name!r} was lost: `{places.command('resume', name)}` first"
        )
    found = ledger.history.trials
    left = [number for number in trials if found[number].excluded is not excluded]
    if not left:
        return
    try:
        ledger.claim(*(Excluded(t=ledger.now(), trial=n, excluded=excluded) for n in left))
    except Superseded:
        return
