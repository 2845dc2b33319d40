"""End of a session whose cluster has died: the driver's own process closes the log.

An ending that has begun is not turned into a recovery. No cluster is started for it: a coordinator
runs in this process, as it would after any other restart, gives up the running attempts, and closes
the log.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from regrow.flows.coordinator.actor import is_ours
from regrow.flows.coordinator.claim import Opening
from regrow.flows.coordinator.coordinator import Coordinator
from regrow.flows.interrupts import Interrupts
from regrow.infra.log.reading import replay
from regrow.infra.state.experiments import Prepared
from regrow.search.events import Status
from regrow.search.history import History

STORE_SECONDS = 10.0
"""Seconds to wait for an unreachable store; then the log stays open, and the next session closes
it.
"""


def cut_short(prepared: Prepared, asked: Interrupts) -> tuple[Status, History]:
    """Close the log as requested; return how the session ended, and the whole history.

    Raises KeyboardInterrupt if the session had not begun. Call this when the cluster is left and
    `asked.begun` is known.
    """
    history = replay(prepared.store, prepared.spec.name)
    if history.opened is None or not is_ours(history.opened.driver):
        raise KeyboardInterrupt
    if history.closed is None and asked.begun is not None:
        # the caller may be in a notebook, which already runs an event loop
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, _close(prepared, history, *asked.begun)).result()
        history = replay(prepared.store, prepared.spec.name)
    return history.closed.status if history.closed else "interrupted", history


async def _close(prepared: Prepared, history: History, status: Status, why: str) -> None:
    opened = history.opened
    if opened is None:
        return
    opening = Opening(
        id=history.id,
        spec=prepared.spec.record(),
        slots=opened.slots,
        trials=opened.trials,
        flow_run=opened.flow_run,
        code=opened.code,
        versions=opened.versions,
        widest=opened.widest,
    )
    coordinator = Coordinator(prepared.store, opening, opened.driver)
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await coordinator.close(status, why)  # first, so that nothing replaces what is given up
            await coordinator.abandon("its cluster was told to end")
            instructions = await coordinator.instructions(0.0)
            while instructions.finished is None and not instructions.superseded:
                instructions = await coordinator.instructions(1.0)
    except TimeoutError:
        return
