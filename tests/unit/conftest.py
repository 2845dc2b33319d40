"""The fixtures that several files ask for, and quick collection.

No garbage is collected while the libraries that the tests need are imported: those make millions of
objects that stay. Looking for garbage among them took 3 s of the 10 s until the first test began,
and a tenth of the time of the tests; so what is there by then is not looked at again.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path

import pytest

from regrow.infra.state.places import Places
from tests.unit.attempting import attempt, make_office
from tests.unit.exported import unfinished_history, unfinished_root
from tests.unit.figured import histories
from tests.unit.grouped import group, make_pair
from tests.unit.programs import programs
from tests.unit.refusing import refused
from tests.unit.works import works

__all__ = [
    "attempt",
    "group",
    "histories",
    "make_office",
    "make_pair",
    "programs",
    "refused",
    "unfinished_history",
    "unfinished_root",
    "works",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Around the import of all tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A state root that nobody has written to."""
    return Places.at(str(tmp_path / "state"))
