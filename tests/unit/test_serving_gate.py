"""`regrow serve --gate`: what it lets through, what it says of the rest, and how it is written."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from regrow.apps.serving import following as module
from regrow.apps.serving.following import Following
from regrow.search.errors import SpecError
from regrow.search.rollout import Gate
from regrow.tasks.errors import UserError
from tests.memory_store import MemoryStore
from tests.unit.answering import Answering
from tests.unit.kept import Kept
from tests.unit.test_serving_choice import Taking, following

NEVER = threading.Event()


@pytest.fixture
def kept() -> Kept:
    return Kept(MemoryStore())


def gated(kept: Kept, tmp_path: Path, gate: str, taking: Taking | None = None) -> Following:
    return following(kept, tmp_path, taking or Taking(), gate=Gate.parse(gate, "--gate"))


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("accuracy > 0.98", [("accuracy", ">", 0.98)]),
        ("accuracy>=.9 and  val/loss < 1e-3", [("accuracy", ">=", 0.9), ("val/loss", "<", 1e-3)]),
        ("a <= -1, b > 2", [("a", "<=", -1.0), ("b", ">", 2.0)]),
        ("top 5 > 1", [("top 5", ">", 1.0)]),
    ],
)
def test_a_gate_is_conditions_joined_by_and_or_commas(
    text: str, conditions: list[tuple[str, str, float]]
) -> None:
    assert [
        (one.metric, one.sign, one.bound) for one in Gate.parse(text, "--gate").conditions
    ] == conditions


@pytest.mark.parametrize(
    "text",
    ["", "accuracy", "accuracy > high", "a > 1 and", "a > 1 or b > 2", "0.5 < a < 1", "a == 1"],
)
def test_what_is_no_gate_is_told_in_a_line(text: str) -> None:
    with pytest.raises(
        SpecError, match=r'^--gate: ".*": is no condition on a metric; write METRIC > NUMBER'
    ):
        Gate.parse(text, "--gate")


def test_only_what_meets_the_gate_at_its_own_step_is_served(
    kept: Kept, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taking = Taking()
    found = gated(kept, tmp_path, "score > 0.5 and seconds < 1", taking)
    trial = kept.trial()
    for score, seconds in ((0.4, 0.5), (0.9, 2.0), (0.6, 0.5), (0.5, 0.1)):
        # `seconds` is no metric that the experiment's decisions look at
        kept.report(trial, score, seconds=seconds)
        kept.save(trial)
        kept.report(trial, 0.1)  # so that the checkpoint's row is not the last one
    with caplog.at_level("INFO", logger="regrow.apps.serving"):
        found.once(NEVER)
        found.settle(NEVER)
    assert taking.offered == [("main", trial, 5)]
    assert caplog.messages == [
        "the gate score > 0.5 and seconds < 1 turned away trial 0, step 3, score 0.9, seconds 2",
        "serving trial 0, step 5, score 0.6",
    ]


def test_a_metric_that_was_not_reported_at_the_step_does_not_meet_it(
    kept: Kept, tmp_path: Path
) -> None:
    kept.report(kept.trial(), 0.1, seconds=0.5)
    kept.save(0, 0.9)
    with pytest.raises(
        UserError,
        match=r"^nothing to serve: no trial of 'kept' has a checkpoint that meets seconds < 1$",
    ):
        gated(kept, tmp_path, "seconds < 1").once(NEVER)


def test_a_metric_that_nobody_reports_is_told_at_once(kept: Kept, tmp_path: Path) -> None:
    kept.best(0.9)
    with pytest.raises(UserError, match=r"^--gate: no trial reports 'acc'; there are score$"):
        gated(kept, tmp_path, "acc > 0.5").once(NEVER)


def test_who_follows_waits_for_a_metric_until_a_trial_is_done_without_it(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", (0.01, 0.01))
    raised: list[BaseException] = []
    found, stop = gated(kept, tmp_path, "acc > 0.5"), threading.Event()

    def follow() -> None:
        try:
            found.follow(stop, metered=False)
        except UserError as error:
            raised.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    kept.best(0.9)
    thread.join(0.3)
    assert thread.is_alive()
    kept.end(0)
    thread.join(10)
    stop.set()
    assert [str(error) for error in raised] == ["--gate: no trial reports 'acc'; there are score"]


def test_the_version_has_the_gate() -> None:
    answering = Answering()
    answering.answers.gate = "score > 0.5"
    assert answering.get("/version").json()["gate"] == "score > 0.5"
