"""A better checkpoint as a canary: for how long, what refuses it, and what stays as it was then."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from regrow.apps.serving import canary_rollout
from regrow.apps.serving.canary_rollout import CanaryRollout
from regrow.apps.serving.messages import Chosen, Refused, Role
from regrow.apps.serving.status import ServingStatus, read
from regrow.search.rollout import Canary, RequestCounts, fails_more
from tests.unit.answering import chosen


class Serving:
    """Notes what it is told; how its models do is said by the test."""

    def __init__(self, *looks: dict[Role, RequestCounts], losses: int = 0) -> None:
        self.looks, self.told = list(looks), list[str]()
        self.lost = losses

    def offer(self, chosen: Chosen) -> Refused | None:
        self.told.append(f"{chosen.role} {chosen.trial}")
        return None

    def withdraw(self, role: Role) -> None:
        self.told.append(f"no {role}")

    def tallies(self) -> dict[Role, RequestCounts]:
        return self.looks.pop(0) if self.looks else {}

    @property
    def losses(self) -> int:
        self.told.append("losses")
        return self.lost if self.told.count("losses") > 1 else 0


def offered(
    serving: Serving, folder: Path, seconds: float = 0.05
) -> tuple[Refused | None, list[str]]:
    """What becomes of a second checkpoint."""
    canary = Canary(share=0.1, seconds=seconds)
    replicas: Any = serving
    found = CanaryRollout(replicas, canary, ServingStatus(folder / "state.json"), threading.Event())
    assert found.offer(chosen(0)) is None
    assert serving.told == ["main 0"], "the first one answers everybody at once"
    refused = found.offer(chosen(1))
    assert read(folder / "state.json").canary is None
    return refused, [line for line in serving.told[1:] if line != "losses"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary_rollout, "LOOK_SECONDS", 0.01)


def test_a_canary_that_does_as_well_takes_over_after_its_time(tmp_path: Path) -> None:
    fine: dict[Role, RequestCounts] = {
        "main": RequestCounts(answered=90, failed=9),
        "canary": RequestCounts(answered=10, failed=1),
    }
    assert offered(Serving(fine, fine, fine), tmp_path) == (
        None,
        ["canary 1", "main 1", "no canary"],
    )


def test_one_that_fails_more_often_is_refused_before_its_time(tmp_path: Path) -> None:
    early: dict[Role, RequestCounts] = {
        "main": RequestCounts(answered=9),
        "canary": RequestCounts(answered=1, failed=1),
    }
    later: dict[Role, RequestCounts] = {
        "main": RequestCounts(answered=90),
        "canary": RequestCounts(answered=10, failed=4),
    }
    refused, told = offered(Serving(early, later), tmp_path, seconds=600)
    assert refused == Refused(
        manifest="manifests/1",
        why="as a canary it failed 4 of 10 requests, the others 0 of 90 requests",
    )
    assert told == ["canary 1", "no canary"]


def test_one_with_which_a_process_ended_is_refused(tmp_path: Path) -> None:
    refused, told = offered(Serving(losses=1), tmp_path, seconds=600)
    assert refused == Refused(
        manifest="manifests/1", why="a process that answered with it, as a canary, ended"
    )
    assert told == ["canary 1", "no canary"]


@pytest.mark.parametrize(
    ("canary", "others", "worse"),
    [
        ((0, 0), (0, 0), False),
        ((1, 1), (9, 0), False),
        ((10, 2), (90, 0), False),
        ((10, 3), (90, 0), True),
        ((5, 5), (45, 0), True),
        ((100, 10), (900, 90), False),
        ((100, 30), (900, 90), True),
        ((10, 10), (90, 90), False),
        ((100_000, 1_200), (900_000, 9_000), True),
        ((100_000, 1_020), (900_000, 9_000), False),
        ((10, 0), (90, 90), False),
        ((3, 3), (0, 0), False),
    ],
)
def test_failures_count_against_a_canary_where_the_others_have_fewer_beyond_chance(
    canary: tuple[int, int], others: tuple[int, int], *, worse: bool
) -> None:
    one, rest = (
        RequestCounts(answered=answered, failed=failed) for answered, failed in (canary, others)
    )
    assert fails_more(one, rest) == worse
