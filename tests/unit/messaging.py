"""Any messages that workers may send, in any order, to a real coordinator over a store in memory.
No test lives here.

What is drawn are small plans, so that hypothesis can shrink them: numbers that pick among what
there is by then.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from regrow.flows.coordinator.coordinator import Coordinator
from regrow.infra.log.log import Log
from regrow.infra.log.reading import read_events, replay
from regrow.search.bounds import MOST
from regrow.search.events import Ended, Place, Row, Saved
from regrow.search.history import History
from regrow.search.lifecycle import TrialState
from regrow.search.needs import ClusterCapacity
from regrow.search.planning.verify import verify
from regrow.search.spec import Spec
from regrow.tasks.ports.messages import Progress, Question
from tests.memory_store import MemoryStore
from tests.unit import showing
from tests.unit.office import began_at, opening_of
from tests.unit.simulated import SPEC

SPECS: dict[str, dict[str, Any]] = {
    "asha": {"step_metric": {"name": "epoch", "first": 0}},
    "fifo": {
        "schedule": "fifo",
        "retries": {"error": 1, "infrastructure": 2},
        "step_metric": "epoch",
        "max_steps": None,
    },
    "median": {
        "schedule": {"median": {"min_samples_required": 1}},
        "step_metric": "epoch",
        "score": "last",
    },
    "hyperband": {"schedule": "hyperband", "score": "final"},
    "pbt": {"schedule": {"pbt": {"perturbation_interval": 2}}, "checkpoint": {"keep_last": 1}},
    "limits": {"schedule": "fifo", "constraints": ["loss <= 2"], "stop": {"target": 1e300}},
    "several": {
        "schedule": "fifo",
        "metric": [{"name": "score", "mode": "max"}, {"name": "loss", "mode": "min"}],
        "mode": None,
    },
    "asked": {
        "search": {"define_by_run": {"sampler": "TPESampler"}},
        "schedule": "fifo",
        "space": {},
    },
    "groups": {"schedule": "fifo", "resources": {"workers": 2}, "lease": 5},
}
WHOLE = st.integers(-3, 12) | st.sampled_from(
    [2**31, MOST, MOST + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**70, -(2**63), -(2**70)]
)
REAL = st.floats() | st.sampled_from(
    [0.0, 1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 4e9, 1e12]
)
NUMBER = WHOLE | REAL
TEXT = st.text(max_size=6) | st.sampled_from(
    ["score", "epoch", "loss", "", "\udc80", "\x00", "\n", "\x1b[2J", "x" * 2_000, "trial", "../.."]
)
PLAIN = st.none() | st.booleans() | NUMBER | TEXT
METRICS = st.fixed_dictionaries(
    {"score": NUMBER}, optional={"epoch": NUMBER | st.none(), "loss": st.none() | NUMBER}
) | st.dictionaries(TEXT, PLAIN, max_size=4)
FEW = st.integers(0, 3)
OUTCOMES = ["done", "paused", "stopped", "failed", "lost", "preempted"]
CAUSES = ["", "preempted", "infrastructure", "error", "stalled"]
DISTRIBUTIONS: list[dict[str, Any]] = [
    {
        "name": "FloatDistribution",
        "attributes": {"low": 0.0, "high": 1.0, "log": False, "step": None},
    },
    {
        "name": "FloatDistribution",
        "attributes": {"low": 0.0, "high": math.inf, "log": False, "step": None},
    },
    {
        "name": "FloatDistribution",
        "attributes": {"low": -1e308, "high": 1e308, "log": False, "step": None},
    },
    {"name": "IntDistribution", "attributes": {"low": 0, "high": 2**70, "log": False, "step": 1}},
    {"name": "IntDistribution", "attributes": {"low": 1, "high": MOST, "log": True, "step": 1}},
    {"name": "IntDistribution", "attributes": {"low": 3, "high": 3, "log": False, "step": 1}},
    {"name": "CategoricalDistribution", "attributes": {"choices": ["a", None, 1]}},
    {"name": "CategoricalDistribution", "attributes": {"choices": ["\udc80", math.nan]}},
    {"name": "CategoricalDistribution", "attributes": {"choices": []}},
    {"name": "Nothing"},
    {},
]


@dataclass(frozen=True, kw_only=True)
class Say:
    """A message: of which attempt (a place among those there are, -1 a made-up one), and what it
    says.

    `begins`: the step that it claims to have restored, None where it does not begin; `rows`: what
    follows the trial's last step, from `skip` steps further on. `again`: also once more, at the
    end.
    """

    whose: int
    begins: int | None = None
    task_run: int = 0
    skip: int = 0
    rows: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    saved: list[tuple[int, int, str]] = field(default_factory=list)
    ended: tuple[str, str, int, str, str] | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)
    noted: dict[str, Any] = field(default_factory=dict)
    place: tuple[str, float, float] = ("node", 1.0, 1.0)
    ago: float = 0.0
    draining: str = ""
    carry_on: bool = False
    again: bool = False
    old: bool = False
    """Sent to the coordinator before this one, which does not know that there is another."""
    together: bool = False
    """As a relay sends it."""


@dataclass(frozen=True, kw_only=True)
class Do:
    """What else happens: see `Stage.do`."""

    what: str
    number: int = 0


SAYS = st.builds(
    Say,
    whose=st.integers(-1, 6),
    begins=st.none() | st.just(0) | WHOLE,
    task_run=st.sampled_from([0, 0, 0, 1]),
    skip=st.sampled_from([0, 0, 0, 0, -1, 1, 5]),
    rows=st.lists(st.tuples(st.just(1.0) | REAL, METRICS), max_size=3),
    saved=st.lists(
        st.tuples(FEW | WHOLE, st.just(1) | WHOLE, st.sampled_from(["m1", "m2"]) | TEXT), max_size=2
    ),
    ended=st.none()
    | st.none()
    | st.tuples(st.sampled_from(OUTCOMES), st.sampled_from(CAUSES), FEW | WHOLE, TEXT, TEXT),
    asked=st.lists(st.tuples(TEXT, st.integers(0, len(DISTRIBUTIONS) - 1)), max_size=2),
    noted=st.just({})
    | st.dictionaries(
        TEXT | st.just("optuna:constraints"),
        PLAIN | st.dictionaries(TEXT, PLAIN, max_size=2),
        max_size=2,
    ),
    place=st.just(("node", 1.0, 1.0)) | st.tuples(TEXT, REAL, REAL),
    ago=st.just(0.0) | REAL,
    draining=st.just("") | TEXT,
    carry_on=st.booleans(),
    again=st.booleans(),
    old=st.sampled_from([False, False, False, True]),
    together=st.booleans(),
)
GOOD = st.builds(
    Say,
    whose=st.integers(0, 3),
    begins=st.just(0),
    rows=st.lists(
        st.tuples(
            st.just(1.0),
            st.builds(
                lambda s, e: {"score": s, "epoch": e, "loss": 1.0},
                st.floats(-5, 5),
                st.integers(0, 40),
            ),
        ),
        max_size=4,
    ),
    ended=st.sampled_from(
        [
            None,
            None,
            None,
            ("done", "", 1, "", ""),
            ("failed", "error", 1, "wrong", ""),
            ("preempted", "preempted", 1, "", ""),
        ]
    ),
    saved=st.lists(st.tuples(FEW, st.just(1), st.text("abc", max_size=3)), max_size=1),
)
DOES = st.builds(
    Do,
    number=st.integers(0, 6),
    what=st.sampled_from(
        [
            "instruct",
            "instruct",
            "instruct",
            "lose",
            "node",
            "drain",
            "restart",
            "driver",
            "close",
            "wait",
            "abandon",
            "room",
        ]
    ),
)
PLANS = st.tuples(
    st.sampled_from(sorted(SPECS)), st.lists(GOOD | GOOD | SAYS | DOES, min_size=6, max_size=40)
)


class Stage:
    """A coordinator, those before it, and who talks to them."""

    def __init__(self, spec: str) -> None:
        self.store = MemoryStore()
        self.spec = Spec.parse(
            {
                key: value
                for key, value in {**SPEC, "trials": 4, **SPECS[spec]}.items()
                if value is not None
            }
        )
        self.messages = self.refused = 0
        self._sent: list[Progress] = []
        self._now = 0.0
        self._drivers = 0
        self._loop = asyncio.new_event_loop()
        self._all: list[Coordinator] = []
        self._open(new=True)

    @property
    def history(self) -> History:
        """What the coordinator knows."""
        return self._all[-1]._ledger.history

    def play(self, steps: list[Say | Do]) -> None:
        """Has it all happen; then what came of it is looked at."""
        try:
            for step in steps:
                if isinstance(step, Say):
                    self.say(step)
                else:
                    self.do(step.what, step.number)
            for progress in self._sent:
                self._report(self._all[-1], progress, together=False)
            self._readable(show=len(steps) % 4 == 0)
            self._end()
            self._readable(show=True)
            assert self.history.closed is not None
            assert Log.proven(self.store)
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    def say(self, one: Say) -> None:
        """A message arrives."""
        leases = [
            (trial.number, attempt.number)
            for trial in self.history.trials
            for attempt in trial.attempts
        ]
        trial, attempt = (
            leases[one.whose % len(leases)] if one.whose >= 0 and leases else (one.whose, 1)
        )
        last = self.history.trials[trial].step if 0 <= trial < len(self.history.trials) else 0
        lease: dict[str, Any] = {"trial": trial, "attempt": attempt}
        node, price, share = one.place
        came = None
        if one.begins is not None:
            where = Place(node=node, node_id=node, price=price, share=share)
            came = began_at(
                where,
                task_run=f"run-{trial}-{one.task_run}",
                restored=one.begins,
                ago=one.ago,
                skipped=[node],
            )
        progress = Progress(
            **lease,
            began=came,
            carry_on=one.carry_on,
            draining=one.draining,
            noted=one.noted,
            urgent=True,
            rows=tuple(
                Row(last + 1 + one.skip + place, t, metrics)
                for place, (t, metrics) in enumerate(one.rows)
            ),
            saved=tuple(
                Saved(t=1.0, **lease, step=step, manifest=name, size=size)
                for step, size, name in one.saved
            ),
            asked=tuple(
                Question(name=name, distribution=DISTRIBUTIONS[place]) for name, place in one.asked
            ),
            ended=None
            if one.ended is None
            else Ended(
                t=1.0,
                **lease,
                outcome=one.ended[0],  # type: ignore[arg-type]  # drawn from the texts that there are
                cause=one.ended[1],  # type: ignore[arg-type]  # drawn from the texts that there are
                step=one.ended[2],
                message=one.ended[3],
                trace=one.ended[4],
            ),
        )
        if one.again:
            self._sent.append(progress)
        self._report(
            self._all[-2 if one.old and len(self._all) > 1 else -1], progress, together=one.together
        )

    def do(self, what: str, number: int) -> None:
        """Something else happens than a message."""
        coordinator, history = self._all[-1], self.history
        trial = history.trials[number % len(history.trials)] if history.trials else None
        match what:
            case "instruct":
                self._wait(coordinator.instructions(0.0))
            case "room":
                self._wait(
                    coordinator.instructions(
                        0.0, ClusterCapacity(slots=number % 4, widest=max(1, number % 4))
                    )
                )
            case "lose" if trial is not None:
                self._wait(
                    coordinator.lost(
                        f"run-{trial.number}-0",
                        trial.number,
                        len(trial.attempts),
                        "infrastructure",
                        "\udc80 gone",
                    )
                )
            case "node":
                self._wait(coordinator.node_lost("node"))
            case "drain":
                self._wait(coordinator.mark_draining("node", "it goes away"))
            case "restart" | "driver":
                self._open(new=what == "driver")
            case "close" if number == 0:
                self._wait(coordinator.close("stopped", "\udc80" if number % 2 else "by the user"))
            case "wait":
                self._now += 10.0 ** (number - 1)
                self._wait(coordinator.instructions(0.0))
            case "abandon":
                self._wait(coordinator.abandon("it was given up"))
            case _:
                pass

    def _report(self, coordinator: Coordinator, progress: Progress, *, together: bool) -> None:
        self.messages += 1
        held = coordinator._ledger.history.lease(progress.trial, progress.attempt)
        if together:
            (reply,) = self._wait(coordinator.report_all([progress], "relay"))
        else:
            reply = self._wait(coordinator.report(progress))
        if reply.why.startswith("what it reported cannot be recorded"):
            self.refused += 1
            assert held is not None
            assert (held.outcome, held.cause) == ("failed", "error"), (
                "it is its trial's own error, and nobody else's"
            )

    def _end(self) -> None:
        """The experiment is closed, by another driver."""
        self._open(new=True)
        coordinator = self._all[-1]
        self._wait(coordinator.close("stopped", "by the user"))
        self._wait(coordinator.abandon("it is over"))
        for _ in range(10):
            if self._wait(coordinator.instructions(0.0)).finished is not None:
                return
        raise AssertionError("it does not close")

    def _readable(self, *, show: bool) -> None:
        """Readers make of the log what the coordinator has, every decision follows, and everything
        shows it.
        """
        self._wait(self._all[-1]._ledger.committed())
        events = read_events(self.store)
        checked = verify(events)
        assert checked.difference is None, checked.difference
        there, here = replay(self.store), self.history
        for read, known in zip(there.trials, here.trials, strict=True):
            assert (read.state, list(read.values), read.config) == (
                known.state,
                list(known.values),
                known.config,
            )
            assert list(read.checkpoints) == list(known.checkpoints)
        assert (there.best, there.running) == (here.best, here.by_state[TrialState.RUNNING])
        if show:
            showing.lines(self.store)

    def _open(self, *, new: bool) -> None:
        self._drivers += new
        opening = opening_of(self.spec, slots=4)

        async def make() -> Coordinator:
            return Coordinator(
                self.store, opening, f"driver-{self._drivers}", monotonic=lambda: self._now
            )

        self._all.append(self._wait(make()))

    def _wait(self, what: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(what, 30))
