"""One session of an experiment in one thread of control: driver, coordinator and workers as virtual
processes.

Coordinator, ledger, log, `run_attempt` and checkpoints are the real ones. What Ray does (messages,
restarts of the coordinator, sent again what was not answered) and what the flow does
(`flows/conduct.py`: poll, submit, watch, sweep) is done here, one action at a time, in an order that
depends on a seed alone. No test lives here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from regrow.flows.coordinator.coordinator import Coordinator
from regrow.flows.coordinator.instructions import Instructions
from regrow.flows.coordinator.ledger import Ledger
from regrow.flows.coordinator.present import PresentAgents
from regrow.infra.log.reading import read_events, replay
from regrow.infra.state.collection import collect
from regrow.search.events import Cause, Closed, Excluded, Joined, Opened
from regrow.search.needs import ClusterCapacity, ClusterPrice
from regrow.search.spec import Spec
from regrow.tasks.ports.messages import Assignment, Job, Progress, Reply
from tests.faults.clock import CLOCK
from tests.faults.still import Deferred
from tests.faults.worker import Worker
from tests.faults.world import Gone, Process, View, World
from tests.unit.office import opening_of

ID = "00000000-0000-0000-0000-000000000001"
USER = "the user's command"
Call = Callable[[], Coroutine[Any, Any, Any]]
MESSAGES = 3
"""After so many the cluster has become larger or smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The experiment: its specification, how many attempts at a time, whether short trials share a
    task run.

    `dropped`: a trial that the user dropped after a session before, as the log's only writer then.
    `late`: checkpoints take until the next one is asked for. `broken`: the trainable of a session
    before, in which each trial raised; they are tried again. `trials`: the total from then on,
    None: as specified. `rooms`: how many attempts the cluster has room for, one after the other;
    each for three messages, or until nothing continues any more. Empty: for `slots`, all the time.
    `spot`: whether there is a spot machine, at once, for each of the attempts that ask for one, in
    turn; where there is none one may come later. Of groups of several widths: whether there is room
    for each that has more ranks than it must. `agents`: whether agents run it: each session is led by
    another one, and one more is there for each attempt that there is room for. `price`: of each of
    the nodes, an hour; None: they have none. `more`: the `stop` of a session that continues once the
    limits of the first one have ended it. `count`: how many trials there are in the end, where the
    specification leaves that to its limits.
    """

    spec: dict[str, Any]
    slots: int = 1
    carry_on: bool = False
    late: bool = False
    broken: str | None = None
    dropped: int | None = None
    trials: int | None = None
    rooms: tuple[int, ...] = ()
    spot: tuple[bool, ...] = (True,)
    agents: bool = False
    price: float | None = None
    more: Mapping[str, Any] | None = None
    count: int | None = None

    @property
    def single(self) -> bool:
        """Whether one attempt runs at a time: then nothing happens at the same time."""
        at_once: int = self.spec.get("concurrency", self.slots // self.widths[0])
        return at_once == 1

    @property
    def repeats(self) -> bool:
        """Whether it becomes the same experiment, wherever it is cut.

        In a population a trial continues from the newest checkpoint that another one has: which that
        is depends on what was lost. A cut costs money and time, so that limits are reached earlier.
        """
        return self.single and "pbt" not in self.spec["schedule"] and self.more is None

    @property
    def widths(self) -> tuple[int, int]:
        """How many slots an attempt has at least and, of groups, at most."""
        workers = self.spec.get("resources", {}).get("workers", 1)
        return (workers[0], workers[1]) if isinstance(workers, list) else (workers, workers)

    def room(self, messages: int) -> ClusterCapacity:
        """What the cluster has room for after so many messages."""
        slots = (
            self.rooms[min(messages // MESSAGES, len(self.rooms) - 1)] if self.rooms else self.slots
        )
        if "resources" not in self.spec:
            return ClusterCapacity(slots=slots, widest=max(1, slots))
        least, most = self.widths
        return ClusterCapacity(
            slots=slots if slots >= least else 0, widest=max(least, min(slots, most))
        )

    def cost(self, messages: int) -> ClusterPrice | None:
        """What the cluster costs after so many messages."""
        nodes = self.room(messages).slots
        return (
            None if self.price is None else ClusterPrice(per_hour=self.price * nodes, nodes=nodes)
        )

    def present(self, leader: str, messages: int) -> PresentAgents | None:
        """The agents that are there after so many messages."""
        if not self.agents:
            return None
        names = [leader, *(f"agent {n}" for n in range(self.room(messages).slots))]
        nodes = [
            Joined(
                t=0.0,
                agent=name,
                host="host",
                node_id=f"{name} of {leader}",
                cpus=1.0,
                gpus=0.0,
                market="",
                ends=None,
            )
            for name in names
        ]
        gone = {"agent 0": "told to leave", **dict.fromkeys(["driver-1"], "lost")}
        return PresentAgents(nodes=tuple(nodes), left=gone)


@dataclass(slots=True)
class Session:
    """A driver with all that it starts. `seed` orders what could happen at once."""

    world: World
    plan: Plan
    driver: str = "driver-1"
    seed: int = 0
    trials: int | None = None
    on_submit: Callable[[Session, Assignment], None] | None = None
    on_answer: Callable[[Session, Progress, Reply], None] | None = None
    status: str | None = None
    """How it ended; None while it continues."""
    clock: float = 0.0
    """The coordinator's, in seconds: it continues while an attempt waits for a machine."""
    workers: list[Worker] = field(default_factory=list)
    pending: list[Assignment] = field(default_factory=list)
    """Handed to the cluster, which has no machine for them yet."""
    lost: list[Worker] = field(default_factory=list)
    """Killed or cut off, and the coordinator does not know yet."""
    submitted: set[tuple[int, int]] = field(default_factory=set)
    process: Process = field(default_factory=lambda: Process("driver"))
    coordinating: Process = field(default_factory=lambda: Process("coordinator"))
    restarts: int = 0
    job: Job = field(init=False)
    _chance: random.Random = field(init=False)
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _io: Deferred = field(init=False)
    _coordinator: Coordinator = field(init=False)
    _poll: asyncio.Task[Instructions] | None = None
    _calls: list[tuple[Call, asyncio.Task[Any]]] = field(default_factory=list)
    """What the coordinator was told, mostly losses, and has not acknowledged yet."""
    _news: bool = True
    _messages: int = 0
    """Those that were answered: the clock by which the cluster grows and shrinks."""
    _wishes: bool = False
    _gave_up: bool = False
    _continued: bool = False
    """Whether the user gives it more money and time than the plan did."""
    _asked: int = 0
    """How many attempts have asked for a spot machine."""

    def __post_init__(self) -> None:
        spec = Spec.parse(self.plan.spec)
        self.job = Job.of(spec, folder=None)
        self._chance = random.Random(self.seed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is None:
            self.kill()

    def open(self) -> Session:
        """The driver starts its coordinator, which claims the log. The user wishes only once that
        what failed is tried again; and drops a trial before, until the log has it.
        """
        dropped = self.plan.dropped
        if dropped is not None and not replay(self.world.store).trials[dropped].excluded:
            ledger = Ledger(View(self.world, Process(USER)))
            ledger.claim(Excluded(t=ledger.now(), trial=dropped))
        if self.plan.more is not None:
            self._continued = any(isinstance(e, Closed) for e in read_events(self.world.store))
        if self.plan.broken is not None:
            self._wishes = not any(
                isinstance(e, Opened) and e.retry_failed for e in read_events(self.world.store)
            )
        self._coordinate()
        return self

    def run(self, until: Callable[[], bool] = lambda: False) -> Session:
        """Continues to the end, or until `until()`."""
        while self.status is None and not until():
            self.step()
        return self

    def step(self) -> None:
        """One action of one process."""
        if self.coordinating.killed:
            self._coordinate()
        for worker in [w for w in self.workers if w.process.killed]:
            worker.kill()
            self.workers.remove(worker)
            self.lost.append(worker)
        actions = self._actions()
        # until there is room again
        while not actions and self._messages < MESSAGES * len(self.plan.rooms):
            self._messages, self._news = self._messages + 1, True
            actions = self._actions()
        assert actions, (
            f"nothing continues: {self.driver}, {[w.process.name for w in self.workers]}"
        )
        action = actions[0] if self.plan.single else self._chance.choice(actions)
        try:
            action()
        except Gone:
            if not self.coordinating.killed and not self.process.killed:
                raise
        if self.world.broken:
            raise self.world.broken[0]

    def finish(self) -> Session:
        """What the flow does at its end, after a status other than "superseded": collects what
        nothing refers to.
        """
        store = View(self.world, self.process)
        history = replay(store)
        collect(store, history)
        if self.world.broken:
            raise self.world.broken[0]
        return self

    def kill(self) -> None:
        """SIGKILL of all that it consists of."""
        self.process.killed = self.coordinating.killed = True
        for worker in [*self.workers, *self.lost]:
            worker.kill()
        if hasattr(self, "_loop"):
            self._close()

    def answered(self, progress: Progress, reply: Reply) -> None:
        """An attempt hears the answer to its message."""
        self._messages += 1
        self._news |= bool(self.plan.rooms or self.plan.more)
        if self.on_answer is not None:
            self.on_answer(self, progress, reply)

    # ---- actions

    def _actions(self) -> list[Callable[[], None]]:
        actions: list[Callable[[], None]] = []
        ready = [w for w in self.workers if w.task is not None and w.task.done()]
        if self._loop._ready or any(w.asked and w.task is None for w in self.workers):  # type: ignore[attr-defined]
            actions.append(self._coordinator_works)
        actions += [
            lambda place=place: self._store_works(place)  # type: ignore[misc]
            for place in range(len(self._io.jobs))
        ]
        if (
            self.lost
            or (self._poll is not None and self._poll.done())
            or (self._poll is None and self._news)
        ):
            actions.append(self._driver_works)
        actions += [
            lambda one=one: self._machine_comes(one)  # type: ignore[misc]
            for one in self.pending
            if not self.plan.single
        ]
        if self.pending and (not self.plan.single or not actions):
            actions.append(self._time_passes)
        idle = [w for w in self.workers if w.asked is None]
        actions += [lambda worker=worker: self._worker_works(worker) for worker in idle + ready]  # type: ignore[misc]
        return actions

    def _coordinator_works(self) -> None:
        for worker in self.workers:
            if worker.asked is not None and worker.task is None:
                worker.task = self._loop.create_task(self._coordinator.report(worker.asked))
        self._turn()

    def _turn(self) -> None:
        while self._loop._ready:  # type: ignore[attr-defined]
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def _store_works(self, place: int) -> None:
        self._io.perform(place)
        self._news = True

    def _worker_works(self, worker: Worker) -> None:
        worker.step()
        if worker.ended and worker in self.workers:
            if worker.failure is not None:
                raise worker.failure
            self.workers.remove(worker)
            if not worker.cut_off:
                self._tell_lost(worker, *worker.lost)

    def _driver_works(self) -> None:
        while self.lost:
            self._tell_lost(self.lost.pop(), "infrastructure", "the worker process died")
        if self._poll is None:
            self._news = False
            self._poll = self._ask()
            return
        if not self._poll.done():
            return
        instructions, self._poll = self._poll.result(), None
        if instructions.overdue and not self._gave_up:
            self._give_up()
        for lease in instructions.forget:
            self._take_back(*lease)
        for assignment in instructions.submit:
            lease = assignment.trial, assignment.attempt
            if lease in self.submitted:
                continue
            self.world.pass_by(self.process, "attempt handed out", "before", str(lease))
            self.submitted.add(lease)
            if self.on_submit is not None:
                self.on_submit(self, assignment)
            self._place(assignment)
            self.world.pass_by(self.process, "attempt handed out", "after", str(lease))
        if instructions.superseded:
            self._end("superseded")
        elif instructions.finished is not None:
            self._end(instructions.finished)
        elif instructions.submit:
            self._news = True

    def _give_up(self) -> None:
        """See flows/loop.py: what still runs at a limit is killed."""
        self._gave_up, self._news = True, True
        for worker in self.workers:
            worker.process.killed = True
        self.pending.clear()
        self._call(lambda: self._coordinator.abandon("money or time was over"))

    def _place(self, assignment: Assignment) -> None:
        """The cluster runs it, or has it wait for a machine."""
        wide = "resources" in self.plan.spec and assignment.width > self.plan.widths[0]
        asks = wide or assignment.market == "spot"
        self._asked += asks
        if asks and not self.plan.spot[(self._asked - 1) % len(self.plan.spot)]:
            self.pending.append(assignment)
        else:
            self.workers.append(Worker(self, assignment))

    def _machine_comes(self, assignment: Assignment) -> None:
        self.pending.remove(assignment)
        self.workers.append(Worker(self, assignment))

    def _time_passes(self) -> None:
        self.clock, self._news = self.clock + 12.0, True
        CLOCK.pass_by(12.0)

    def _take_back(self, trial: int, attempt: int) -> None:
        """The driver waits for an attempt no longer, wherever it is, and the cluster runs it no
        more.
        """
        for assignment in [
            one for one in self.pending if (one.trial, one.attempt) == (trial, attempt)
        ]:
            self.pending.remove(assignment)
        for worker in [
            w
            for w in self.workers
            if (w.assignment.trial, w.assignment.attempt) == (trial, attempt)
        ]:
            worker.process.killed = True
        self._tell(f"run-{trial}", trial, attempt, "preempted", "it was given up")

    def _ask(self) -> asyncio.Task[Instructions]:
        return self._loop.create_task(
            self._coordinator.instructions(
                0.0,
                self.plan.room(self._messages),
                self.plan.present(self.driver, self._messages),
                self.plan.cost(self._messages),
            )
        )

    def _tell_lost(self, worker: Worker, cause: Cause, message: str) -> None:
        self._tell(
            worker.task_run, worker.assignment.trial, worker.assignment.attempt, cause, message
        )

    def _tell(self, task_run: str, trial: int, attempt: int, cause: Cause, message: str) -> None:
        self._call(lambda: self._coordinator.lost(task_run, trial, attempt, cause, message))

    def _call(self, call: Call) -> None:
        self._calls.append((call, self._loop.create_task(call())))
        self._news = True

    def cut_off(self, worker: Worker) -> None:
        """A partition: the driver takes the worker for lost, while it continues and its messages
        still arrive.
        """
        worker.cut_off = True
        self._tell_lost(worker, "preempted", "the node was lost")

    def _end(self, status: str) -> None:
        """The driver goes; what still runs is told so, and ends by itself."""
        for _ in range(10_000):
            if not self.workers:
                break
            self._turn()
            while self._io.jobs:
                self._io.perform(0)
                self._turn()
            for worker in list(self.workers):
                if worker.asked is not None and worker.task is None:
                    worker.task = self._loop.create_task(self._coordinator.report(worker.asked))
                elif worker.asked is None or (worker.task is not None and worker.task.done()):
                    worker.step()
                    if worker.ended:
                        self.workers.remove(worker)
        assert not self.workers, "a worker does not end after its experiment did"
        self._close()
        if status == "finished" and self.plan.more is not None and not self._continued:
            self._go_on()
            return
        self.status = status

    def _go_on(self) -> None:
        """The limits have ended it: the user comes back with more money and time."""
        self.finish()
        self.driver, self._continued, self._gave_up = f"{self.driver}, with more", True, False
        self.process = Process("driver")
        self._coordinate()

    def _coordinate(self) -> None:
        """Ray (re)starts the coordinator and sends again what was not answered."""
        if hasattr(self, "_loop"):
            self._calls = [(call, task) for call, task in self._calls if not task.done()]
            for worker in self.workers:
                if worker.task is not None and not worker.task.done():
                    worker.task = None
            self._close()
            self.restarts += 1
        more = {"stop": self.plan.more} if self._continued else {}
        spec, room = Spec.parse({**self.plan.spec, **more}), self.plan.room(0)
        opening = opening_of(
            spec,
            id=ID,
            slots=room.slots,
            widest=room.widest,
            trials=self.trials or self.plan.trials,
            retry_failed=self._wishes,
            agent=self.driver if self.plan.agents else "",
        )
        self._loop, self._io = asyncio.new_event_loop(), Deferred()
        self._loop.set_default_executor(self._io)
        self.coordinating = Process(f"coordinator {self.driver}")
        try:
            self._coordinator = Coordinator(
                View(self.world, self.coordinating),
                opening,
                self.driver,
                monotonic=lambda: self.clock,
            )
        except Gone:
            return  # killed again; the next step restarts it
        if self._poll is not None:
            self._poll = self._ask()
        self._calls = [(call, self._loop.create_task(call())) for call, _ in self._calls]
        self._news = True

    def _close(self) -> None:
        if self._loop.is_closed():
            return
        self._io.jobs.clear()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()
