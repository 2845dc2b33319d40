"""What can be read of an experiment's history. Nothing in here changes anything: that is done by the fold, in `fold.py`."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from regrow.search.constraints import Constraint
from regrow.search.curve import Scale
from regrow.search.events import Closed, Closing, Created, Opened
from regrow.search.history.clock import Clock
from regrow.search.history.clones import Clones
from regrow.search.history.plateau import Plateau
from regrow.search.history.records import Attempt, TrialRecord, specification
from regrow.search.lifecycle import TrialState
from regrow.search.spec import Spec
from regrow.search.spec.auto import Choice
from regrow.search.spec.parts import Metric


class View:
    """All that is known of an experiment."""

    def __init__(self, called: str | None = None) -> None:
        self.called = called
        """The experiment's name, if it has another one than its log says: somebody renamed its folder."""
        self.id = ""
        self.trials: list[TrialRecord] = []
        self.by_state: dict[TrialState, set[int]] = {state: set() for state in TrialState}
        self.total = 0
        self.slots = 0
        self.widest = 0
        """Slots that one attempt may have at most."""
        self.created: Created | None = None
        self.opened: Opened | None = None
        self.openings: list[Opened] = []
        """Those of drivers: one a session."""
        self.environment: dict[str, Any] = {}
        """What the driver of the last session found of its code and its machine; empty where none looked."""
        self.closing: Closing | None = None
        self.closed: Closed | None = None
        self.held: set[int] = set()
        """Numbers of the trials that are held (see `TrialRecord.held`), also of those whose attempt has not ended yet."""
        self.occupied = 0
        """Slots that running attempts have, by their widths."""
        self.revivable: dict[int, None] = {}
        """Failed trials that the user wants to be tried again, by number; those first whose attempt is still open."""
        self.waiting: dict[int, float] = {}
        """Trials whose attempt was seen to wait for a machine and has not begun, and for how many seconds."""
        self.found: dict[str, float] = {}
        """When an attempt last began on a machine of each kind."""
        self.orphans: list[tuple[int, int]] = []
        """(trial, attempt) left open by a driver that is gone."""
        self.best: int | None = None
        """Number of the trial with the best value of the objective at a step that meets all constraints."""
        self.asked: dict[tuple[int, str], dict[str, Any]] = {}
        """Distributions by trial and parameter, of which a value is asked for and not suggested yet."""
        self.asked_first: dict[str, dict[str, Any]] = {}
        """The distribution of each parameter that define-by-run trials have asked for, as the first one did."""
        self.sessions = 0
        self.lost_steps = 0
        self.slot_seconds: defaultdict[float | None, float] = defaultdict(float)
        """Of the attempts that have ended, by the price of a slot and hour when each began; None: there was none."""
        self._clock = Clock()
        self._clones = Clones(self.trials)
        self._plateau = Plateau()
        self._spec: Spec | None = None
        self._objective: Metric | None = None
        self.limits: tuple[Constraint, ...] = ()
        """The specification's constraints, read once."""
        self._scale = Scale(objective="", most=False)

    @property
    def spec(self) -> Spec:
        """The specification, as the last session has it. Raises LookupError before the log's first event."""
        if self._spec is None:
            raise LookupError("the log is empty: the experiment was never created")
        return self._spec

    @property
    def name_in_log(self) -> str:
        """The experiment's name as its log has it."""
        return specification(self.created, self.opened).name if self.created is not None else ""

    @property
    def objective(self) -> Metric:
        """The specification's objective; kept here because the specification makes it anew each time (0.3 of a fold's time)."""
        if self._objective is None:
            raise LookupError("the log is empty: the experiment was never created")
        return self._objective

    @property
    def choice(self) -> Choice:
        """Its search and its schedule, and why, where its specification left these to regrow."""
        why = {} if self.created is None else self.created.auto
        return Choice(search=self.spec.search, schedule=self.spec.schedule, why=why)

    @property
    def leader(self) -> TrialRecord | None:
        """The trial with the best value of the objective; None where no step meets all constraints."""
        return None if self.best is None else self.trials[self.best]

    def elapsed(self, now: float | None = None) -> float:
        """Seconds that the experiment ran, over all its sessions; `now` (seconds since the epoch) while one is under way."""
        return self._clock.elapsed(None if self.closed else now)

    @property
    def cut(self) -> float:
        """When the session before this one was last heard of, seconds since the epoch."""
        return self._clock.cut

    @property
    def t_created(self) -> float:
        """When it was created, seconds since the epoch."""
        return self._clock.created

    @property
    def t_last(self) -> float:
        """When it was last heard of, seconds since the epoch; 0 for an empty log."""
        return self._clock.last

    @property
    def borrowed(self) -> dict[str, int]:
        """Manifest of each kept clone, and the trial whose attempts wrote its files."""
        return self._clones.borrowed

    @property
    def pinned(self) -> set[str]:
        """Checkpoints from which another trial is about to go on."""
        return self._clones.pinned

    @property
    def front(self) -> list[int]:
        """The Pareto front: trials that no other one is better than in one metric and as good in all, by number.

        Compared by the metrics of their last steps, where these meet all constraints.
        """
        metrics = self.spec.metrics
        found: list[tuple[int, list[float]]] = []
        for trial in self.trials:
            row = trial.curve.metrics(trial.step)
            values = [m.sign * v for m in metrics if (v := row.get(m.name)) is not None]
            if len(values) == len(metrics) and all(c.violation(row) <= 0 for c in self.limits):
                found.append((trial.number, values))
        return [
            number for number, ours in found
            if not any(theirs != ours and all(a <= b for a, b in zip(theirs, ours, strict=True)) for _, theirs in found)
        ]

    def path(self, number: int, until: int) -> list[dict[str, Any]]:
        """With which configuration each of the steps was done that led to a trial's weights at step `until`, in order.

        Through clones it leads into other trials, so there may be more or fewer of them than `until`.
        """
        return self._clones.path(number, until)

    @property
    def counts(self) -> dict[TrialState, int]:
        """Number of trials in each state."""
        return {state: len(numbers) for state, numbers in self.by_state.items()}

    @property
    def since_best(self) -> int:
        """Trials that ended since the best value last improved, as `stop: {plateau: ...}` counts it."""
        return self._plateau.trials

    @property
    def ended(self) -> int:
        """Number of the trials that ended for good."""
        return sum(len(self.by_state[state]) for state in TrialState if state.final)

    @property
    def running(self) -> set[int]:
        """Numbers of the trials whose attempt holds a lease."""
        return self.by_state[TrialState.RUNNING]

    def lease(self, trial: int, attempt: int) -> Attempt | None:
        """The attempt, if it holds its trial's lease."""
        if not 0 <= trial < len(self.trials):
            return None
        current = self.trials[trial].attempt
        return current if current is not None and current.number == attempt else None
