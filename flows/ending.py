"""The end of a session whose cluster has died under it: the log is closed from the driver's own process.

An ending that has begun is not turned into a recovery. No cluster is started for it: the coordinator lives on here, as it
would after any other restart, gives up what ran, and closes the log.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from regrow.flows.interrupts import Interrupts
from regrow.infra.coordinator.actor import is_ours
from regrow.infra.coordinator.claim import Opening
from regrow.infra.coordinator.coordinator import Coordinator
from regrow.infra.log.reading import replay
from regrow.infra.state.experiments import Prepared
from regrow.search.events import Status
from regrow.search.history import History

STORE_SECONDS = 10.0
"""How long it waits for a store that takes nothing; then the log stays open, and the next session closes what is open."""


def cut_short(prepared: Prepared, asked: Interrupts) -> tuple[Status, History]:
    """Closes the log as was asked; how the session ended, and the whole history.

    Raises KeyboardInterrupt where it had not begun. To be called when the cluster is left and `asked.begun` is known.
    """
    history = replay(prepared.store, prepared.spec.name)
    if history.opened is None or not is_ours(history.opened.driver):
        raise KeyboardInterrupt
    if history.closed is None and asked.begun is not None:
        with ThreadPoolExecutor(1) as pool:  # the caller may be in a notebook, which has an event loop of its own
            pool.submit(asyncio.run, _close(prepared, history, *asked.begun)).result()
        history = replay(prepared.store, prepared.spec.name)
    return history.closed.status if history.closed else "interrupted", history


async def _close(prepared: Prepared, history: History, status: Status, why: str) -> None:
    opened = history.opened
    if opened is None:
        return
    opening = Opening(
        id=history.id, spec=prepared.spec.model_dump(mode="json"), slots=opened.slots, trials=opened.trials,
        flow_run=opened.flow_run, code=opened.code, versions=opened.versions, widest=opened.widest,
    )
    coordinator = Coordinator(prepared.store, opening, opened.driver)
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await coordinator.close(status, why)  # first, so that nothing is started in place of what is given up
            await coordinator.abandon("its cluster was told to end")
            instructions = await coordinator.instructions(0.0)
            while instructions.finished is None and not instructions.superseded:
                instructions = await coordinator.instructions(1.0)
    except TimeoutError:
        return
