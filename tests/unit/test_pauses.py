"""Trials that pause, are promoted, given up, restarted and cloned: for the planner, and with real attempts and checkpoints."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from regrow.infra.stores.local import LocalStore
from regrow.infra.stores.memory import MemoryStore
from regrow.search.events import (
    AnyEvent,
    Began,
    Closed,
    Closing,
    Created,
    Decided,
    Dropped,
    Ended,
    Opened,
    Reported,
    Retired,
    Row,
    Saved,
    Started,
)
from regrow.search.history import History
from regrow.search.lifecycle import IllegalMove, TrialState
from regrow.search.planner import Planner
from regrow.search.schedulers import Candidate, Scheduler, Verdict
from regrow.search.setting import Setting
from regrow.search.simulator import FunctionObjective, availability
from regrow.search.simulator import Simulation as Simulated
from regrow.search.spec import Spec
from regrow.search.verify import verify
from regrow.tasks import reporter as reporting
from regrow.tasks.attempt import Finished, run_attempt
from regrow.tasks.checkpoints import restore
from regrow.tasks.messages import Assignment
from regrow.tasks.ports import Store
from regrow.tasks.trial import Trial
from tests.unit.office import Bench, Office
from tests.unit.simulated import SPEC, score
from tests.unit.told import kept


class Scripted(Scheduler):
    """Does what the specification says: `script` has a verdict by "trial:step". Paused trials go on lowest first.

    `last`: only once no new trial comes. `widths`: by trial.
    """

    needs_max_steps = False

    def __init__(
        self, setting: Setting, *, script: dict[str, Any] | None = None, last: bool = False, widths: dict[str, int] | None = None
    ) -> None:
        super().__init__(setting)
        self.script = {tuple(map(int, key.split(":"))): verdict for key, verdict in (script or {}).items()}
        self.last, self.widths = last, widths or {}
        self.paused: set[int] = set()
        self.told: list[tuple[object, ...]] = []

    def first(self, trial: int, after: int) -> int | None:
        return min((step for number, step in self.script if number == trial and step > after), default=None)

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        verdict: Mapping[str, Any] = self.script[trial, len(values)]
        return Verdict(**{"until": self.first(trial, len(values)), **verdict})

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        self.told.append((verdict.action, trial, len(values), verdict.source))
        if verdict.action == "pause":
            self.paused.add(trial)

    def started(self, trial: int) -> None:
        self.told.append(("started", trial))
        self.paused.discard(trial)

    def dropped(self, trial: int) -> None:
        self.told.append(("dropped", trial))
        self.paused.discard(trial)

    def ended(self, trial: int, how: Any) -> None:
        self.told.append(("ended", trial, how))
        self.paused.discard(trial)

    def promote(self, *, complete: bool) -> int | None:
        return min(self.paused, default=None) if complete or not self.last else None

    def width(self, trial: int) -> int:
        return self.widths.get(str(trial), 1)


PAUSE = {"action": "pause", "why": "its turn is over"}
RESTART = {"action": "restart", "why": "more resources"}


def clone(source: int, x: float | None = None, action: str = "restart") -> dict[str, Any]:
    return {"action": action, "why": "exploits", "source": source} | ({} if x is None else {"config": {"x": x}})


def scripted(script: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {f"{__name__}:Scripted": {"script": script, **options}}


# For the planner


class Desk:
    """A planner with its log; every decision is checked by folding the log anew."""

    def __init__(self, script: dict[str, Any], *, slots: int = 1, trials: int = 3, options: Any = None, **changes: Any) -> None:
        self.events: list[AnyEvent] = []
        self.planner = Planner()
        self.t = 0.0
        spec = {**SPEC, "schedule": scripted(script, **(options or {})), "trials": trials, **changes}
        self.tell(Created(t=0.0, id="i", spec=spec))
        self.open(slots=slots, trials=trials)

    def tell(self, *events: AnyEvent) -> list[AnyEvent]:
        """Observations; the decisions after the last one."""
        decided: list[AnyEvent] = []
        for event in events:
            self.planner.apply(event)
            self.events.append(event)
            decided = []
            while (decision := self.planner.next(event.t)) is not None:
                self.planner.apply(decision)
                self.events.append(decision)
                decided.append(decision)
        found = verify(self.events)
        assert found.difference is None, found.difference
        return decided

    def cut(self, count: int) -> None:
        """The last `count` events never reached the log: a new planner over the others."""
        self.events = self.events[:-count]
        self.planner = Planner()
        for event in self.events:
            self.planner.apply(event)

    def open(self, *, slots: int = 1, trials: int = 3) -> list[AnyEvent]:
        self.t += 1
        return self.tell(Opened(t=self.t, by="driver", driver=f"d{self.t}", slots=slots, trials=trials))

    def begin(self, trial: int, restored: int = 0) -> list[AnyEvent]:
        return self.tell(Began(t=self.t, trial=trial, attempt=self.attempt(trial), node="n", restored=restored))

    def report(self, trial: int, *steps: int, value: float = 1.0) -> list[AnyEvent]:
        rows = [Row(step, self.t, {"score": value}) for step in steps]
        return self.tell(Reported(t=self.t, trial=trial, attempt=self.attempt(trial), rows=rows))

    def save(self, trial: int, step: int, source: str | None = None) -> list[AnyEvent]:
        number = self.attempt(trial)
        return self.tell(
            Saved(t=self.t, trial=trial, attempt=number, step=step, manifest=f"m{trial}.{number}.{step}", size=1, source=source)
        )

    def end(self, trial: int, outcome: Any = "paused", cause: Any = "", step: int = 0) -> list[AnyEvent]:
        return self.tell(Ended(t=self.t, trial=trial, attempt=self.attempt(trial), outcome=outcome, cause=cause, step=step))

    def attempt(self, trial: int) -> int:
        return len(self.planner.history.trials[trial].attempts)

    def of(self, trial: int) -> Any:
        return self.planner.history.trials[trial]

    @property
    def scheduler(self) -> Any:
        return self.planner._scheduler


def started(events: Sequence[AnyEvent]) -> list[tuple[int, int]]:
    return [(event.trial, event.attempt) for event in events if isinstance(event, Started)]


def test_a_paused_trial_has_its_slot_until_it_left_and_then_another_gets_it() -> None:
    desk = Desk({"0:2": PAUSE}, options={"last": True})
    desk.begin(0)
    desk.report(0, 1)
    (decided,) = desk.report(0, 2)
    assert isinstance(decided, Decided)
    assert (decided.verdict, decided.step) == ("pause", 2)
    assert desk.save(0, 2) == []
    assert started(desk.end(0)) == [(1, 1)]
    assert desk.of(0).state is TrialState.PAUSED
    assert desk.planner.history.held == {0}


def test_a_promoted_trial_goes_on_from_its_newest_checkpoint_until_its_next_decision() -> None:
    desk = Desk({"0:2": PAUSE, "0:5": PAUSE}, trials=1)
    desk.begin(0)
    desk.report(0, 1)
    desk.save(0, 1)
    desk.report(0, 2)
    desk.save(0, 2)
    (event,) = desk.end(0)
    assert isinstance(event, Started)
    assert (event.until, event.checkpoints, event.clones) == (5, ["m0.1.2", "m0.1.1"], 0)
    assert ("started", 0) in desk.scheduler.told[-1:]


def test_the_slot_of_the_trial_that_is_to_go_on_next_is_kept_for_it_while_it_leaves() -> None:
    """Two slots: trial 0 is about to leave and is the next to be promoted; the free slot is not given to a new trial."""
    desk = Desk({"0:2": PAUSE}, slots=2, trials=3)
    desk.begin(0)
    desk.begin(1)
    desk.report(0, 1, 2)
    assert started(desk.end(1, "done")) == []
    assert started(desk.end(0)) == [(0, 2), (2, 1)]


@pytest.mark.parametrize("step", [0, 1])
def test_killed_between_the_decision_and_its_checkpoint_the_pause_stands_and_is_not_decided_again(step: int) -> None:
    desk = Desk({"0:2": PAUSE, "0:4": PAUSE}, options={"last": True}, trials=2)
    desk.begin(0)
    desk.report(0, 1)
    if step:
        desk.save(0, 1)
    desk.report(0, 2)
    ended, other = desk.open(trials=2)[0], desk.events[-1]
    assert isinstance(ended, Ended)
    assert (ended.by, desk.of(0).state, desk.planner.history.held) == ("planner", TrialState.PAUSED, {0})
    assert isinstance(other, Started), "a new trial has the slot"
    assert other.trial == 1
    desk.begin(1)
    (again,) = desk.end(1, "failed", "error")
    assert isinstance(again, Started)
    assert (again.trial, again.until) == (0, 4), "no new one comes: it is promoted"
    desk.begin(0, restored=step)
    assert desk.report(0, *range(step + 1, 4)) == [], "step 2 is not decided on twice"
    assert isinstance(desk.report(0, 4)[0], Decided)


@pytest.mark.parametrize(("cause", "state"), [("preempted", TrialState.PAUSED), ("infrastructure", TrialState.FAILED)])
def test_a_pause_stands_where_the_attempt_is_lost_on_its_way_out_unless_its_retries_are_used_up(cause: Any, state: TrialState) -> None:
    desk = Desk({"0:2": PAUSE}, options={"last": True}, retries={"infrastructure": 0})
    desk.begin(0)
    desk.report(0, 1, 2)
    assert started(desk.end(0, "lost", cause)) == [(1, 1)]
    assert desk.of(0).state is state
    assert desk.planner.history.held == ({0} if state is TrialState.PAUSED else set())


def test_one_that_ended_by_itself_before_it_heard_of_the_pause_is_done() -> None:
    desk = Desk({"0:2": PAUSE}, trials=1)
    desk.begin(0)
    desk.report(0, 1, 2)
    assert desk.end(0, "done", step=2) == [Closed(t=1.0, status="finished")]
    assert (desk.of(0).state, desk.planner.history.held) == (TrialState.DONE, set())


class Forgets(Scripted):
    """Promotes nothing."""

    def promote(self, *, complete: bool) -> int | None:
        return None


def test_what_nothing_can_promote_any_more_is_given_up_and_everybody_is_told() -> None:
    found = Desk({}, trials=2, schedule={f"{__name__}:Forgets": {"script": {"0:2": PAUSE, "1:2": PAUSE}}})
    for trial in (0, 1):
        found.begin(trial)
        found.report(trial, 1, 2, value=float(trial))
        last = found.end(trial)
    assert [type(event) for event in last] == [Retired, Retired, Closed]
    assert [event.trial for event in last if isinstance(event, Retired)] == [0, 1]
    assert last[-1] == Closed(t=1.0, status="finished")
    assert [trial.state for trial in found.planner.history.trials] == [TrialState.STOPPED] * 2
    assert found.scheduler.told[-4:] == [("dropped", 0), ("ended", 0, "stopped"), ("dropped", 1), ("ended", 1, "stopped")]
    assert [(r.number, r.status) for r in found.planner._results.untold[-2:]] == [(0, "stopped"), (1, "stopped")]


def test_a_user_interrupts_the_paused_wait_on_and_the_others_go_on_first() -> None:
    desk = Desk({"0:2": PAUSE}, options={"last": True}, slots=2, trials=4)
    for trial in (0, 1):
        desk.begin(trial)
    desk.report(0, 1, 2)
    desk.end(0)
    desk.begin(2)
    desk.tell(Closing(t=desk.t, status="interrupted", why="by the user", by="user"))
    desk.end(1)
    assert desk.end(2) == [Closed(t=desk.t, status="interrupted")]
    assert desk.planner.history.held == {0}
    assert started(desk.open(slots=2, trials=4)) == [(1, 2), (2, 2)]
    assert started(desk.end(1, "lost", "preempted")) == [(1, 3)]


def test_interrupted_and_paused_at_the_same_time_it_waits_for_its_promotion() -> None:
    desk = Desk({"0:2": PAUSE}, options={"last": True}, trials=2)
    desk.begin(0)
    desk.tell(Closing(t=desk.t, status="interrupted", why="by the user", by="user"))
    desk.report(0, 1, 2)
    desk.end(0)
    assert desk.planner.history.held == {0}
    assert started(desk.open(trials=2)) == [(1, 1)]


def test_with_a_raised_total_what_was_the_last_is_not_any_more() -> None:
    desk = Desk({"0:2": PAUSE, "1:2": PAUSE}, options={"last": True}, trials=2)
    desk.begin(0)
    desk.report(0, 1, 2)
    desk.end(0)
    desk.begin(1)
    desk.tell(Closing(t=desk.t, status="interrupted", why="by the user", by="user"))
    desk.report(1, 1, 2)
    assert desk.end(1) == [Closed(t=desk.t, status="interrupted")]
    before = len(desk.events)
    assert started(desk.open(trials=2)) == [(0, 2)], "no new one comes: the first of the paused goes on"
    desk.cut(len(desk.events) - before)
    assert started(desk.open(trials=3)) == [(2, 1)], "a new one comes first"
    desk.begin(2)
    assert started(desk.end(2, "done")) == [(0, 2)]


@pytest.mark.parametrize(("outcome", "cause", "step"), [("paused", "", 2), ("lost", "preempted", 1)])
def test_a_restarted_trial_goes_on_at_once(outcome: Any, cause: Any, step: int) -> None:
    desk = Desk({"0:2": RESTART, "0:4": PAUSE}, trials=2)
    desk.begin(0)
    desk.report(0, 1)
    desk.save(0, 1)
    desk.report(0, 2)
    if step == 2:
        desk.save(0, 2)
    (event,) = desk.end(0, outcome, cause)
    assert isinstance(event, Started)
    assert (event.trial, event.attempt, event.until, event.checkpoints[0]) == (0, 2, 4, f"m0.1.{step}")


def test_only_what_the_scheduler_paused_can_be_given_up() -> None:
    desk = Desk({"0:2": PAUSE}, slots=2)
    desk.begin(0)
    desk.report(0, 1, 2)
    for trial in (0, 1, 9):  # about to leave, running, not there
        with pytest.raises(IllegalMove):
            desk.planner.apply(Retired(t=1.0, trial=trial))
    assert desk.of(0).state is TrialState.RUNNING


# Clones, for the planner


def cloning(slots: int = 2, script: dict[str, Any] | None = None, **changes: Any) -> Desk:
    """Trial 0 has checkpoints of steps 1 to 3, trial 1 is at step 2, where it is to go on from trial 0."""
    desk = Desk(script or {"1:2": clone(0, 0.25)}, slots=slots, trials=2, **changes)
    desk.begin(0)
    desk.begin(1)
    for step in (1, 2, 3):
        desk.report(0, step)
        desk.save(0, step)
    desk.report(1, 1)
    desk.save(1, 1)
    return desk


def manifests(desk: Desk, trial: int) -> list[str]:
    return [saved.manifest for saved in desk.of(trial).checkpoints.values()]


def test_a_clone_starts_from_the_sources_checkpoints_with_the_new_configuration() -> None:
    desk = cloning()
    proposed = dict(desk.of(1).config)
    (decided,) = desk.report(1, 2)
    assert isinstance(decided, Decided)
    assert (decided.source, decided.manifests, decided.config) == (0, ["m0.1.3", "m0.1.2", "m0.1.1"], {"x": 0.25})
    (event,) = desk.end(1)
    assert isinstance(event, Started)
    assert (event.clones, event.checkpoints) == (3, ["m0.1.3", "m0.1.2", "m0.1.1", "m1.1.1"])
    assert desk.of(1).config == {"x": 0.25}
    assert (desk.of(1).proposed, [c.step for c in desk.of(1).changes]) == (proposed, [2])


def test_without_a_checkpoint_of_the_source_the_trial_goes_on_and_the_log_says_why() -> None:
    desk = Desk({"1:2": clone(0, 0.25), "1:4": PAUSE}, slots=2, trials=2)
    desk.begin(0)
    desk.begin(1)
    before = dict(desk.of(1).config)
    (decided,) = desk.report(1, 1, 2)
    assert isinstance(decided, Decided)
    assert (decided.verdict, decided.until, decided.source, decided.config) == ("continue", 4, None, None)
    assert "no checkpoint" in decided.why
    assert desk.of(1).config == before
    assert desk.scheduler.told[-1] == ("continue", 1, 2, None), "the scheduler is told what came of it"


def test_the_sources_checkpoints_are_kept_until_the_clone_has_its_own() -> None:
    desk = cloning(checkpoint={"keep_last": 1, "keep_best": 0})
    assert manifests(desk, 0) == ["m0.1.3"]
    desk.report(1, 2)
    desk.report(0, 4)
    assert desk.save(0, 4) == [], "m0.1.3 is needed"
    desk.end(1)
    desk.report(0, 5)
    assert [e.manifests for e in desk.save(0, 5) if isinstance(e, Dropped)] == [["m0.1.4"]]
    desk.begin(1, restored=2)
    dropped = desk.save(1, 2, source="m0.1.3")
    assert sorted(m for e in dropped if isinstance(e, Dropped) for m in e.manifests) == ["m0.1.3", "m1.1.1"]
    assert manifests(desk, 1) == ["m1.2.2"]
    assert desk.planner.history.borrowed == {"m1.2.2": 0}


def test_they_are_let_go_where_no_clone_could_be_read() -> None:
    desk = cloning(checkpoint={"keep_last": 1, "keep_best": 0})
    desk.report(1, 2)
    desk.report(0, 4)
    desk.save(0, 4)
    desk.end(1)
    assert [e.manifests for e in desk.begin(1, restored=1) if isinstance(e, Dropped)] == [["m0.1.3"]]
    assert manifests(desk, 1) == ["m1.1.1"], "its own are of use again"
    assert desk.of(1).step == 1


def test_they_are_let_go_where_the_trial_that_was_to_clone_is_given_up_or_fails() -> None:
    desk = cloning(
        script={"1:2": clone(0, action="pause")}, options={"last": True}, checkpoint={"keep_last": 1, "keep_best": 0},
    )
    desk.report(1, 2)
    desk.report(0, 4)
    desk.save(0, 4)
    desk.end(1)  # promoted, as no new one comes
    assert started(desk.events[-1:]) == [(1, 2)]
    assert [e.manifests for e in desk.end(1, "failed", "error") if isinstance(e, Dropped)] == [["m0.1.3"]]


class GivesUp(Scripted):
    """What it pauses is surplus."""

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        return (min(self.paused), "not wanted") if self.paused else None

    def promote(self, *, complete: bool) -> int | None:
        return None


def test_they_are_let_go_where_it_is_given_up() -> None:
    script = {"1:2": clone(0, action="pause")}
    desk = cloning(checkpoint={"keep_last": 1, "keep_best": 0}, schedule={f"{__name__}:GivesUp": {"script": script}})
    desk.report(1, 2)
    desk.report(0, 4)
    desk.save(0, 4)
    found = desk.end(1)
    assert [type(event) for event in found] == [Retired, Dropped]
    assert manifests(desk, 0) == ["m0.1.4"]


@pytest.mark.parametrize("began", [False, True])
def test_an_attempt_that_is_lost_before_the_clone_is_its_own_clones_again(began: bool) -> None:
    desk = cloning()
    desk.report(1, 2)
    desk.end(1)
    if began:
        desk.begin(1, restored=2)
    (event,) = desk.end(1, "lost", "preempted")
    assert isinstance(event, Started)
    assert (event.attempt, event.clones, event.checkpoints[:3]) == (3, 3, ["m0.1.3", "m0.1.2", "m0.1.1"])


@pytest.mark.parametrize("restored", [3, 0])
def test_a_source_that_is_lost_meanwhile_goes_on_and_gives_its_weights_all_the_same(restored: int) -> None:
    desk = cloning(checkpoint={"keep_last": 1, "keep_best": 0, "every_steps": 1})
    desk.report(1, 2)
    again = desk.end(0, "lost", "preempted")
    assert started(again) == [(0, 2)]
    desk.begin(0, restored=restored)  # its newest may turn out to be unreadable
    desk.report(0, *range(desk.of(0).step + 1, 5))
    assert not [e for e in desk.save(0, 4) if isinstance(e, Dropped)], "what is needed is kept, what is superseded is gone already"
    (event,) = desk.end(1)
    assert isinstance(event, Started)
    assert event.checkpoints[: event.clones] == ["m0.1.3"]
    desk.begin(1, restored=2)
    desk.save(1, 2, source="m0.1.3")
    assert manifests(desk, 0) == ["m0.2.4"]
    assert (manifests(desk, 1), desk.planner.history.borrowed) == (["m1.2.2"], {"m1.2.2": 0})


def test_the_last_checkpoint_of_the_attempt_that_leaves_does_not_undo_the_clone() -> None:
    desk = cloning()
    desk.report(1, 2)
    desk.save(1, 2)  # was on its way when the decision came
    (event,) = desk.end(1)
    assert isinstance(event, Started)
    assert event.clones == 3
    desk.begin(1, restored=2)
    desk.save(1, 2, source="m0.1.3")
    assert manifests(desk, 1) == ["m1.1.1", "m1.2.2"], "its best one is kept, for whoever asks for the best"
    (again,) = desk.end(1, "lost", "preempted")
    assert isinstance(again, Started)
    assert (again.clones, again.checkpoints) == (0, ["m1.2.2"]), "its weights of before are never restored again"


def test_a_checkpoint_whose_step_got_another_one_is_dropped_once_nobody_waits_for_it() -> None:
    desk = cloning()
    desk.report(1, 2)
    desk.save(1, 2)
    desk.end(1)
    desk.begin(1, restored=2)
    (dropped, *_) = [event for event in desk.save(1, 2, source="m0.1.3") if isinstance(event, Dropped) and event.trial == 1]
    assert "m1.1.2" in dropped.manifests


def test_a_clone_of_a_clone_is_known_to_be_made_of_the_first_ones_files() -> None:
    desk = cloning(script={"1:2": clone(0), "0:5": clone(1)})
    desk.report(1, 2)
    desk.end(1)
    desk.begin(1, restored=2)
    desk.save(1, 2, source="m0.1.3")
    desk.report(0, 4, 5)
    (event,) = desk.end(0)
    assert isinstance(event, Started)
    assert event.checkpoints[: event.clones] == ["m1.2.2"]
    desk.begin(0, restored=5)
    desk.save(0, 5, source="m1.2.2")
    assert desk.planner.history.borrowed["m0.2.5"] == 0
    assert manifests(desk, 0) == ["m0.1.1", "m0.2.5"], "the best one, and the clone"


def test_a_new_driver_clones_what_the_old_one_had_decided() -> None:
    desk = cloning()
    desk.report(1, 2)
    found = desk.open(slots=2, trials=2)
    (event,) = (e for e in found if isinstance(e, Started) and e.trial == 1)
    assert (event.clones, event.checkpoints[0]) == (3, "m0.1.3")


def test_the_sampler_learns_of_a_clone_under_the_configuration_that_was_proposed() -> None:
    desk = cloning()
    desk.report(1, 2)
    desk.end(1)
    assert desk.planner._results.of(desk.of(1)).config == desk.of(1).proposed != desk.of(1).config


# Width


def test_a_wide_attempt_gets_no_more_than_what_is_free() -> None:
    desk = Desk({}, slots=4, trials=3, options={"widths": {"0": 3, "1": 9, "2": 0}})
    widths = [event.width for event in desk.events if isinstance(event, Started)]
    assert widths == [3, 1]
    assert desk.planner.history.occupied == 4
    (event,) = desk.end(0, "lost", "preempted")
    assert isinstance(event, Started)
    assert (event.trial, event.width) == (0, 3)
    event = desk.end(1, "done")[-1]
    assert isinstance(event, Started)
    assert (event.trial, event.width) == (2, 1), "at least one"


def test_with_fewer_slots_in_the_next_sitting_it_gets_fewer() -> None:
    desk = Desk({}, slots=4, trials=1, options={"widths": {"0": 4}})
    desk.tell(Closing(t=desk.t, status="interrupted", why="by the user", by="user"))
    desk.end(0)
    assert [e.width for e in desk.open(slots=2, trials=1) if isinstance(e, Started)] == [2]
    assert desk.planner.history.occupied == 2


# Whatever happens


class Chaos(Scheduler):
    """Draws each verdict from trial and step: on, pause, restart, clone (a running or an ended one, itself), stop."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.known: list[int] = []
        self.paused: dict[int, int] = {}

    def draw(self, *what: object) -> random.Random:
        return random.Random(f"{self.setting.seed}:{what}")

    def first(self, trial: int, after: int) -> int | None:
        step = after + self.draw("first", trial, after).randint(1, 3)
        return step if step < (self.setting.max_steps or 0) else None

    def added(self, candidate: Candidate) -> None:
        self.known.append(candidate.trial)

    def decide(self, trial: int, values: Sequence[float]) -> Verdict:
        chance = self.draw("decide", trial, len(values))
        action: Any = chance.choice(["continue", "continue", "pause", "pause", "restart", "stop"])
        if action in ("continue", "stop"):
            return Verdict(action=action, until=self.first(trial, len(values)) if action == "continue" else None)
        source = chance.choice([None, chance.choice(self.known)])
        config = chance.choice([None, {"x": chance.random()}])
        return Verdict(action=action, source=source, config=config, why="as drawn")

    def tell(self, trial: int, values: Sequence[float], verdict: Verdict) -> None:
        if verdict.action == "pause":
            self.paused[trial] = len(values)

    def started(self, trial: int) -> None:
        self.paused.pop(trial, None)

    def dropped(self, trial: int) -> None:
        self.paused.pop(trial, None)

    def ended(self, trial: int, how: Any) -> None:
        self.paused.pop(trial, None)

    def promote(self, *, complete: bool) -> int | None:
        willing = [trial for trial, step in self.paused.items() if complete or self.draw("promote", trial, step).random() < 0.5]
        return min(willing, default=None)

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        gone = [trial for trial, step in self.paused.items() if self.draw("surplus", trial, step).random() < 0.2]
        return (min(gone), "as drawn") if gone else None

    def width(self, trial: int) -> int:
        return self.draw("width", trial).randint(0, 4)


