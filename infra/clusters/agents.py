"""The port for engines of agents, which start `regrow join` on machines or by a queue. Nothing has
to be brought up before, and nothing has to stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from regrow.infra.clusters.folder import Folder
from regrow.infra.machine import private_files


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWork:
    """An experiment that agents are started for.

    Attributes:
        experiment: its name.
        state: the root of its state.
        project: folder of its code and specification.
        words: arguments of `regrow` with which an agent joins it. The specification's path is
            absolute, or relative to the project where that is sent.
        ended: when the experiment ended before, seconds since the epoch; None: it has not, or a
            leader left it to the next one. Agents that were started before that leave.

    """

    experiment: str
    state: str
    project: Path
    words: tuple[str, ...]
    ended: float | None = None


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """Agents of one experiment that were started from here.

    Attributes:
        experiment: the experiment's name.
        state: the root of its state.
        t: when, seconds since the epoch.

    """

    experiment: str
    state: str
    t: float


S = TypeVar("S", bound=Submission)


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """One agent, or a place for one.

    Attributes:
        name: as the engine names it: 12_3, 10.0.0.11.
        experiment: the experiment's name; empty: of none, or unknown.
        state: in the engine's words: RUNNING, PENDING, cannot be reached.
        node: where it runs; empty if it does not.
        ran: since when it runs: 1:02:03; empty: unknown.
        reason: why it is in that state; empty: nothing to say.
        there: whether it runs, waits to run, or may do so.
        failed: whether it could not take part, for `reason`.

    """

    name: str
    experiment: str
    state: str
    node: str = ""
    ran: str = ""
    reason: str = ""
    there: bool = True
    failed: bool = False


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The last lines of an agent's output.

    Attributes:
        title: where it is.
        lines: the last lines.
        t: when the last one was written, seconds since the epoch.

    """

    title: str
    lines: list[str]
    t: float


class AgentEngine(Protocol[S]):
    """The agents of one cluster file. Methods that ask others raise RegrowError, with their words,
    for what could not be done; those that take work raise SpecError and UserError for mistakes.
    """

    place: str
    """Where agents are, for people: Slurm."""
    sends: bool
    """Whether the project is sent there."""
    reads: bool
    """Whether a machine that submits needs to read the state. Otherwise only one that follows."""
    no_output: str
    """Why agents may have ended without output, and what to do, for people."""

    def check(self) -> None:
        """Check for mistakes without asking others. Raises SpecError."""

    def offer(self, work: AgentWork) -> list[str]:
        """Describe what `submit` starts and what it costs at most, for people to confirm; empty if
        it starts nothing, or asks for no money of its own.
        """

    def files(self, work: AgentWork, say: Callable[[str], None]) -> dict[str, bytes]:
        """Return what agents are started by, without secrets, for use without regrow."""

    def submit(self, work: AgentWork, say: Callable[[str], None]) -> S:
        """Start the agents that are missing. `say` gets lines for people."""

    def submissions(self) -> list[S]:
        """Return what was submitted, as far as it is known here, the newest last."""

    def agents(self, *of: S) -> list[Agent]:
        """Return the agents of these submissions; without any: all of the cluster file."""

    def outputs(self, of: S) -> list[Output]:
        """Return the last lines of its agents' outputs."""

    def done(self, of: S, say: Callable[[str], None]) -> None:
        """Delete what would cost something after the experiment's end."""

    def end(self, say: Callable[[str], None]) -> None:
        """Tell all agents to leave, and check that nothing is left. Raises RegrowError if there is,
        or may be.
        """


class Submissions(Generic[S]):
    """The record of submissions from this machine by one cluster file."""

    def __init__(self, folder: Folder, kind: type[S]) -> None:
        self._folder, self._kind = folder, kind
        self._file = folder.path / "submissions"

    def all(self) -> list[S]:
        """Return them, the newest last."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[self._kind])  # type: ignore[name-defined]
        except (OSError, msgspec.MsgspecError):
            return []

    def add(self, one: S) -> None:
        """Remember one more."""
        self.keep([*self.all(), one])

    def keep(self, these: Sequence[S]) -> None:
        """Remember these alone."""
        self._folder.make()
        # the newest ones
        private_files.replace(self._file, msgspec.json.encode(list(these)[-100:]))
