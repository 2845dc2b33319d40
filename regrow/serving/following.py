"""From the log to a served model: reads on, chooses, restores, offers. It only reads the state."""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from regrow.infra.log.follower import Follower, Vanished
from regrow.search.errors import SpecError
from regrow.search.events import decode
from regrow.search.history import History
from regrow.search.lifecycle import IllegalMove
from regrow.search.rollout import Gate
from regrow.serving.choosing import Candidate, candidates, config_of
from regrow.serving.gate import Passing
from regrow.serving.messages import Chosen, Refused, Role
from regrow.serving.standing import Standing
from regrow.tasks.checkpoints import Restored, restore
from regrow.tasks.errors import RegrowError, UserCodeError, UserError
from regrow.tasks.ports import Store, Unavailable

_LOG = logging.getLogger("regrow.serving")
LOOK_SECONDS = (1.0, 2.0)
"""Between looks at the log: in a folder, in a bucket."""
MOST_TOLD = 5
"""Of what is passed over at a time."""
MOST_ALIKE = 4
"""Trials whose checkpoints a class refuses with the same traceback before a server that does not follow gives up."""
TROUBLE_SECONDS = 10.0
"""The same while it cannot be read, or a checkpoint cannot be restored."""


class Source(Protocol):
    """Where models come from."""

    def candidates(self, history: History, trial: int | None) -> list[Candidate]:
        """What could be served, best first; `trial`: of that one alone, None of all."""
        ...

    def fetch(self, history: History, wanted: Sequence[Candidate], folder: Path) -> Restored:
        """The first of them that is there and sound, as `folder`. Raises Unavailable and OSError: for now none can be had."""
        ...


class Checkpoints:
    """Those in the experiment's store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def candidates(self, history: History, trial: int | None) -> list[Candidate]:
        """See Source."""
        return candidates(history, trial)

    def fetch(self, history: History, wanted: Sequence[Candidate], folder: Path) -> Restored:
        """See Source. The experiment may drop one while it is fetched: then the next best is."""
        return restore(self._store, [one.manifest for one in wanted], folder)


class Replicated(Protocol):
    """Who is offered models; `Replicas` is it."""

    def offer(self, chosen: Chosen) -> Refused | None:
        """See Replicas."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be served: the best checkpoint of all trials, or of the trial `trial`."""

    role: Role
    trial: int | None = None


