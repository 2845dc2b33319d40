"""From the log to a served model: polls, chooses, restores and offers. It only reads the state."""

from __future__ import annotations

import logging
import math
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from regrow.apps.serving.choosing import CandidateCheckpoint, ModelSource, candidates
from regrow.apps.serving.gate import GateEvaluator
from regrow.apps.serving.messages import Chosen, Refused, Role
from regrow.apps.serving.status import ServingStatus
from regrow.infra.log.follower import Follower, LogGone
from regrow.infra.log.reading import fold
from regrow.infra.log.subscription import available
from regrow.search.errors import SpecError
from regrow.search.events import AnyEvent
from regrow.search.history import History
from regrow.search.rollout import Gate
from regrow.tasks.errors import RegrowError, UserCodeError, UserError
from regrow.tasks.ports.store import Store, Unavailable

_LOG = logging.getLogger("regrow.apps.serving")
LOOK_SECONDS = (1.0, 2.0)
"""Seconds between polls of the log: in a folder, in a bucket."""
TROUBLE_SECONDS = 10.0
"""The same while the log cannot be read, or a checkpoint cannot be restored."""
MOST_TOLD = 5
"""Maximum number of skipped checkpoints that are logged at a time."""
MOST_ALIKE = 4
"""A server that does not follow gives up after the class has refused this many trials' checkpoints
with the same traceback.
"""
PROBLEMS = (RegrowError, SpecError, LookupError, OSError)
"""What a log, a checkpoint or the place for its files may raise."""


