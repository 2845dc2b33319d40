"""A real coordinator over a store in memory, without Ray: its event loop runs in a thread. No test
lives here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from regrow.flows.coordinator.claim import SessionOpening
from regrow.flows.coordinator.coordinator import Coordinator
from regrow.flows.coordinator.instructions import Instructions
from regrow.infra.log.reading import read_events
from regrow.search.events import AnyEvent, Began, Created, Opened, Place
from regrow.search.history import History
from regrow.search.needs import ClusterCapacity
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec
from regrow.tasks.ports.messages import Assignment, Job, Progress, Reply, Shared
from regrow.tasks.ports.store import Store
from tests.memory_store import MemoryStore
from tests.unit.simulated import SPEC

T = TypeVar("T")


def opening_of(
    spec: Spec,
    *,
    id: str = "00000000-0000-0000-0000-000000000001",
    auto: dict[str, str] | None = None,
    slots: int = 1,
    trials: int | None = None,
    **opened: Any,
) -> SessionOpening:
    """How a session of this specification opens the log; `opened`: fields of Opened."""
    return SessionOpening(
        created=Created(t=0.0, id=id, spec=spec.to_json(), auto=auto or {}),
        opened=Opened(t=0.0, by="driver", driver="", slots=slots, trials=trials or 0, **opened),
    )


def began_at(place: Place, **fields: Any) -> Began:
    """The start of an attempt, as its message has it."""
    return Began.at(place, t=0.0, trial=0, attempt=1, **fields)


class GatedStore(MemoryStore):
    """A store whose writes to the log wait while the gate is shut, and fail with `error` if there
    is one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()
        self.error: Exception | None = None

    def create(self, key: str, data: bytes | Path) -> None:
        if key.startswith("log/"):
            self.reached.set()
            assert self.gate.wait(20)
            if self.error is not None:
                raise self.error
        super().create(key, data)


class Bench:
    """The Host of an attempt that runs here. `notice(why, node)` tells the attempt that it, or its
    node, goes away.
    """

    def __init__(self, node_id: str = "") -> None:
        self._node_id = node_id
        self.notice: Callable[[str, bool], None] = lambda why, node: None

    def place(self) -> Place:
        """See Host."""
        return Place("node", self._node_id)

    def end_children(self) -> None:
        """See Host: the children here are those of other tests, too."""

    @contextmanager
    def listen(self, tell: Callable[[str, bool], None]) -> Iterator[None]:
        """See Host."""
        self.notice = tell
        yield


class Office:
    """The CoordinatorClient of a coordinator that may be restarted. `told` has every message, in
    order.
    """

    def __init__(
        self,
        *,
        slots: int = 1,
        fixed: bool = False,
        least: int = 0,
        on_demand: int = 0,
        driver: str = "driver-1",
        store: Store | None = None,
        given: Callable[[], object] = lambda: None,
        **spec: Any,
    ) -> None:
        self.store = store or GatedStore()
        self.spec = Spec.parse({**SPEC, "trials": 1, **spec})
        self.slots, self.fixed, self._given = slots, fixed, given
        self.least, self.on_demand = least, on_demand
        self.told: list[Progress] = []
        self.monotonic = 0.0
        """The coordinator's clock for leases, in seconds."""
        self._opening_one = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.open(driver)

    def open(self, driver: str) -> None:
        """A coordinator comes up, of a new driver or once more of the same."""

        async def make() -> Coordinator:
            return Coordinator(
                self.store,
                self._opening(),
                driver,
                monotonic=lambda: self.monotonic,
                given=self._given(),
            )

        with self._opening_one:
            self.coordinator = self.wait(make())

    def close(self) -> None:
        """Ends the thread."""

        async def cancel() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        self.wait(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait(self, what: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the coordinator's."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(20)

    def report(self, progress: Progress) -> Reply:
        """See CoordinatorClient."""
        self.told.append(progress)
        while True:
            asked = self.coordinator
            reply = self.wait(asked.report(progress))
            with self._opening_one:
                # else it was gone before it could answer, and Ray asks the next one
                if asked is self.coordinator:
                    return reply

    def instructions(self, room: ClusterCapacity | None = None) -> Instructions:
        """What the driver is to do now, which tells that the cluster has this room."""
        return self.wait(self.coordinator.instructions(0.0, room))

    def submitted(self) -> Assignment:
        """The one attempt that the driver is to submit."""
        (assignment,) = self.instructions().submit
        return assignment

    def lost(self, trial: int, attempt: int, task_run: str = "run-0") -> None:
        """The driver found the task run gone."""
        self.wait(self.coordinator.lost(task_run, trial, attempt, "preempted", "the node was lost"))

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.wait(self.coordinator.close("interrupted", "by the user"))

    @property
    def events(self) -> list[AnyEvent]:
        """What is durable."""
        return read_events(self.store)

    @property
    def history(self) -> History:
        """What the durable log folds to, after verifying it."""
        checked = verify(self.events)
        assert checked.difference is None, checked.difference
        return checked.history

    @property
    def job(self) -> Job:
        """What the driver sends to every worker."""
        return Job.of(self.spec, folder=self.spec.working_dir)

    def shared(self, store: Store | None = None, bench: Bench | None = None) -> Shared:
        """What its attempts share, but for another store or host."""
        return Shared(
            job=self.job, coordinator=self, store=store or self.store, host=bench or Bench()
        )

    def _opening(self) -> SessionOpening:
        seen = {"fixed": self.fixed, "least": self.least, "on_demand": self.on_demand}
        return msgspec.structs.replace(opening_of(self.spec, slots=self.slots), **seen)


MakeOffice = Callable[..., Office]


@contextmanager
def offices(**usual: Any) -> Iterator[MakeOffice]:
    """Makes offices of specifications with these values, unless others are given; all are closed
    afterwards.
    """
    made: list[Office] = []

    def make(**changes: Any) -> Office:
        made.append(Office(**{**usual, **changes}))
        return made[-1]

    try:
        yield make
    finally:
        for office in made:
            office.close()
