"""A trial of several ranks reports as one: one value a step, and what one rank does wrong ends all,
with its name.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from regrow.search.events import Began, Reported
from regrow.tasks.attempt import attempt as attempts
from regrow.tasks.group import leader
from regrow.tasks.ports.messages import Progress, Reply
from regrow.tasks.ports.ranks import World
from regrow.tasks.trial import usage_meter
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import outcome, saving, steps
from tests.unit.grouped import Grouping
from tests.unit.office import MakeOffice, Office

Values = dict[int, dict[str, float | None]]


def values(office: Office) -> Values:
    """What was reported, by step; each step once."""
    rows = [row for event in office.events if isinstance(event, Reported) for row in event.rows]
    assert len({row.step for row in rows}) == len(rows)
    return {row.step: row.metrics for row in rows}


def test_all_ranks_train_the_same_trial_and_each_knows_who_it_is(
    make_pair: MakeOffice, group: Grouping
) -> None:
    office = make_pair(resources={"workers": 3})
    seen: dict[int, tuple[World, dict[str, object], int, int]] = {}

    def train(trial: Trial) -> None:
        seen[trial.world.rank] = trial.world, trial.config, trial.seed, trial.width
        for step in trial.steps():
            trial.report({"score": step})

    assert outcome(group(office, train)) == ("done", "", "")
    assert sorted(world.rank for world, *_ in seen.values()) == [0, 1, 2]
    assert {world.size for world, *_ in seen.values()} == {3}
    assert seen[0][1:] == seen[1][1:] == seen[2][1:]
    assert seen[0][3] == 3
    (began,) = [event for event in office.events if isinstance(event, Began)]
    assert (began.node_id, [place.node_id for place in began.others]) == (
        "node-0",
        ["node-0", "node-0"],
    )


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is measured")
def test_what_all_ranks_used_of_their_machines_is_summed(
    make_pair: MakeOffice, group: Grouping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_meter, "SHORTEST_SECONDS", 0.0)
    office = make_pair(resources={"workers": 3})
    finished = group(office, lambda trial: trial.report({"score": 1.0}))
    used = finished.ended.usage
    assert used is not None
    assert used.workers == 3


def test_the_metrics_of_rank_0_count_one_value_a_step(
    make_pair: MakeOffice, group: Grouping
) -> None:
    office = make_pair(max_steps=50)

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": 10.0 * trial.world.rank + step})

    assert outcome(group(office, train)) == ("done", "", "")
    assert values(office) == {step: {"score": step} for step in range(1, 51)}
    assert all(progress.rows == () or progress.attempt == 1 for progress in office.told)


def test_with_a_mean_each_metric_is_that_of_all_ranks_that_report_it(
    make_pair: MakeOffice, group: Grouping
) -> None:
    office = make_pair(resources={"workers": 3, "reduce": "mean"}, max_steps=2)

    def train(trial: Trial) -> None:
        rank = trial.world.rank
        for step in trial.steps():
            own = {"first": 7.0} if rank == 0 else {"other": 1.0}
            trial.report(
                {"score": step + rank, "broken": float("nan") if rank == 1 else 1.0, "two": rank}
                | own
            )

    assert outcome(group(office, train)) == ("done", "", "")
    assert values(office) == {
        s: {"score": s + 1.0, "broken": None, "two": 1.0, "first": 7.0} for s in (1, 2)
    }


def test_all_ranks_go_on_only_when_all_have_reported(
    make_pair: MakeOffice, group: Grouping
) -> None:
    office, order = make_pair(max_steps=3), list[tuple[str, int, int]]()

    def train(trial: Trial) -> None:
        for step in trial.steps():
            order.append(("begins", step, trial.world.rank))
            if trial.world.rank == step % 2:
                time.sleep(0.05)
            order.append(("reports", step, trial.world.rank))
            trial.report({"score": step})

    assert outcome(group(office, train)) == ("done", "", "")
    for step in (1, 2):
        reported = [
            place for place, (what, at, _) in enumerate(order) if (what, at) == ("reports", step)
        ]
        begun = [
            place for place, (what, at, _) in enumerate(order) if (what, at) == ("begins", step + 1)
        ]
        assert max(reported) < min(begun)


def hanging(group: Grouping, rank: int) -> Callable[[Trial], None]:
    """Reports each step; a rank never comes to the report of step 3."""

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if (trial.world.rank, step) == (rank, 3):
                group.ends.wait(20)
            trial.report({"score": step})

    return train


def failed(group: Grouping, office: Office, train: object) -> str:
    """Why an attempt failed, by an error of its training."""
    ended, cause, message = outcome(group(office, train))
    assert (ended, cause) == ("failed", "error")
    return message


def raises(trial: Trial, step: int) -> None:
    raise ValueError("no more")


def leaves_its_metric_out(trial: Trial, step: int) -> None:
    trial.report({"other": step})


def ends_early(trial: Trial, step: int) -> None:
    trial.end()


def skips_a_report(trial: Trial, step: int) -> None:
    pass


def cannot_save(trial: Trial, step: int) -> None:
    def bad(folder: Path) -> None:
        raise OSError("no such disk")

    trial.report({"score": step}, checkpoint=bad)


def saves_a_pipe(trial: Trial, step: int) -> None:
    trial.report({"score": step}, checkpoint=lambda folder: os.mkfifo(folder / "pipe"))


WRONG: dict[Callable[[Trial, int], None], str] = {
    raises: "rank 1, at step 3: ValueError: no more",
    leaves_its_metric_out: "rank 1, at step 3: step 3: the metric 'score' was not reported",
    ends_early: "rank 1 ended after step 2, where rank 0 reports step 3; all ranks report each step",
    skips_a_report: "rank 1, at step 3: step 3 was not reported; call trial.report once a step",
    cannot_save: "rank 1, at step 3: OSError: no such disk",
    saves_a_pipe: "the checkpoint of step 3 cannot be saved: rank 1: 'pipe' is neither a file nor a folder",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_one_rank_does_wrong_ends_all_with_its_name_and_step(
    make_pair: MakeOffice, group: Grouping, wrong: Callable[[Trial, int], None]
) -> None:
    office, ended = make_pair(), list[int]()

    def train(trial: Trial) -> None:
        try:
            for step in trial.steps():
                if (trial.world.rank, step) == (1, 3):
                    wrong(trial, step)
                else:
                    trial.report({"score": step}, checkpoint=saving(step))
        finally:
            ended.append(trial.world.rank)

    found = group(office, train).ended
    assert (found.outcome, found.cause) == ("failed", "error")
    assert found.message.startswith(WRONG[wrong])
    assert (__name__.rpartition(".")[2] in found.trace) == (wrong not in (ends_early, saves_a_pipe))
    assert sorted(ended) == [0, 1]
    assert steps(office) == list(range(1, found.step + 1))


def test_a_rank_that_goes_on_where_rank_0_has_ended_is_named(
    make_pair: MakeOffice, group: Grouping
) -> None:
    office = make_pair()

    def train(trial: Trial) -> None:
        for step in range(1, 4 + trial.world.rank):
            trial.report({"score": step})

    said = "rank 1 reports step 4, where rank 0 has ended after step 3; all ranks report each step"
    assert failed(group, office, train) == said
    assert steps(office) == [1, 2, 3]


def test_what_rank_0_does_wrong_is_said_with_its_name_too(
    make_pair: MakeOffice, group: Grouping
) -> None:
    office = make_pair()

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3 and trial.world.rank == 0:
                raise ValueError("no more")
            trial.report({"score": step})

    said = "rank 0, at step 3: ValueError: no more"
    assert failed(group, office, train) == said
    assert steps(office) == [1, 2]


def test_who_fails_because_another_one_did_is_not_blamed(
    make_pair: MakeOffice, group: Grouping
) -> None:
    """As in a collective call that one rank leaves: the others' connections to it are closed."""
    office, gone = make_pair(), threading.Event()

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3 and trial.world.rank == 0:
                assert gone.wait(10)
                raise ConnectionError("connection closed by peer")
            if step == 3:
                gone.set()
                time.sleep(0.1)
                raise ValueError("the cause")
            trial.report({"score": step})

    said = "rank 1, at step 3: ValueError: the cause"
    assert failed(group, office, train) == said


