"""Trials that continue from another one's weights: what the planner decides, and which checkpoints it
keeps for them.
"""

from __future__ import annotations

from typing import Any

import pytest

from regrow.search.events import Decided, Dropped, Reported, Retired, Row, Started
from tests.unit.scripted import PAUSE, Desk, Scripted, clone, started


def cloning(slots: int = 2, script: dict[str, Any] | None = None, **changes: Any) -> Desk:
    """Trial 0 has checkpoints of steps 1 to 3, trial 1 is at step 2, where it is to continue from
    trial 0.
    """
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
    assert (decided.source, decided.manifests, decided.config) == (
        0,
        ["m0.1.3", "m0.1.2", "m0.1.1"],
        {"x": 0.25},
    )
    (event,) = desk.end(1)
    assert isinstance(event, Started)
    assert (event.clones, event.checkpoints) == (3, ["m0.1.3", "m0.1.2", "m0.1.1", "m1.1.1"])
    assert desk.of(1).config == {"x": 0.25}
    assert (desk.of(1).proposed, [c.step for c in desk.of(1).changes]) == (proposed, [2])


def test_a_clone_stands_for_the_report_also_where_a_metric_counts_the_steps() -> None:
    desk = Desk({"1:200": clone(0)}, slots=2, trials=2, max_steps=900, step_metric="epoch")
    for trial, step in ((0, 1), (1, 1), (1, 2)):
        if step == 1:
            desk.begin(trial)
        rows = [Row(step, desk.t, {"score": 1.0, "epoch": 100.0 * step})]
        desk.tell(Reported(t=desk.t, trial=trial, attempt=1, rows=rows))
        desk.save(trial, step)
    desk.end(1)
    desk.begin(1, restored=2)
    desk.save(1, 2, source="m0.1.1")
    assert desk.planner.history.borrowed == {"m1.2.2": 0}, "whose files it is made of"
    (event,) = desk.end(1, "lost", "preempted")
    assert isinstance(event, Started)
    assert (event.clones, event.checkpoints) == (0, ["m1.2.2"]), "its own are stale"


def test_without_a_checkpoint_of_the_source_the_trial_goes_on_and_the_log_says_why() -> None:
    desk = Desk({"1:2": clone(0, 0.25), "1:4": PAUSE}, slots=2, trials=2)
    desk.begin(0)
    desk.begin(1)
    before = dict(desk.of(1).config)
    (decided,) = desk.report(1, 1, 2)
    assert isinstance(decided, Decided)
    assert (decided.verdict, decided.until, decided.source, decided.config) == (
        "continue",
        4,
        None,
        None,
    )
    assert "no checkpoint" in decided.why
    assert desk.of(1).config == before
    assert desk.scheduler.told[-1] == ("continue", 1, 2, None), (
        "the scheduler is told what came of it"
    )


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
    assert sorted(m for e in dropped if isinstance(e, Dropped) for m in e.manifests) == [
        "m0.1.3",
        "m1.1.1",
    ]
    assert manifests(desk, 1) == ["m1.2.2"]
    assert desk.planner.history.borrowed == {"m1.2.2": 0}


def test_they_are_let_go_where_no_clone_could_be_read() -> None:
    desk = cloning(checkpoint={"keep_last": 1, "keep_best": 0})
    desk.report(1, 2)
    desk.report(0, 4)
    desk.save(0, 4)
    desk.end(1)
    assert [e.manifests for e in desk.begin(1, restored=1) if isinstance(e, Dropped)] == [
        ["m0.1.3"]
    ]
    assert manifests(desk, 1) == ["m1.1.1"], "its own are of use again"
    assert desk.of(1).step == 1


def test_they_are_let_go_where_the_trial_that_was_to_clone_is_given_up_or_fails() -> None:
    desk = cloning(
        script={"1:2": clone(0, action="pause")},
        options={"last": True},
        checkpoint={"keep_last": 1, "keep_best": 0},
    )
    desk.report(1, 2)
    desk.report(0, 4)
    desk.save(0, 4)
    desk.end(1)  # promoted, as no new one comes
    assert started(desk.events[-1:]) == [(1, 2)]
    assert [e.manifests for e in desk.end(1, "failed", "error") if isinstance(e, Dropped)] == [
        ["m0.1.3"]
    ]


class GivesUp(Scripted):
    """What it pauses is surplus."""

    def surplus(self, *, complete: bool) -> tuple[int, str] | None:
        return (min(self.paused), "not wanted") if self.paused else None

    def promote(self, *, complete: bool) -> int | None:
        return None


def test_they_are_let_go_where_it_is_given_up() -> None:
    script = {"1:2": clone(0, action="pause")}
    desk = cloning(
        checkpoint={"keep_last": 1, "keep_best": 0},
        schedule={f"{__name__}:GivesUp": {"script": script}},
    )
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
    assert (event.attempt, event.clones, event.checkpoints[:3]) == (
        3,
        3,
        ["m0.1.3", "m0.1.2", "m0.1.1"],
    )


@pytest.mark.parametrize("restored", [3, 0])
def test_a_source_that_is_lost_meanwhile_goes_on_and_gives_its_weights_all_the_same(
    restored: int,
) -> None:
    desk = cloning(checkpoint={"keep_last": 1, "keep_best": 0, "every_steps": 1})
    desk.report(1, 2)
    again = desk.end(0, "lost", "preempted")
    assert started(again) == [(0, 2)]
    desk.begin(0, restored=restored)  # its newest may turn out to be unreadable
    desk.report(0, *range(desk.of(0).step + 1, 5))
    assert not [e for e in desk.save(0, 4) if isinstance(e, Dropped)], (
        "what is needed is kept, what is superseded is gone already"
    )
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
    assert manifests(desk, 1) == ["m1.1.1", "m1.2.2"], (
        "its best one is kept, for whoever asks for the best"
    )
    (again,) = desk.end(1, "lost", "preempted")
    assert isinstance(again, Started)
    assert (again.clones, again.checkpoints) == (0, ["m1.2.2"]), (
        "its weights of before are never restored again"
    )


def test_a_checkpoint_whose_step_got_another_one_is_dropped_once_nobody_waits_for_it() -> None:
    desk = cloning()
    desk.report(1, 2)
    desk.save(1, 2)
    desk.end(1)
    desk.begin(1, restored=2)
    (dropped, *_) = [
        event
        for event in desk.save(1, 2, source="m0.1.3")
        if isinstance(event, Dropped) and event.trial == 1
    ]
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
