"""A worker of a session that is cut: real attempts in a thread, which continues only when it is its
turn. No test lives here.

Where a trial has several ranks this is the first of them, with the others beside it (`ranks.py`).
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from regrow.search.events import Cause
from regrow.tasks.attempt import attempt
from regrow.tasks.ports.executor import Finished
from regrow.tasks.ports.messages import Assignment, Progress, Reply, Shared
from regrow.tasks.ports.ranks import GroupBroken
from tests.faults.ranks import Here, Together
from tests.faults.world import Gone, Killed, Process, View

if TYPE_CHECKING:
    from tests.faults.session import Session


class Worker:
    """A worker process: runs one attempt, and others after it if it is told to carry on."""

    def __init__(self, session: Session, assignment: Assignment) -> None:
        name = f"worker {assignment.trial}/{assignment.attempt}"
        self.process = Process(name, yields=not session.plan.single, at_death=self._hang_up)
        self.together: Together | None = None
        """The other ranks of its trial, while there are any."""
        self.lost: tuple[Cause, str] = "infrastructure", "its task run ended without telling how"
        """What the driver makes of its end, if nobody else has told how it ended."""
        self.assignment, self.task_run = assignment, f"run-{assignment.trial}"
        self._session = session
        self.asked: Progress | None = None
        self.task: asyncio.Task[Reply] | None = None
        self.cut_off = False
        """Nobody counts on it any more, but it continues."""
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self.process.name, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether nothing of it is left."""
        return not self._thread.is_alive()

    @property
    def processes(self) -> list[Process]:
        """Those of all its ranks."""
        return [
            self.process,
            *(rank.process for rank in (self.together.ranks if self.together is not None else ())),
        ]

    def step(self) -> None:
        """Lets it continue to its next transition."""
        self.process.run()
        if self._done:
            self._thread.join()

    def kill(self) -> None:
        """SIGKILL: none of its effects or messages from here on."""
        self.process.killed = True
        while not self.ended:
            self.step()

    _done = False

    def _run(self) -> None:
        self.process.await_turn()
        try:
            self._carry()
        except (Killed, Gone) as error:
            if not self.process.killed:
                self.failure = error
        except BaseException as error:  # noqa: BLE001 - told by the scheduler
            self.failure = error
        finally:
            self._done = True
            self.process.end()

    def _carry(self) -> None:
        session, assignment = self._session, self.assignment
        carry_on = session.plan.carry_on
        while True:
            try:
                done = self._attempt(assignment, carry_on=carry_on)
            except GroupBroken as broken:
                assert self.together is not None
                self.lost = self.together.lost(broken)
                return
            if done.reply.reason == "fenced" or done.reply.next is None:
                return
            assignment = done.reply.next

    def _attempt(self, assignment: Assignment, *, carry_on: bool) -> Finished:
        session = self._session
        store, group = View(session.world, self.process, late=session.plan.late), None
        shared = Shared(
            job=session.job, coordinator=self, store=store, host=Here(price=session.plan.price)
        )
        if session.job.spec.resources.ranked:
            self.together = Together(shared, assignment, session.world, self.process)
        try:
            group = self.together.form() if self.together is not None else None
            return attempt.run_attempt(
                shared,
                assignment,
                task_run=self.task_run,
                carry_on=lambda: carry_on,
                group=group,
            )
        finally:
            if self.together is not None:
                self.together.end()

    def _hang_up(self) -> None:
        if self.together is not None:
            self.together.abandon()

    def report(self, progress: Progress) -> Reply:
        """See CoordinatorClient."""
        world, what = self._session.world, f"message {progress.trial}/{progress.attempt}"
        try:
            world.pass_by(self.process, "message", "before", what)
            self.asked = progress
            self.process.wait()
            assert self.task is not None
            reply = self.task.result()
            self.asked = self.task = None
            self._session.answered(progress, reply)
            world.pass_by(self.process, "message", "after", what)
        except Gone:
            raise Killed from None
        return reply
