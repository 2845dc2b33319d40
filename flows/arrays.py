"""Experiments on Slurm: what `regrow run --on` and `regrow cluster submit` do here.

A job array of agents is submitted; they run the experiment, whatever happens here. This machine
only looks at the queue and at the log.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regrow.flows.remote import RunRequest, joining
from regrow.infra.clusters import slurm
from regrow.infra.clusters.description import Slurm
from regrow.infra.clusters.folder import Folder, variables
from regrow.infra.clusters.slurm import Array, Element, Queue
from regrow.infra.log.reading import survey
from regrow.infra.state.experiments import prepare
from regrow.search.events import Closed
from regrow.search.history import History
from regrow.tasks.errors import RegrowError, UserError

LOOK_SECONDS = 10.0
"""Seconds between two questions to Slurm, whose controller serves all users."""
END_SECONDS = 180.0
"""Seconds that cancelled elements may take to end: their trials save."""
_SHOWN = 12
"""Lines of an agent's output that are shown if the agents end before the experiment."""


class Gone(UserError):
    """No element of the array is in the queue any more, and the experiment has not ended."""


@dataclass(slots=True, kw_only=True)
class ArrayRun:
    """Runs experiments on Slurm. `say` gets lines for people, `file` is the cluster file."""

    cluster: Slurm
    file: Path
    say: Callable[[str], None]
    queue: Queue = field(init=False)

    def __post_init__(self) -> None:
        self.queue = Queue(self.cluster)

    def check(self) -> None:
        """Check for mistakes without Slurm. Raises SpecError."""
        variables(self.cluster, os.environ)

    @property
    def output(self) -> Path:
        """Folder of the agents' output."""
        return Path(self.cluster.output or Path.cwd() / "slurm")

    def script(self, order: RunRequest, *, comment: str | None = None) -> str:
        """Return the file for sbatch. Raises UserError and SpecError."""
        self.check()
        words = joining(order, str(order.file.resolve()))
        words += ["--resume"] * (_ended(order) == "stopped")
        return slurm.script(
            self.cluster,
            words,
            name=order.spec.name,
            comment=comment,
            output=self.output,
            folder=Path.cwd(),
        )

    def over(self, order: RunRequest) -> bool:
        """Return whether the experiment has ended, and nothing more is asked for."""
        if _ended(order) is None:
            return False
        found = prepare(order.places, order.spec.name, order.spec, trials=order.trials, code=None)
        return found.nothing_left

    def submit(self, order: RunRequest) -> Array:
        """Submit an array of agents, unless one of the experiment is in the queue; return it."""
        with Folder(self.cluster.name).alone(self.say):
            if (there := self.array(order)) is not None:
                self.say(
                    f"{order.spec.name} has agents in the queue already: job array {there.job}"
                )
                return there
            comment = f"regrow:{self.cluster.name}:{secrets.token_hex(6)}"
            made = self.queue.submit(
                self.script(order, comment=comment),
                experiment=order.spec.name,
                state=order.places.root,
                comment=comment,
                output=self.output,
            )
        self.say(
            f"{order.spec.name}: submitted job array {made.job} of {self.cluster.agents} agents;"
            f" their output is in {made.output}"
        )
        return made

    def array(self, order: RunRequest) -> Array | None:
        """Return the array of an experiment that is in the queue; None if there is none."""
        name, state = order.spec.name, order.places.root
        ours = [one for one in self.queue.known() if (one.experiment, one.state) == (name, state)]
        there = {element.name.partition("_")[0] for element in self.queue.elements(*ours)}
        return next((one for one in reversed(ours) if one.job in there), None)

    def elements(self) -> list[Element]:
        """Return what this cluster file has in the queue."""
        return self.queue.elements(*self.queue.known())

    def down(self) -> int:
        """Cancel all elements that this cluster file has in the queue, and wait for their end.
        Returns how many there were. Raises RegrowError, naming them, if some are left.
        """
        with Folder(self.cluster.name).alone(self.say):
            there = self.elements()
            jobs = {one.name.partition("_")[0] for one in there}
            self.queue.cancel(*(one for one in self.queue.known() if one.job in jobs))
            deadline = time.monotonic() + END_SECONDS
            while left := self.elements():
                if time.monotonic() > deadline:
                    names = ", ".join(f"{one.name} ({one.state})" for one in left)
                    raise RegrowError(f"still in the queue: {names}; squeue shows them")
                time.sleep(1.0)
            return len(there)


def _ended(order: RunRequest) -> str | None:
    """Return how the experiment has ended; None for one that has not, or that is not there."""
    last = survey(order.places.store(order.spec.name)).last
    return last.status if isinstance(last, Closed) else None


def in_words(elements: Sequence[Element]) -> str:
    """Return the states of elements: 3 running, 5 pending (Resources)."""
    running = Counter(one.state for one in elements if one.node)
    waiting = Counter((one.state, one.reason) for one in elements if not one.node)
    told = [f"{count} {state.lower()}" for state, count in running.items()]
    for (state, reason), count in waiting.items():
        told.append(f"{count} {state.lower()}" + (f" ({reason})" if reason else ""))
    return ", ".join(told)


class Agents:
    """Who runs an experiment on Slurm, for its live view: the elements of its array. None: nobody,
    as it is over.
    """

    def __init__(self, run: ArrayRun, array: Array | None) -> None:
        self._run, self._array = run, array
        self._asked: float | None = None
        self._missing = False
        self._told = ""

    def heard(self) -> None:
        """Take note that the log has grown."""
        self._missing = False

    def banner(self, history: History | None = None) -> str:
        """Return a message while no agent runs, "" if one does. Raises Gone."""
        now = time.monotonic()
        if self._array is None:
            return ""
        if self._asked is not None and now - self._asked < LOOK_SECONDS:
            return self._told
        self._asked = now
        try:
            elements = self._run.queue.elements(self._array)
        except RegrowError as error:
            self._told = f"Slurm does not answer: {error}"
            return self._told
        if not elements:
            # The log may tell the end a moment later than the queue.
            if self._missing:
                raise Gone(_last_words(self._array))
            self._missing = True
        waits = not any(one.node for one in elements)
        self._told = f"waiting for Slurm: {in_words(elements)}" if elements and waits else ""
        return self._told


def _last_words(array: Array) -> str:
    """Return what is known of agents that have ended."""
    said = max(slurm.outputs(array), key=lambda file: file.stat().st_mtime, default=None)
    told = f"the agents of job array {array.job} ended before {array.experiment}"
    if said is None:
        return (
            f"{told}, without output in {array.output}: that folder, and the one of the experiment,"
            " have to be on a file system that the nodes share; name another one at `output` in the"
            " cluster file"
        )
    lines = said.read_text(errors="replace").strip().splitlines()[-_SHOWN:]
    return "\n".join([f"{told}; {said} ends with:", *lines])