def check_promises(events: Sequence[AnyEvent], slots: int) -> None:
    """Slots are never exceeded; no checkpoint that a trial may still go on from is dropped; decisions are taken once."""
    history = History()
    wide: dict[tuple[int, int], int] = {}
    dropped: set[str] = set()
    decided: set[tuple[int, int]] = set()
    for event in events:
        match event:
            case Started():
                wide[event.trial, event.attempt] = event.width
                assert sum(wide.values()) <= slots
                assert not dropped & set(event.checkpoints), "it may restore what was dropped"
            case Ended():
                del wide[event.trial, event.attempt]
            case Dropped():
                dropped |= set(event.manifests)
                needed = {m for trial in history.trials if trial.clone is not None for m in trial.clone.manifests}
                assert not dropped & needed, "a clone needs it"
            case Decided():
                assert (event.trial, event.step) not in decided, "decided twice"
                decided.add((event.trial, event.step))
            case _:
                pass
        history.apply(event)
        assert history.occupied == sum(wide.values())
        assert history.held == {t.number for t in history.trials if t.held}
        assert all(history.trials[number].state in (TrialState.PAUSED, TrialState.RUNNING) for number in history.held)
        assert not history.pinned or any(trial.clone for trial in history.trials)
        for trial in history.trials:
            assert len(list(trial.curve.lineage())) == len(trial.curve.times) == trial.step
            assert all(step <= trial.step for step in trial.checkpoints)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_decided_and_lost_the_total_is_exact_and_nothing_is_decided_twice(seed: int) -> None:
    chance = random.Random(seed)
    spec = Spec.parse({
        **SPEC, "schedule": f"{__name__}:Chaos", "trials": 8, "seed": seed, "retries": {"error": 2},
        "checkpoint": {"every_steps": chance.randint(1, 3), "keep_last": chance.randint(1, 2), "keep_best": chance.randint(0, 1)},
    })
    workers = chance.randint(1, 4)
    machines = [[], availability([4, 2, 4, 0, 1, 3, 1, 4], 3.5, workers)][seed % 2]
    objective = FunctionObjective(function=score, spec=spec)
    run = Simulated(spec=spec, objective=objective, workers=workers, availability=machines).open()
    while run.history.closed is None or run.history.closed.status == "interrupted":
        run.run(most_events=len(run.events) + chance.randint(1, 40))
        what = chance.random()
        if run.history.closed is not None or what < 0.1:  # the driver is killed, or comes after an interruption
            run = Simulated(spec=spec, objective=objective, workers=workers, availability=machines).open(run.events)
        elif what < 0.2 and run.history.closing is None:
            run.tell(Closing(t=run.now, status="interrupted", why="by the user", by="user"))
        elif what < 0.3 and run.running:
            run.fail(run.running[0].trial, "made to fail")
        assert len(run.events) < 20_000, "it does not come to an end"
    assert verify(run.events).difference is None
    assert len(run.history.trials) == 8
    assert all(trial.state.final for trial in run.history.trials)
    check_promises(run.events, workers)
    most = spec.checkpoint.keep_last + spec.checkpoint.keep_best
    assert all(len(trial.checkpoints) <= most for trial in run.history.trials), "nothing is kept for nobody"