@dataclass(kw_only=True)
class Following:
    """One experiment whose checkpoints are served."""

    name: str
    store: Store
    source: Source
    replicas: Replicated
    wanted: tuple[Wanted, ...]
    scratch: Path
    """A folder for checkpoints' files; it goes away with the server."""
    gate: Gate | None = None
    """What a checkpoint has to meet at its own step; None: nothing."""
    standing: Standing = field(default_factory=Standing)
    """Who is told what becomes of it."""
    history: History = field(init=False)
    serving: dict[Role, Chosen] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Manifests that are not tried again."""
    last: Refused | None = None
    """What was refused last, and why."""
    _passing: Passing | None = None
    _turned: set[str] = field(default_factory=set)
    """Manifests of which it was said that the gate turned them away."""
    _ranks: dict[Role, float] = field(default_factory=dict)
    _count: int = 0
    _alike: set[int] = field(default_factory=set)
    """Trials whose checkpoints were refused with the same traceback, one after the other."""

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._follower, self.history = Follower(self.store), History(self.name)
        self._passing = None if self.gate is None else Passing(gate=self.gate)

    def read(self) -> bool:
        """Reads on to the log's end; whether something came. Raises what the follower does, and IllegalMove."""
        news = False
        while segments := self._follower.read():
            news = True
            for _, lines in segments:
                for line in lines:
                    self.history.apply(event := decode(line))
                    if self._passing is not None:
                        self._passing.apply(event)
        return news

    def settle(self, stop: threading.Event, *, most_alike: float = math.inf) -> None:
        """Has the best be served that can be, as the log stands now; a checkpoint that cannot gives way to the next best, but not
        after those of `most_alike` trials with the same traceback.

        Raises Unavailable and OSError where a checkpoint cannot be restored for now.
        """
        for wanted in self.wanted:
            while not stop.is_set() and len(self._alike) < most_alike and (better := self.better(wanted)):
                self._serve(wanted.role, better, stop)

    def better(self, wanted: Wanted) -> list[Candidate]:
        """The checkpoints that are better than what is served, best first."""
        rank = self._ranks.get(wanted.role)
        found = [
            one for one in self.source.candidates(self.history, wanted.trial)
            if one.manifest not in self.refused and (rank is None or one.rank < rank)
        ]
        return found if self._passing is None else self._passed(found, self._passing)

    def _passed(self, found: list[Candidate], passing: Passing) -> list[Candidate]:
        """Those that the gate lets through. Of those that it does not, the best is told of, once: it would be served."""
        passed = [one for one in found if passing.passes(one.trial, one.step)]
        if found and found[0] not in passed and found[0].manifest not in self._turned:
            self._turned.add(found[0].manifest)
            turned = passing.told(found[0].trial, found[0].step)
            _LOG.info("the gate %s turned away %s", passing.gate.text, turned)
            self.standing.refuses(f"{self.name}: {turned} does not meet {passing.gate.text}")
        return passed

    def wrong_gate(self, *, at_once: bool = False) -> str:
        """What is wrong with a gate on a metric that is none: `at_once`, else when a trial is done without it; else empty."""
        passing = self._passing
        return passing.unknown() if passing is not None and not self.serving and (at_once or passing.ended) else ""

    def _serve(self, role: Role, better: list[Candidate], stop: threading.Event) -> None:
        self._count += 1
        folder = self.scratch / f"{self._count}"
        restored = self.source.fetch(self.history, better, folder)
        for place, (manifest, why) in enumerate(restored.skipped):
            self.refused.add(manifest)
            self.last = Refused(manifest=manifest, why=why)
            if place < MOST_TOLD:
                _LOG.warning("passed over %s: %s", manifest, why)
                self.standing.refuses(f"{self.name}: {manifest}: {why}")
        found = next((one for one in better if one.manifest == restored.manifest), None)
        if found is None:
            return
        objective = self.history.objective
        chosen = Chosen(
            role=role, trial=found.trial, step=found.step, metric=objective.name, mode=objective.mode, value=found.value,
            manifest=found.manifest, folder=str(folder), config=config_of(self.history, found), since=time.time(),
            experiment=self.name,
        )
        before_it, self.last = self.last, self.replicas.offer(chosen)
        if self.last is not None:
            self.refused.add(found.manifest)
            shutil.rmtree(folder, ignore_errors=True)
            trace = f"\n{self.last.trace.rstrip()}" if self.last.trace else ""
            same = before_it is not None and (before_it.why, before_it.trace) == (self.last.why, self.last.trace)
            self._alike = {*(self._alike if same else ()), chosen.trial} if trace else set()
            if trace and same:
                trace = ", as the one before; the code is read anew when the server is started again"
            if not stop.is_set():
                _LOG.error("refused %s: %s%s", told(chosen), self.last.why, trace)
                self.standing.refuses(f"{self.name}: {told(chosen)}: {self.last.why}")
            return
        before, self.serving[role], self._ranks[role] = self.serving.get(role), chosen, found.rank
        self.standing.serves(role, chosen)
        where = "the canary is " if role == "canary" else "serving "
        _LOG.info("%s%s%s", where, told(chosen), f", in place of {told(before)}" if before is not None else "")
        self._tidy()

    def _tidy(self) -> None:
        """Removes the files of checkpoints before the last two: requests of the one before may be under way."""
        kept = {Path(one.folder).name for one in self.serving.values()} | {str(self._count - 1)}
        for folder in self.scratch.iterdir():
            if folder.name.isdigit() and folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    # ---- for as long as it is served -----------------------------------------------------------------------------------

    def once(self, stop: threading.Event) -> None:
        """Serves what the log says now. Raises UserError and UserCodeError where nothing can be."""
        self.read()
        for wanted in self.wanted:
            if wanted.trial is not None and wanted.trial >= len(self.history.trials):
                option = "--canary" if wanted.role == "canary" else "--trial"
                raise UserError(f"{option}: {self.name!r} has no trial {wanted.trial} (it has {len(self.history.trials)})")
        if wrong := self.wrong_gate(at_once=True):
            raise UserError(wrong)
        try:
            self.settle(stop, most_alike=MOST_ALIKE)
        except OSError as error:
            raise UserError(f"{self.scratch} cannot take a checkpoint's files ({error}); TMPDIR names another place") from error
        if stop.is_set():
            return
        for wanted in self.wanted:
            if wanted.role in self.serving:
                continue
            whose = f"trial {wanted.trial}" if wanted.trial is not None else "no trial"
            if self.last is None and self.gate is not None and candidates(self.history, wanted.trial):
                raise UserError(f"nothing to serve: {whose} of {self.name!r} has a checkpoint that meets {self.gate.text}")
            if self.last is None:
                does = "has saved no checkpoint that is kept" if wanted.trial is not None else "has saved a checkpoint yet"
                raise UserError(f"nothing to serve: {whose} of {self.name!r} {does}; --follow waits for one")
            why = f"nothing to serve: {self.last.manifest}: {self.last.why}"
            if left := len(self.better(wanted)):
                why += f"; those of {len(self._alike)} trials were refused in the same way, {left} others were not tried"
            raise UserCodeError(why, self.last.trace) if self.last.trace else UserError(why)

    def follow(self, stop: threading.Event, *, remote: bool) -> None:
        """Serves what the log says, until `stop` is set; what is in the way of that is logged, once, and tried again.

        Raises UserError for a gate on what is no metric of the experiment.
        """
        trouble = ""
        fresh = True
        while not stop.is_set():
            pause, before = LOOK_SECONDS[remote], trouble
            try:
                if self.read() or fresh or before:
                    self.settle(stop)
                trouble, fresh = "", False
            except Vanished as gone:
                trouble, pause = str(gone), TROUBLE_SECONDS
                self._begin()
                self._ranks.clear()  # what comes by that name is another experiment
                self.refused.clear()
            except (Unavailable, OSError) as error:
                trouble, pause = str(error), TROUBLE_SECONDS
            except (RegrowError, IllegalMove, SpecError, LookupError, msgspec.MsgspecError) as error:
                trouble, pause = str(error), TROUBLE_SECONDS
                self._begin()
            if wrong := self.wrong_gate():
                raise UserError(wrong)
            self.standing.troubled(trouble)
            if trouble and trouble != before:
                _LOG.warning("%s: %s; %s", self.name, trouble, "what is served stays" if self.serving else "waiting")
            stop.wait(pause)


def told(chosen: Chosen) -> str:
    """A checkpoint for people."""
    return f"trial {chosen.trial}, step {chosen.step}, {chosen.metric} {chosen.value:.6g}"
