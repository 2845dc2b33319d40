"""A worker process of a session that is cut: real attempts in a thread, which goes on only when it is its turn. No test lives here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from regrow.search.events import Place
from regrow.tasks import attempt
from regrow.tasks.messages import Assignment, Progress, Reply
from tests.faults.world import Gone, Killed, Process, View

if TYPE_CHECKING:
    from tests.faults.session import Session


class Here:
    """A machine that never goes away by itself."""

    def place(self) -> Place:
        """See Host."""
        return Place("node")

    def end_children(self) -> None:
        """See Host: it starts none."""

    def listen(self, tell: Callable[[str, bool], None]) -> AbstractContextManager[object]:
        """See Host."""
        return nullcontext()


class Worker:
    """A worker process: runs one attempt, and others after it if it is told to carry on."""

    def __init__(self, session: Session, assignment: Assignment) -> None:
        self.process = Process(f"worker {assignment.trial}/{assignment.attempt}", yields=session.plan.slots > 1)
        self.assignment, self.task_run = assignment, f"run-{assignment.trial}"
        self._session = session
        self.asked: Progress | None = None
        self.task: asyncio.Task[Reply] | None = None
        self.cut_off = False
        """Nobody counts on it any more, but it goes on."""
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=self.process.name, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether nothing of it is left."""
        return not self._thread.is_alive()

    def step(self) -> None:
        """Lets it go on to its next transition."""
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
            done = attempt.run_attempt(
                session.job, assignment, self, View(session.world, self.process, late=session.plan.late),
                host=Here(), task_run=self.task_run, carry_on=lambda: carry_on,
            )
            if done.reply.reason == "fenced" or done.reply.next is None:
                return
            assignment = done.reply.next

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