# With real attempts and checkpoints


class Killed(BaseException):
    """The worker is killed: nothing after this is sent."""


def writing(weights: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "weights").write_text(weights)


class Works:
    """An office, and attempts as workers would run them. A checkpoint is a file `weights`: which trial did which steps."""

    def __init__(self, script: dict[str, Any], store: Any = None, *, options: Any = None, **changes: Any) -> None:
        schedule = scripted(script, **(options or {}))
        given: dict[str, Any] = {"trainable": "work_under_test:train", "max_steps": 6, "trials": 2, "schedule": schedule, **changes}
        self.office = Office(store=store, **given)
        self.bench = Bench()
        self.began: list[tuple[int, int, int, str]] = []
        """(trial, attempt, first step, weights that it began with)"""

    def train(self, trial: Trial) -> None:
        weights = (trial.restored / "weights").read_text() if trial.restored else ""
        self.began.append((trial.number, trial.attempt, trial.step, weights))
        for step in trial.steps():
            weights += f" {trial.number}.{step}"
            trial.report({"score": float(step)}, checkpoint=writing(weights))

    def run(self, assignment: Assignment | None = None, train: Callable[[Trial], None] | None = None) -> Finished:
        sys.modules["work_under_test"].train = train or self.train  # type: ignore[attr-defined]
        office = self.office
        return run_attempt(
            office.job, assignment or office.submitted(), office, office.store, host=self.bench, task_run="run-0",
            carry_on=lambda: False,
        )

    def finish(self) -> None:
        """Runs attempts one after the other until nothing is left."""
        while (told := self.office.instructions()).finished is None:
            for assignment in told.submit:
                self.run(assignment)


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Works]]:
    monkeypatch.setattr(reporting, "FLUSH_SECONDS", 60.0)
    module = ModuleType("work_under_test")
    module.__spec__ = ModuleSpec("work_under_test", None)
    monkeypatch.setitem(sys.modules, "work_under_test", module)
    made: list[Works] = []

    def make(*args: Any, **changes: Any) -> Works:
        made.append(Works(*args, **changes))
        return made[-1]

    yield make
    for one in made:
        one.office.close()


