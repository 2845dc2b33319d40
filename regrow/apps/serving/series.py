"""Serves a schedule's experiments by the schedule's name: the newest eligible one replaces the
previous one.

With a gate, an experiment is eligible as soon as one of its checkpoints passes; without one, once
it has ended with a checkpoint. From then on only its checkpoints count, better ones within it,
whatever value the previous experiment had reached: it was trained on other data.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from regrow.apps.serving.choosing import Checkpoints, ModelSource
from regrow.apps.serving.following import PROBLEMS, Following, Replicated, ServeTarget, polls, warn
from regrow.apps.serving.status import ServingStatus
from regrow.infra.state.places import Places
from regrow.search.history import History
from regrow.search.recurrence import experiments_of
from regrow.search.rollout import Gate
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Store

_LOG = logging.getLogger("regrow.apps.serving")


@dataclass(kw_only=True)
class ExperimentSeries:
    """The experiments of the schedule `name`; one at a time is served."""

    name: str
    places: Places
    replicas: Replicated
    scratch: Path
    """Folder for checkpoints' files; removed with the server."""
    gate: Gate | None = None
    status: ServingStatus = field(default_factory=ServingStatus)
    """Receives the status."""
    source: Callable[[Store], ModelSource] = Checkpoints
    """Makes the source of an experiment's checkpoints from its store."""
    current: Following | None = None
    """The served experiment; None before the first eligible one."""
    _readers: dict[str, Following] = field(default_factory=dict)
    _problems: dict[str, str] = field(default_factory=dict)
    """By experiment: the problem that was logged last."""

    def poll(self, stop: threading.Event) -> None:
        """Serve the current state. Raises UserError, and Unavailable for the state root."""
        members = experiments_of(self.name, self.places.experiments(self._readers))
        served = self.current.name if self.current is not None else ""
        for gone in self._problems.keys() - {*members, served, ""}:
            del self._problems[gone]
        newer = [name for name in members if not served or self._after(name, served)]
        for name in (*reversed(newer), *([served] if served else [])):
            if stop.is_set() or self._serves(name, stop):
                return

    def _after(self, name: str, served: str) -> bool:
        return experiments_of(self.name, {name, served})[-1] == name != served

    def _serves(self, name: str, stop: threading.Event) -> bool:
        """Read an experiment further; return whether it is served now. A problem with it is logged
        once and does not affect what is served.
        """
        reader = self._reader(name)
        try:
            reader.read()
            if reader is self.current or self.gate is not None or _ended(reader.history):
                reader.settle(stop)
            trouble = reader.wrong_gate() if reader is not self.current else ""
        except PROBLEMS as error:
            trouble = str(error)
            if not reader.serving:
                del self._readers[name]  # read it from the beginning next time
        if self._problems.get(name) != trouble:
            warn(name, trouble, serves=self.current is not None)
        self._publish(name, trouble)
        if not reader.serving:
            return False
        if reader is not self.current:
            self._take_over(reader)
        return True

    def _reader(self, name: str) -> Following:
        if name not in self._readers:
            scratch = self.scratch / name
            scratch.mkdir(exist_ok=True)
            store = self.places.store(name)
            self._readers[name] = Following(
                name=name,
                store=store,
                source=self.source(store),
                replicas=self.replicas,
                wanted=(ServeTarget(role="main"),),
                scratch=scratch,
                gate=self.gate,
                status=self.status,
            )
        return self._readers[name]

    def _take_over(self, reader: Following) -> None:
        """Make it the served experiment. The files of the previous one stay, as its requests may be
        pending; older ones are removed.
        """
        before, self.current = self.current, reader
        _LOG.info(
            "%s is served%s",
            reader.name,
            f", in place of {before.name}" if before is not None else "",
        )
        kept = {reader.name} | ({before.name} if before is not None else set())
        for name in [
            name
            for name in self._readers
            if name != reader.name and not self._after(name, reader.name)
        ]:
            del self._readers[name]
            self._problems.pop(name, None)
        for name in experiments_of(self.name, [folder.name for folder in self.scratch.iterdir()]):
            if name not in kept and name not in self._readers:
                shutil.rmtree(self.scratch / name, ignore_errors=True)

    # ---- while it is served

    def once(self, stop: threading.Event) -> None:
        """Serve the current state. Raises UserError if nothing can be served."""
        self.poll(stop)
        if self.current is None and not stop.is_set():
            fit = (
                f"a checkpoint that meets {self.gate.text}"
                if self.gate is not None
                else "ended with a checkpoint"
            )
            raise UserError(
                f"nothing to serve: no experiment of {self.name!r} has {fit}; --follow waits"
                " for one"
            )

    def follow(self, stop: threading.Event, *, metered: bool) -> None:
        """Serve the state's changes until `stop` is set; a problem is logged once and retried."""
        for trouble in polls(self.name, self.poll, lambda: self.current is not None, stop, metered):
            self._publish("", trouble)

    def _publish(self, name: str, trouble: str) -> None:
        """Publish the problems; `name`: the experiment that this one concerns, "" for all."""
        self._problems[name] = trouble
        self.status.troubled(
            "; ".join(
                f"{name or self.name}: {trouble}"
                for name, trouble in self._problems.items()
                if trouble
            )
        )


def _ended(history: History) -> bool:
    """Return whether the experiment is over; a failed or interrupted one may be resumed."""
    return history.closed is not None and history.closed.status in ("finished", "stopped")
