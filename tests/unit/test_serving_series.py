"""`regrow serve NAME` of a schedule: which of its experiments is served, and when a newer one takes
its place.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Literal

import pytest

from regrow.apps.serving.messages import Chosen
from regrow.apps.serving.series import ExperimentSeries
from regrow.apps.serving.serve import serve
from regrow.infra.state.places import Places
from regrow.search.events import Closed
from regrow.search.rollout import Canary, Gate
from regrow.tasks.errors import UserError
from tests.unit.kept import Kept
from tests.unit.test_serving_choice import Taking
from tests.unit.test_serving_class import asked

NEVER = threading.Event()


class Nights:
    """Experiments of the schedule `night`, and what was offered of each."""

    def __init__(self, folder: Path, gate: str = "") -> None:
        self.places = Places.at(str(folder / "state"))
        (folder / "served").mkdir()
        self.taking = Named()
        self.series = ExperimentSeries(
            name="night",
            places=self.places,
            replicas=self.taking,
            scratch=folder / "served",
            gate=Gate.parse(gate, "--gate") if gate else None,
        )

    def begin(self, day: int) -> Kept:
        name = f"night-2026-11-{day:02}T04"
        return Kept(self.places.store(name), name=name)

    def poll(self) -> list[tuple[str, int]]:
        self.series.poll(NEVER)
        return self.taking.named


class Named(Taking):
    """Taking, with the experiment's day."""

    def __init__(self) -> None:
        super().__init__()
        self.named: list[tuple[str, int]] = []

    def offer(self, chosen: Chosen) -> None:
        super().offer(chosen)
        self.named.append((chosen.experiment.removeprefix("night-2026-11-"), chosen.trial))


def end(kept: Kept, status: Literal["finished", "failed"] = "finished") -> None:
    for number in list(kept.history.running):
        kept.end(number)
    kept.say(Closed(t=time.time(), status=status))


def test_without_a_gate_the_newest_that_has_ended_with_a_checkpoint_is_served(
    tmp_path: Path,
) -> None:
    nights = Nights(tmp_path)
    first = nights.begin(1)
    first.best(0.9)
    assert nights.poll() == []
    end(first)
    second = nights.begin(2)
    second.best(0.5)
    assert nights.poll() == [("01T04", 0)]
    second.best(0.6)
    end(second)
    end(nights.begin(3))  # nothing was saved
    fourth = nights.begin(4)
    fourth.best(0.9)
    end(fourth, "failed")  # it may be resumed
    assert nights.poll() == [("01T04", 0), ("02T04", 1)]
    assert nights.poll() == [("01T04", 0), ("02T04", 1)]


def test_with_a_gate_one_that_runs_takes_over_with_its_first_checkpoint_that_passes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nights = Nights(tmp_path, "score > 0.5")
    first, second = nights.begin(1), nights.begin(2)
    first.best(0.9)
    second.best(0.4)
    with caplog.at_level("INFO", logger="regrow.apps.serving"):
        assert nights.poll() == [("01T04", 0)]
        second.best(0.6)
        first.best(0.99)  # too late: a newer one is served
        assert nights.poll() == [("01T04", 0), ("02T04", 1)]
        second.best(0.55)
        second.best(0.7)
        assert nights.poll()[2:] == [("02T04", 3)]
    said = caplog.messages
    assert "night-2026-11-02T04 is served, in place of night-2026-11-01T04" in said
    assert "the gate score > 0.5 turned away trial 0, step 1, score 0.4" in said


def test_what_was_removed_is_served_on_until_a_newer_one_is_fit(tmp_path: Path) -> None:
    nights = Nights(tmp_path, "score > 0.5")
    first = nights.begin(1)
    first.best(0.9)
    nights.poll()
    first.store.delete(first.store.list(""))
    nights.poll()
    assert nights.series.current is not None
    assert (Path(nights.series.current.serving["main"].folder) / "model.json").is_file()
    nights.begin(2).best(0.6)
    assert nights.poll() == [("01T04", 0), ("02T04", 0)]


def test_files_of_the_last_two_experiments_are_kept(tmp_path: Path) -> None:
    nights = Nights(tmp_path, "score > 0.5")
    for day in (1, 2, 3):
        nights.begin(day).best(0.9)
        nights.poll()
    assert sorted(folder.name for folder in nights.series.scratch.iterdir()) == [
        "night-2026-11-02T04",
        "night-2026-11-03T04",
    ]


def test_nothing_fit_is_told_in_a_line(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.begin(1).best(0.9)
    with pytest.raises(
        UserError,
        match=r"^nothing to serve: no experiment of 'night' has ended with a checkpoint; --follow waits",
    ):
        nights.series.once(NEVER)


def test_a_schedule_has_no_trial_for_a_canary(tmp_path: Path) -> None:
    nights = Nights(tmp_path)
    nights.begin(1)
    canary = Canary(trial=3, share=0.1)
    wanted = dataclasses.replace(asked("night"), follow=True, canary=canary)
    with pytest.raises(
        UserError, match=r"^--canary: 'night' is a schedule; name one of its experiments"
    ):
        serve(nights.places, wanted)
