"""Sessions of `regrow.optuna` in this process, without Ray and Prefect: everything else is real. No
test lives here.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from regrow.flows.coordinator.claim import Opening
from regrow.flows.coordinator.coordinator import Coordinator
from regrow.infra.state.experiments import prepare, take_stop_requests
from regrow.infra.state.places import Places
from regrow.search.spec import Spec
from regrow.tasks.attempt.attempt import run_attempt
from regrow.tasks.ports.messages import Job, Progress, Reply
from tests.unit.office import Bench

T = TypeVar("T")


class Client:
    """A CoordinatorClient of a coordinator whose event loop runs in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def open(self, *arguments: Any) -> None:
        """The coordinator comes up."""

        async def made() -> Coordinator:
            return Coordinator(*arguments)

        self.coordinator = self.wait(made())

    def wait(self, what: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the coordinator's."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(20)

    def report(self, progress: Progress) -> Reply:
        """See CoordinatorClient."""
        return self.wait(self.coordinator.report(progress))

    def call(self, name: str, *rest: Any) -> Any:
        """Calls one of its methods."""
        return self.wait(getattr(self.coordinator, name)(*rest))

    def close(self) -> None:
        """Ends the thread."""

        async def cancel() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        self.wait(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


_SESSIONS = itertools.count(1)


def run_here(
    *,
    name: str,
    spec: Spec,
    places: Places,
    code: str,
    hold: Any,
    watch: Any,
    given: Any,
    announce: Callable[[str], None],
) -> None:
    """Stands in for `regrow.experiment.run_session`."""
    prepared = prepare(places, name, spec, trials=None, code=code)
    opening = Opening(
        id="00000000-0000-0000-0000-000000000001",
        spec=prepared.spec.record(),
        slots=spec.concurrency or 2,
        trials=prepared.trials,
        flow_run=None,
        code=code,
        versions={},
        hold=hold,
    )
    client, store = Client(), prepared.store
    client.open(store, opening, f"driver-{next(_SESSIONS)}")
    job = Job.of(prepared.spec, folder=None, code=prepared.code)
    try:
        with (
            ThreadPoolExecutor(spec.concurrency or 2) as pool,
            watch.__self__.through(client.call),
        ):
            while True:
                found = client.wait(client.coordinator.instructions(0.0))
                for assignment in found.submit:
                    pool.submit(
                        run_attempt,
                        job,
                        assignment,
                        client,
                        store,
                        host=Bench(),
                        task_run="run",
                        carry_on=lambda: False,
                    )
                if found.finished is not None or found.superseded:
                    return
                if take_stop_requests(store):
                    client.wait(client.coordinator.close("stopped", "by `regrow stop`"))
                time.sleep(0.005)
    finally:
        client.close()
