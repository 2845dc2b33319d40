"""One session of an experiment: who asked for it, what was asked for, and what was found.

It travels by reference through the process that drives the experiment. Imports nothing of Prefect,
which loads while Ray starts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import UUID

from regrow.infra.machine.caller_context import CallerContext
from regrow.infra.state.agents import of_this_driver
from regrow.infra.state.experiments import Prepared, prepare
from regrow.infra.state.places import Places
from regrow.search.events import Hold
from regrow.search.history import History
from regrow.search.spec import Spec


def _nothing(_: Any) -> None:
    """Do nothing with a line, or after a session."""


@dataclass(kw_only=True)
class Session:
    """A session, from the request to its end.

    Attributes:
        name: name of the experiment.
        places: locations of state and services.
        spec: its specification; None to resume.
        trials: total number of trials; None for the specification's.
        code: SHA-256 of a pickled trainable; None for none.
        given: the trainable, if it is an object rather than a name.
        retry_failed: whether failed trials are tried again.
        announce: called with lines for the user before and during the run.
        warn: called with lines about records that are lost or cannot be written; None for
            `announce`.
        watch: called with the coordinator's handle; returns a context that surrounds the
            experiment. None for none.
        typed: directory and environment of the calling shell if a station's process runs this,
            which was started with regrow's Prefect settings and whose pages are known; None for
            this process.
        prefect_port: port of the Prefect server; None for the last one used, or any free one.
        flow_run: ID of the flow run if Prefect has it already; None for the experiment's own.
        running: ID of the flow run that runs it; None before.
        after: called with `say` after the session, unless it is to be resumed.
        hold: see Opened; the caller calls the coordinator's `proceed`.
        agent: ID of the agent that runs this driver; empty: no agent does.
        history: the log, read when it was closed; None before, and if another process closes it.
            Once the session has ended, the experiment may be removed or continued by others.

    """

    name: str
    places: Places
    spec: Spec | None = None
    trials: int | None = None
    code: str | None = None
    given: Any = None
    retry_failed: bool = False
    announce: Callable[[str], None] = _nothing
    warn: Callable[[str], None] | None = None
    watch: Callable[[Any], AbstractContextManager[object]] | None = None
    typed: CallerContext | None = None
    prefect_port: int | None = None
    flow_run: str | None = None
    running: UUID | None = None
    after: Callable[[Callable[[str], None]], object] = _nothing
    hold: Hold = ""
    agent: str = field(default_factory=of_this_driver)
    history: History | None = None

    @cached_property
    def prepared(self) -> Prepared:
        """The experiment as found, once. Raises UserError or SpecError if it cannot be run."""
        return self._prepare(self.spec)

    def begin(self, flow_run: UUID) -> None:
        """Enter a flow run, or enter it again on another cluster. Prepares again if the log has
        grown since: it then has this session's request to retry failed trials, or another process
        has run the experiment.
        """
        again, self.running = self.running == flow_run, flow_run
        if self.prepared.outdated:
            self.retry_failed = self.retry_failed and not again
            self.prepared = self._prepare(None if self.spec is None else self.prepared.asked)

    def _prepare(self, spec: Spec | None) -> Prepared:
        return prepare(
            self.places,
            self.name,
            spec,
            trials=self.trials,
            code=self.code,
            retry_failed=self.retry_failed,
            by_agent=bool(self.agent),
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of the flow `run` that make an equal session in another process."""
        return {
            "name": self.name,
            "spec": None if self.spec is None else self.prepared.asked.to_json(),
            "state": self.places.root,
            "trials": self.trials,
            "code": self.code,
            "retry_failed": self.retry_failed,
        }

    def alert(self, line: str) -> None:
        """Announce a line about records that are lost or cannot be written."""
        (self.warn or self.announce)(line)

    def say(self, line: str) -> None:
        """Announce a line within the flow: in Prefect's log of the flow run, too."""
        from prefect import get_run_logger

        get_run_logger().warning(line)
        self.announce(line)


SESSION: ContextVar[Session | None] = ContextVar("SESSION", default=None)
"""The session whose flow run this process begins, or runs; None if Prefect started the flow run."""


def current_session(flow_run: UUID) -> Session | None:
    """Return the session of the flow run, if this process has it already: `launch` began it, or its
    last cluster was lost. None if Prefect started the flow run.
    """
    session = SESSION.get()
    if session is None or session.running not in (None, flow_run):
        return None
    session.begin(flow_run)
    return session