class Replicated(Protocol):
    """Receiver of new models. Implemented by `Replicas`."""

    def offer(self, chosen: Chosen) -> Refused | None:
        """See Replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeTarget:
    """What to serve in a role: the best checkpoint of one trial, or of all (`trial` None)."""

    role: Role
    trial: int | None = None


@dataclass(kw_only=True)
class Following:
    """Serves the checkpoints of one experiment."""

    name: str
    store: Store
    source: ModelSource
    replicas: Replicated
    wanted: tuple[ServeTarget, ...]
    scratch: Path
    """Folder for checkpoints' files; removed with the server."""
    gate: Gate | None = None
    """Conditions that a checkpoint must meet at its own step; None: none."""
    status: ServingStatus = field(default_factory=ServingStatus)
    """Receives the status."""
    history: History = field(init=False)
    serving: dict[Role, Chosen] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Manifests that are not tried again."""
    last: Refused | None = None
    """The last refusal, None if the last offer succeeded."""
    _passing: GateEvaluator | None = None
    _turned: set[str] = field(default_factory=set)
    """Manifests whose rejection by the gate was logged."""
    _ranks: dict[Role, float] = field(default_factory=dict)
    _count: int = 0
    _alike: set[int] = field(default_factory=set)
    """Trials whose checkpoints were refused consecutively with the same traceback."""
    _unsettled: bool = True
    """Whether there may be events since the last time that the best checkpoints were served."""

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._follower, self.history = Follower(self.store), History(self.name)
        self._passing = None if self.gate is None else GateEvaluator(gate=self.gate)

    def read(self) -> bool:
        """Read to the log's end; return whether there was news. Raises what the follower does."""

        def apply(event: AnyEvent) -> None:
            self.history.apply(event)
            if self._passing is not None:
                self._passing.apply(event)

        news = False
        for segments in available(self._follower):
            news = True
            fold(self.store, apply, segments)
        return news

    def settle(self, stop: threading.Event, *, most_alike: float = math.inf) -> None:
        """Serve the best checkpoints of the log so far.

        If a checkpoint is refused, the next best is tried, but not after those of `most_alike`
        trials were refused with the same traceback. Raises Unavailable and OSError if a checkpoint
        cannot be restored now.
        """
        for wanted in self.wanted:
            while (
                not stop.is_set()
                and len(self._alike) < most_alike
                and (better := self.better(wanted))
            ):
                self._serve(wanted.role, better, stop)

    def better(self, wanted: ServeTarget) -> list[CandidateCheckpoint]:
        """Return the checkpoints that are better than the served one, best first."""
        rank = self._ranks.get(wanted.role)
        found = [
            one
            for one in self.source.candidates(self.history, wanted.trial)
            if one.manifest not in self.refused and (rank is None or one.rank < rank)
        ]
        if (passing := self._passing) is None:
            return found
        passed = [one for one in found if passing.passes(one.trial, one.step)]
        if found and found[0] not in passed and found[0].manifest not in self._turned:
            self._turned.add(found[0].manifest)  # the rejection of the best one is logged once
            turned = passing.describe(found[0].trial, found[0].step)
            _LOG.info("the gate %s turned away %s", passing.gate.text, turned)
            self.status.refuses(f"{self.name}: {turned} does not meet {passing.gate.text}")
        return passed

    def wrong_gate(self, *, at_once: bool = False) -> str:
        """Return what is wrong with a gate on an unknown metric, else "". It is reported
        immediately if `at_once`, else when a trial is done without the metric.
        """
        passing = self._passing
        return (
            passing.unknown()
            if passing is not None and not self.serving and (at_once or passing.ended)
            else ""
        )

    def _serve(self, role: Role, better: list[CandidateCheckpoint], stop: threading.Event) -> None:
        self._count += 1
        folder = self.scratch / f"{self._count}"
        restored = self.source.fetch(self.history, better, folder)
        for place, (manifest, why) in enumerate(restored.skipped):
            self.refused.add(manifest)
            self.last = Refused(manifest=manifest, why=why)
            if place < MOST_TOLD:
                _LOG.warning("passed over %s: %s", manifest, why)
                self.status.refuses(f"{self.name}: {manifest}: {why}")
        found = next((one for one in better if one.manifest == restored.manifest), None)
        if found is None:
            return
        chosen = found.chosen(self.history, role, str(folder), self.name)
        before_it, self.last = self.last, self.replicas.offer(chosen)
        if self.last is not None:
            self.refused.add(found.manifest)
            shutil.rmtree(folder, ignore_errors=True)
            trace = f"\n{self.last.trace.rstrip()}" if self.last.trace else ""
            same = before_it is not None and (before_it.why, before_it.trace) == (
                self.last.why,
                self.last.trace,
            )
            self._alike = {*(self._alike if same else ()), chosen.trial} if trace else set()
            if trace and same:
                trace = (
                    ", as the one before; the code is read anew when the server is started again"
                )
            if not stop.is_set():
                _LOG.error("refused %s: %s%s", chosen.text, self.last.why, trace)
                self.status.refuses(f"{self.name}: {chosen.text}: {self.last.why}")
            return
        before, self.serving[role], self._ranks[role] = self.serving.get(role), chosen, found.rank
        self.status.serves(role, chosen)
        where = "the canary is " if role == "canary" else "serving "
        _LOG.info(
            "%s%s%s",
            where,
            chosen.text,
            f", in place of {before.text}" if before is not None else "",
        )
        self._tidy()

    def _tidy(self) -> None:
        """Remove all checkpoints' files but the last two: requests may use the previous one."""
        kept = {Path(one.folder).name for one in self.serving.values()} | {str(self._count - 1)}
        for folder in self.scratch.iterdir():
            if folder.name.isdigit() and folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    # ---- while it is served

    def once(self, stop: threading.Event) -> None:
        """Serve what the log has now. Raises UserError and UserCodeError if nothing can be."""
        self.read()
        for wanted in self.wanted:
            if wanted.trial is not None and wanted.trial >= len(self.history.trials):
                option = "--canary" if wanted.role == "canary" else "--trial"
                raise UserError(
                    f"{option}: {self.name!r} has no trial {wanted.trial} (it has"
                    f" {len(self.history.trials)})"
                )
        if wrong := self.wrong_gate(at_once=True):
            raise UserError(wrong)
        try:
            self.settle(stop, most_alike=MOST_ALIKE)
        except OSError as error:
            raise UserError(
                f"{self.scratch} cannot take a checkpoint's files ({error}); TMPDIR names another"
                " place"
            ) from error
        if stop.is_set():
            return
        for wanted in self.wanted:
            if wanted.role in self.serving:
                continue
            whose = f"trial {wanted.trial}" if wanted.trial is not None else "no trial"
            if (
                self.last is None
                and self.gate is not None
                and candidates(self.history, wanted.trial)
            ):
                raise UserError(
                    f"nothing to serve: {whose} of {self.name!r} has a checkpoint that meets"
                    f" {self.gate.text}"
                )
            if self.last is None:
                does = (
                    "has saved no checkpoint that is kept"
                    if wanted.trial is not None
                    else "has saved a checkpoint yet"
                )
                raise UserError(
                    f"nothing to serve: {whose} of {self.name!r} {does}; --follow waits for one"
                )
            why = f"nothing to serve: {self.last.manifest}: {self.last.why}"
            if left := len(self.better(wanted)):
                why += (
                    f"; those of {len(self._alike)} trials were refused in the same way, {left}"
                    " others were not tried"
                )
            raise UserCodeError(why, self.last.trace) if self.last.trace else UserError(why)

    def follow(self, stop: threading.Event, *, metered: bool) -> None:
        """Serve the log's changes until `stop` is set; a problem is logged once and retried.

        Raises UserError for a gate on a metric that the experiment does not have.
        """
        for trouble in polls(self.name, self._poll, lambda: bool(self.serving), stop, metered):
            if wrong := self.wrong_gate():
                raise UserError(wrong)
            self.status.troubled(trouble)

    def _poll(self, stop: threading.Event) -> None:
        unsettled, self._unsettled = self._unsettled, True
        try:
            if self.read() or unsettled:
                self.settle(stop)
            self._unsettled = False
        except (RegrowError, SpecError, LookupError) as error:
            if isinstance(error, LogGone):  # another experiment may appear under this name
                self._ranks.clear()
                self.refused.clear()
            if not isinstance(error, Unavailable):
                self._begin()
            raise


def polls(
    name: str,
    poll: Callable[[threading.Event], None],
    serves: Callable[[], bool],
    stop: threading.Event,
    metered: bool,
) -> Iterator[str]:
    """Call `poll` until `stop` is set; after each call, yield its problem, "" for none. A problem
    is logged once, and whether something is served meanwhile.
    """
    trouble = ""
    while not stop.is_set():
        before, trouble = trouble, ""
        try:
            poll(stop)
        except PROBLEMS as error:
            trouble = str(error)
        if trouble != before:
            warn(name, trouble, serves=serves())
        yield trouble
        stop.wait(TROUBLE_SECONDS if trouble else LOOK_SECONDS[metered])


def warn(name: str, trouble: str, *, serves: bool) -> None:
    """Log a problem, "" for none; `serves`: something is served meanwhile."""
    if trouble:
        _LOG.warning("%s: %s; %s", name, trouble, "what is served stays" if serves else "waiting")