def test_a_rank_that_never_reports_is_waited_for_only_so_long(
    make_pair: MakeOffice,
    group: Grouping,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(leader, "PATIENCE_SECONDS", 0.3)
    office = make_pair()

    said = "rank 1 did not report step 3 within 0.3 s after rank 0"
    assert failed(group, office, hanging(group, 1)) == said
    assert "What the threads of rank 1 are doing" in caplog.text
    assert "ends.wait(20)" in caplog.text


def test_a_rank_that_hangs_is_named_where_there_is_a_stall_too(
    make_pair: MakeOffice, group: Grouping
) -> None:
    office = make_pair(stall=1)
    assert outcome(group(office, hanging(group, 1))) == (
        "lost",
        "stalled",
        "rank 1 did not report step 3 within 1 s after rank 0",
    )
    assert not group.left.is_set()


def test_where_all_wait_within_their_training_all_say_where(
    make_pair: MakeOffice,
    group: Grouping,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As in a collective operation, which one of them left out: then nobody waits at a report."""
    monkeypatch.setattr(attempts, "_leaving", lambda host: group.ends.set)  # both would be killed
    office = make_pair(stall=1)

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3 and trial.world.rank == 0:
                group.ends.wait(20)  # what rank 1 does not take part in
            elif step == 3:
                group.ends.wait(21)
            trial.report({"score": step})

    group(office, train)
    told = office.history.trials[0].attempts[0]
    assert (told.outcome, told.cause) == ("lost", "stalled")
    assert told.message == "it reported nothing for 1 s: no rank came to its next report"
    assert "What the threads of rank 0 are doing" in caplog.text
    assert "ends.wait(20)" in caplog.text
    assert "What the threads of rank 1 are doing" in caplog.text
    assert "ends.wait(21)" in caplog.text


def test_an_error_that_a_rank_which_ended_early_has_caused_says_so(
    make_pair: MakeOffice, group: Grouping
) -> None:
    office, ended = make_pair(), threading.Event()

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3 and trial.world.rank == 1:
                ended.set()
                return
            if step == 3:
                assert group.leader is not None
                assert ended.wait(10)
                while not group.leader.ended_before(3):
                    time.sleep(0.01)
                raise RuntimeError("Connection closed by peer")
            trial.report({"score": step})

    said = (
        "rank 0, at step 3: RuntimeError: Connection closed by peer (rank 1 had ended after step 2)"
    )
    assert failed(group, office, train) == said


def test_a_rank_that_does_not_end_is_named(
    make_pair: MakeOffice, group: Grouping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "PATIENCE_SECONDS", 0.3)
    office = make_pair()

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step})
        if trial.world.rank == 1:
            group.ends.wait(20)

    said = "rank 1 did not end after step 5 within 0.3 s after rank 0"
    assert failed(group, office, train) == said
    assert steps(office) == [1, 2, 3, 4, 5]


def test_ranks_that_wait_for_rank_0_have_patience_while_that_waits_for_the_coordinator(
    make_pair: MakeOffice, group: Grouping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be away for longer than a rank may hang."""
    monkeypatch.setattr(leader, "PATIENCE_SECONDS", 0.3)
    office = make_pair(
        stall=1, schedule={"asha": {"grace_period": 2, "reduction_factor": 2}}, max_steps=4
    )
    real = office.report

    def slowly(progress: Progress) -> Reply:
        if any(row.step == 2 for row in progress.rows):
            time.sleep(1.5)
        return real(progress)

    office.report = slowly  # type: ignore[method-assign]  # the coordinator restarts

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.report({"score": step}, checkpoint=saving(step))

    assert outcome(group(office, train)) == ("done", "", "")


def test_rank_0_that_hangs_is_named(
    make_pair: MakeOffice, group: Grouping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(leader, "LEAVE_SECONDS", 20.0)
    office = make_pair()

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3 and trial.world.rank == 0:
                assert group.leader is not None
                while group.leader._peers.wrong is None:
                    time.sleep(0.01)
            trial.report({"score": step})

    said = "rank 0 did not report step 3 within 0.3 s after all other ranks"
    assert failed(group, office, train) == said


def test_a_long_step_of_all_ranks_is_no_hang(
    make_pair: MakeOffice, group: Grouping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "PATIENCE_SECONDS", 0.3)
    office, barrier = make_pair(max_steps=2), threading.Barrier(2)

    def train(trial: Trial) -> None:
        for step in trial.steps():
            time.sleep(0.7)
            barrier.wait(10)
            trial.report({"score": step})

    assert outcome(group(office, train)) == ("done", "", "")
