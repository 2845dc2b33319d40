"""The state of a history, and what can be read from it; only `fold.py` changes it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Literal

from regrow.search.constraints import Constraint
from regrow.search.curve import Scale
from regrow.search.events import Answered, Closed, Closing, Created, Milestone, Opened, Queued
from regrow.search.history.agents import AgentRecords
from regrow.search.history.clones import Clones
from regrow.search.history.pace import Pace, PlateauCounter, Spending, Work
from regrow.search.history.records import Attempt, TrialRecord, specification
from regrow.search.lifecycle import TrialState
from regrow.search.space.setting import Setting
from regrow.search.spec import Spec
from regrow.search.spec.auto import SearchChoice
from regrow.search.spec.keys import UNLIMITED
from regrow.search.spec.parts import Metric


class NotCreated(LookupError):
    """The log is empty: it does not even say which experiment it belongs to."""

    def __str__(self) -> str:
        return "the log is empty: the experiment was never created"


class View:
    """The state of an experiment."""

    def __init__(self, called: str | None = None) -> None:
        self.called = called
        """The experiment's name now if its folder was renamed since its log began; else None."""
        self.id = ""
        self.trials: list[TrialRecord] = []
        self.by_state: dict[TrialState, set[int]] = {state: set() for state in TrialState}
        self.total = 0
        self.slots = 0
        self.spot_slots = 0
        """How many of `slots` are on spot machines, as far as known."""
        self.widest = 0
        """Most slots that one attempt may have."""
        self.created: Created | None = None
        self.opened: Opened | None = None
        self.openings: list[Opened] = []
        """The events of drivers only: one for each session."""
        self.agents = AgentRecords()
        """The agents that took part; empty for a driver without agents."""
        self.environment: dict[str, Any] = {}
        """What the last session's driver recorded of its code and machine; may be empty."""
        self.closing: Closing | None = None
        self.closed: Closed | None = None
        self.held: set[int] = set()
        """Numbers of the held trials, including those whose attempt has not ended yet."""
        self.occupied = 0
        """Slots of running attempts, counted by their widths."""
        self.revivable: dict[int, None] = {}
        """Failed trials to retry at the user's request, those with an open attempt first."""
        self.waiting: dict[int, float] = {}
        """Trials whose attempt waits for a machine and has not begun, and for how many seconds."""
        self.found: dict[str, float] = {}
        """By kind of machine, when an attempt last began on one (seconds since the epoch)."""
        self.orphans: list[tuple[int, int]] = []
        """(trial, attempt) of attempts left open by a driver that is gone."""
        self.best: int | None = None
        """Number of the trial with the best objective among feasible steps, None for none."""
        self.queue: list[Queued] = []
        """Values that the user wants tried, beside those of the specification's `enqueue`."""
        self.asked: dict[tuple[int, str], dict[str, Any]] = {}
        """By trial and parameter, the distributions that wait for a suggestion."""
        self.answered: Answered | None = None
        """What an external sampler answered for the next trial; None for nothing yet."""
        self.answers: dict[tuple[int, str], Any] = {}
        """By trial and parameter, what it answered to those in `asked`."""
        self.over: Literal["", "finished", "stopped"] = ""
        """How the session ends once what was proposed has ended; empty: open. See Answered."""
        self.asked_first: dict[str, dict[str, Any]] = {}
        """By parameter, the distribution with which a define-by-run trial first asked for it."""
        self.judged_from: int | None = None
        """The first step at which trials are stopped at present; None without a guard."""
        self.first_decided = 0
        """The first step with a decision so far, 0 before one."""
        self.sessions = 0
        self.lost_steps = 0
        self.slot_seconds: defaultdict[float | None, float] = defaultdict(float)
        """Slot-seconds of ended attempts, by the price of a slot and hour (None: no price)."""
        self.milestones: list[Milestone] = []
        """How much of the limits of money and time was used when, and what was expected then."""
        self.spending = Spending()
        self.pace = Pace()
        self.work: Work | None = None
        """The steps that a budget counts; None without a budget of steps."""
        self.t_created = 0.0
        """When the experiment was created; here and below in seconds since the epoch."""
        self.t_last = 0.0
        """Time of the last event, 0 for an empty log."""
        self.cut = 0.0
        """Time of the last event of the previous session."""
        self._t_opened = self._t_closed = 0.0
        self._before = 0.0
        """Seconds of all previous sessions."""
        self._clones = Clones(self.trials)
        self._plateau = PlateauCounter()
        self._spec: Spec | None = None
        self._setting: Setting | None = None
        self._objective: Metric | None = None
        self.limits: tuple[Constraint, ...] = ()
        """The parsed constraints of the specification."""
        self._scale = Scale(objective="", most=False)

    @property
    def spec(self) -> Spec:
        """The specification with the last session's settings. Raises NotCreated."""
        if self._spec is None:
            raise NotCreated
        return self._spec

    @property
    def setting(self) -> Setting:
        """The input from which the sampler and the scheduler are made: that of the experiment as it
        was created, whatever a later session changes. Raises NotCreated.
        """
        if self._setting is None:
            raise NotCreated
        return self._setting

    @property
    def name_in_log(self) -> str:
        """The experiment's name in its log, empty before the first event."""
        return specification(self.created, self.opened).name if self.created is not None else ""

    @property
    def objective(self) -> Metric:
        """The specification's objective. Cached, as it is made anew at each access."""
        if self._objective is None:
            raise NotCreated
        return self._objective

    @property
    def choice(self) -> SearchChoice:
        """The search and the schedule, with reasons where the specification left them open."""
        why = {} if self.created is None else self.created.auto
        return SearchChoice(search=self.spec.search, schedule=self.spec.schedule, why=why)

    @property
    def leader(self) -> TrialRecord | None:
        """The trial with the best value of the objective, None if no step meets all constraints."""
        return None if self.best is None else self.trials[self.best]

    def elapsed(self, now: float | None = None) -> float:
        """Return the seconds that the experiment ran, over all its sessions, without the time
        between them. `now` (seconds since the epoch) counts if a session is running.
        """
        until = self.t_last if now is None else max(now, self.t_last)
        # a trial can be dropped from a closed log, days later
        return self._before + ((self._t_closed if self.closed else until) - self._t_opened)

    @property
    def borrowed(self) -> dict[str, int]:
        """By manifest of each kept clone, the trial whose attempts wrote its files."""
        return self._clones.borrowed

    @property
    def pinned(self) -> set[str]:
        """Checkpoints from which another trial is about to continue."""
        return self._clones.pinned

    @property
    def front(self) -> list[int]:
        """Numbers of the trials on the Pareto front: no other trial is at least as good in all
        metrics and better in one.

        Compared are the metrics of the trials' last steps, if these meet all constraints.
        """
        metrics = self.spec.metrics
        found: list[tuple[int, list[float]]] = []
        for trial in self.trials:
            if trial.excluded:
                continue
            row = trial.curve.metrics(trial.step)
            values = [m.sign * v for m in metrics if (v := row.get(m.name)) is not None]
            if len(values) == len(metrics) and all(c.violation(row) <= 0 for c in self.limits):
                found.append((trial.number, values))

        def dominated(ours: list[float]) -> bool:
            others = (theirs for _, theirs in found if theirs != ours)
            return any(all(a <= b for a, b in zip(one, ours, strict=True)) for one in others)

        return [number for number, ours in found if not dominated(ours)]

    def path(self, number: int, until: int) -> list[dict[str, Any]]:
        """Return each step's configuration on the way to a trial's weights; see `Clones.path`."""
        return self._clones.path(number, until)

    @property
    def counts(self) -> dict[TrialState, int]:
        """Number of trials in each state."""
        return {state: len(numbers) for state, numbers in self.by_state.items()}

    @property
    def since_best(self) -> int:
        """Trials that ended since the best value last improved, as `stop.plateau` counts."""
        return self._plateau.trials

    @property
    def unlimited(self) -> bool:
        """Whether there are as many trials as a budget, money and time allow."""
        return self.total >= UNLIMITED

    def of_total(self, count: int, sign: str = " of ") -> str:
        """Return a count of trials for people: "5 of 40", or "5" if the total is not limited."""
        return str(count) if self.unlimited else f"{count}{sign}{self.total}"

    @property
    def ended(self) -> int:
        """Number of trials in a final state."""
        return sum(len(self.by_state[state]) for state in TrialState if state.final)

    @property
    def running(self) -> set[int]:
        """Numbers of the trials whose attempt holds a lease."""
        return self.by_state[TrialState.RUNNING]

    def lease(self, trial: int, attempt: int) -> Attempt | None:
        """Return the attempt if it holds its trial's lease, else None."""
        if not 0 <= trial < len(self.trials):
            return None
        current = self.trials[trial].attempt
        return current if current is not None and current.number == attempt else None