def test_a_pause_saves_a_checkpoint_at_its_very_step_and_no_step_is_done_twice(works: Callable[..., Works]) -> None:
    at = works({"0:2": PAUSE, "1:2": PAUSE}, checkpoint={"every_steps": 100})
    ended = at.run().ended
    assert (ended.outcome, ended.step, ended.message) == ("paused", 2, "its turn is over")
    assert list(at.office.history.trials[0].checkpoints) == [2]
    at.finish()
    assert (0, 2, 2, " 0.1 0.2") in at.began
    assert at.office.history.lost_steps == 0
    assert [trial.state for trial in at.office.history.trials] == [TrialState.DONE] * 2


def test_without_checkpoints_of_the_trainable_a_promoted_trial_starts_over_and_is_not_paused_again(works: Callable[..., Works]) -> None:
    at = works({"0:2": PAUSE}, trials=1)

    def plain(trial: Trial) -> None:
        at.began.append((trial.number, trial.attempt, trial.step, ""))
        for step in trial.steps():
            trial.report({"score": float(step)})

    assert at.run(train=plain).ended.outcome == "paused"
    assert at.run(train=plain).ended.outcome == "done"
    assert at.began == [(0, 1, 0, ""), (0, 2, 0, "")]
    assert [row.step for _, row in kept(at.office.events)[0]] == [1, 2, 3, 4, 5, 6]


