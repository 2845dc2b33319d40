"""Trainables that are classes: set up, stepped, saved, loaded and cleaned up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regrow.search.events import Began, Row, Saved
from regrow.tasks.trial.reporter import Reporter
from tests.unit.attempting import Attempting, steps
from tests.unit.office import MakeOffice
from tests.unit.told import kept


class Model:
    """Counts; done at its third step."""

    made: list[Model] = []  # noqa: RUF012 - of one test at a time
    breaks = False

    def setup(self, config: dict[str, Any]) -> None:
        self.count, self.cleaned = 0, False
        Model.made.append(self)

    def step(self) -> dict[str, Any]:
        self.count += 1
        if self.breaks and self.count == 2:
            raise ValueError("broken")
        return {"score": self.count, "done": self.count == 3}

    def save(self, folder: Path) -> None:
        (folder / "count").write_text(str(self.count))

    def load(self, folder: Path) -> None:
        self.count = int((folder / "count").read_text())

    def cleanup(self) -> None:
        self.cleaned = True


@pytest.fixture(autouse=True)
def _no_models() -> None:
    Model.made.clear()


def test_a_class_that_says_it_is_done_ends_its_trial(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(max_steps=None)
    assert attempt(office, Model).ended.outcome == "done"
    assert steps(office) == [1, 2, 3]
    assert set(kept(office.events)[0][0][1].metrics) == {"score"}
    assert Model.made[0].cleaned


def test_its_last_step_is_saved_though_no_checkpoint_was_due(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(checkpoint={"every_steps": 2})
    attempt(office, Model)
    assert [event.step for event in office.events if isinstance(event, Saved)] == [2, 3]


def test_a_class_is_cleaned_up_after_an_error(make_office: MakeOffice, attempt: Attempting) -> None:
    office = make_office()

    class Broken(Model):
        breaks = True

    ended = attempt(office, Broken).ended
    assert (ended.outcome, ended.cause, ended.message) == ("failed", "error", "ValueError: broken")
    assert Model.made[0].cleaned
    assert steps(office) == [1]


def test_a_class_is_loaded_from_its_checkpoint(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office()

    class Interrupted(Model):
        def step(self) -> dict[str, Any]:
            if self.count == 1:
                office.interrupt()
            return super().step()

    real_add = Reporter.add

    def add(self: Reporter, row: Row, exact: dict[str, Any] | None = None) -> None:
        real_add(self, row, exact)
        self.flush()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Reporter, "add", add)
        assert attempt(office, Interrupted).ended.outcome == "paused"
    office.open("driver-2")
    assert attempt(office, Model).ended.outcome == "done"
    assert steps(office) == [1, 2, 3]
    assert [e.restored for e in office.events if isinstance(e, Began)] == [0, 2]