def test_killed_between_the_pause_and_its_checkpoint_it_goes_on_from_the_one_before(works: Callable[..., Works]) -> None:
    at = works({"0:3": PAUSE}, trials=1, checkpoint={"every_steps": 2})

    def killed(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3:
                trial._writer.drain()
                trial._reporter.flush()

            def save(folder: Path, step: int = step) -> None:
                if step == 3:  # the checkpoint that the pause asks for
                    raise Killed
                (folder / "weights").write_text(f" 0.1 0.{step}")

            trial.report({"score": float(step)}, checkpoint=save)

    with pytest.raises(Killed):
        at.run(train=killed)
    at.office.lost(0, 1)
    assert at.run().ended.outcome == "done"
    assert at.began == [(0, 2, 2, " 0.1 0.2")]
    assert at.office.history.lost_steps == 1
    assert sum(isinstance(event, Decided) for event in at.office.events) == 1


def test_the_coordinator_dies_after_the_decision_and_the_pause_stands(works: Callable[..., Works]) -> None:
    at = works({"0:2": PAUSE}, options={"last": True}, trials=1)

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": float(step)}, checkpoint=lambda folder: (folder / "weights").write_text("w"))
            if step == 2:
                at.office.open("driver-1")

    assert at.run(train=train).ended.outcome == "paused"
    assert [e.by for e in at.office.events if isinstance(e, Opened)] == ["driver", "coordinator"]
    assert at.run().ended.outcome == "done"
    assert at.office.history.lost_steps == 0


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_clone_has_the_sources_weights_at_its_own_step(works: Callable[..., Works], kind: str, tmp_path: Path) -> None:
    store: Any = None if kind == "memory" else LocalStore(tmp_path)
    at = works({"1:3": clone(0, 0.25)}, store)
    at.run()
    ended = at.run().ended
    assert (ended.outcome, ended.step) == ("paused", 3)
    at.run()
    assert at.began[-1] == (1, 2, 3, " 0.1 0.2 0.3 0.4 0.5 0.6")
    trial = at.office.history.trials[1]
    assert list(trial.curve.lineage()) == [1, 1, 1, 2, 2, 2]
    assert at.office.history.lost_steps == 0
    newest = trial.checkpoints[6].manifest
    found = restore(at.office.store, [newest], tmp_path / "found")
    assert (tmp_path / "found" / "weights").read_text() == " 0.1 0.2 0.3 0.4 0.5 0.6 1.4 1.5 1.6"
    assert found.step == 6


def test_the_weights_that_will_be_replaced_are_not_saved(works: Callable[..., Works]) -> None:
    at = works({"1:3": clone(0)}, checkpoint={"every_steps": 2})
    at.run()
    at.run()
    assert [e.step for e in at.office.events if isinstance(e, Saved) and e.trial == 1] == [2]


def corrupt(store: Store, manifest: str) -> None:
    """What is there is no manifest any more."""
    data = store.read(manifest)
    store.delete([manifest])
    store.create(manifest, data[:-3] + b"xxx")


def test_a_source_whose_newest_checkpoint_is_corrupt_gives_the_one_before(works: Callable[..., Works]) -> None:
    at = works({"1:3": clone(0, 0.25)})
    at.run()
    at.run()
    source = at.office.history.trials[0]
    corrupt(at.office.store, source.checkpoints[6].manifest)
    at.run()
    assert at.began[-1] == (1, 2, 3, " 0.1 0.2 0.3 0.4 0.5")
    began = [e for e in at.office.events if isinstance(e, Began)][-1]
    assert len(began.skipped) == 1
    assert source.checkpoints[6].manifest in began.skipped[0]


@pytest.mark.parametrize(("every", "step"), [(2, 2), (3, 3)])
def test_a_source_without_a_sound_checkpoint_leaves_the_trial_its_own(works: Callable[..., Works], every: int, step: int) -> None:
    """Its own newest is of step 2, so that step 3 is done again, or (every 3) of the very step of the decision."""
    at = works({"1:3": clone(0, 0.25)}, checkpoint={"every_steps": every})
    at.run()
    at.run()
    for saved in at.office.history.trials[0].checkpoints.values():
        corrupt(at.office.store, saved.manifest)
    at.run()
    assert at.began[-1][:3] == (1, 2, step)
    assert at.began[-1][3].endswith(f" 1.{step}")
    trial = at.office.history.trials[1]
    assert (trial.state, trial.clone, at.office.history.pinned) == (TrialState.DONE, None, set())
    assert [row.step for _, row in kept(at.office.events)[1]] == [1, 2, 3, 4, 5, 6]


def test_a_clones_blobs_survive_that_the_source_drops_its_checkpoint(works: Callable[..., Works], tmp_path: Path) -> None:
    """The source keeps one checkpoint. It is dropped, and deleted, after the clone was taken; the clone restores from its blobs."""
    at = works({"1:3": clone(0)}, slots=2, checkpoint={"keep_last": 1, "keep_best": 0})
    at_three, cloned = threading.Event(), threading.Event()

    def source(trial: Trial) -> None:
        for step in trial.steps():
            if step == 4:
                trial._writer.drain()
                trial._reporter.flush()
                at_three.set()
                assert cloned.wait(20)
            trial.report({"score": float(step)}, checkpoint=writing(f"source at {step}"))
            trial._writer.drain()
            trial._reporter.flush()

    def cloner(trial: Trial) -> None:
        if trial.number == 0:
            return source(trial)
        weights = (trial.restored / "weights").read_text() if trial.restored else ""
        at.began.append((1, trial.attempt, trial.step, weights))
        for step in trial.steps():
            if step == 4 and trial.attempt == 2:
                cloned.set()
                other.join(20)
                raise Killed
            trial.report({"score": float(step)}, checkpoint=writing(weights))
        return None

    first, second = at.office.instructions().submit
    other = threading.Thread(target=at.run, args=(first, cloner))
    other.start()
    assert at_three.wait(20)
    assert at.run(second, cloner).ended.outcome == "paused"
    with pytest.raises(Killed):
        at.run(train=cloner)
    dropped = {m for e in at.office.events if isinstance(e, Dropped) and e.trial == 0 for m in e.manifests}
    copy = at.office.history.trials[1].checkpoints[3]
    assert copy.source in dropped
    assert copy.source not in at.office.store.list("manifests/"), "it is gone from the store"
    at.office.lost(1, 2)
    at.run(train=cloner)
    assert at.began == [(1, 1, 0, ""), (1, 2, 3, "source at 3"), (1, 3, 3, "source at 3")]
    assert at.office.history.trials[1].state is TrialState.DONE


class NoReads(MemoryStore):
    """Reads nothing."""

    def read(self, key: str) -> bytes:
        from regrow.tasks.ports import Unavailable

        raise Unavailable(key, "no network")


def test_a_store_that_is_away_when_a_clone_is_to_be_taken_supersedes_nothing(
    works: Callable[..., Works], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regrow.tasks.attempt.PATIENCE_SECONDS", 0.1)
    at = works({"1:3": clone(0)})
    at.run()
    at.run()
    office, there = at.office, at.office.store
    assignment = office.submitted()
    ended = run_attempt(
        office.job, assignment, office, NoReads(), host=at.bench, task_run="run-0", carry_on=lambda: False
    ).ended
    assert (ended.outcome, ended.cause) == ("failed", "infrastructure")
    assert office.store is there
    assert office.history.trials[1].step == 3
    at.run()
    assert at.began[-1] == (1, 3, 3, " 0.1 0.2 0.3 0.4 0.5 0.6")


def test_a_restart_goes_on_from_its_own_checkpoint_of_that_step(works: Callable[..., Works]) -> None:
    at = works({"0:3": RESTART}, trials=1, checkpoint={"every_steps": 100})
    assert at.run().ended.outcome == "paused"
    at.run()
    assert at.began == [(0, 1, 0, ""), (0, 2, 3, " 0.1 0.2 0.3")]
    assert at.office.history.lost_steps == 0


def test_a_wide_attempt_is_told_its_width(works: Callable[..., Works]) -> None:
    at = works({}, trials=1, slots=4, options={"widths": {"0": 3}})
    assert at.office.submitted().width == 3


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_every_step_is_done_on_the_weights_that_the_log_says(works: Callable[..., Works], seed: int) -> None:
    """Attempts are killed, coordinators come back, checkpoints rot. Weights are the list of steps that made them."""
    chance = random.Random(seed)
    at = works(
        {}, trials=5, slots=1, max_steps=9, seed=seed, schedule=f"{__name__}:Chaos", retries={"infrastructure": 1000},
        checkpoint={"every_steps": chance.randint(1, 3), "keep_last": 1, "keep_best": 0},
    )
    office, final, driver = at.office, dict[int, str](), "driver-1"

    def train(trial: Trial) -> None:
        weights = (trial.restored / "weights").read_text() if trial.restored else ""
        fatal = chance.choice([None, None, chance.randint(1, 9)])
        for step in trial.steps():
            weights += f" {trial.number}.{step}"
            trial.report({"score": chance.random()}, checkpoint=writing(weights))
            if step == fatal:
                trial._writer.drain()
                trial._reporter.flush()
                raise Killed
        final[trial.number] = weights

    while (told := office.instructions()).finished is None:
        assert len(office.events) < 2000, "it does not come to an end"
        for assignment in told.submit:
            if assignment.checkpoints and chance.random() < 0.2:
                newest = assignment.checkpoints[0]
                if newest in office.store.list("manifests/"):
                    corrupt(office.store, newest)
            try:
                at.run(assignment, train)
            except Killed:
                office.lost(assignment.trial, assignment.attempt)
            if chance.random() < 0.2:
                driver = chance.choice([driver, f"driver-{len(office.events)}"])
                office.open(driver)
    history = office.history
    assert all(trial.state.final for trial in history.trials)
    check_promises(office.events, 1)
    for trial in history.trials:
        if trial.state is TrialState.DONE and trial.number in final:
            taken = [e.step for e in office.events if isinstance(e, Saved) and e.trial == trial.number and e.source is not None]
            own = [f"{trial.number}.{step}" for step in range(max([0, *(s for s in taken if s <= trial.step)]) + 1, 10)]
            assert final[trial.number].split()[-len(own) :] == own or not own
            if not taken:
                assert final[trial.number].split() == own
