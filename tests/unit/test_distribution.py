"""The order in which files of tests are dealt to processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.distribution import LONG, pytest_collection_modifyitems

ROOT = Path(__file__).parents[1]


def test_long_files_of_the_system_tests_come_first_and_all_others_keep_their_order() -> None:
    files = [
        *sorted((ROOT / "unit").glob("test_*.py")),
        *sorted((ROOT / "system").glob("test_*.py")),
    ]
    items: list[Any] = [SimpleNamespace(path=path) for path in files]
    pytest_collection_modifyitems(items)
    ordered = [item.path for item in items]
    units = sum(path.parent.name == "unit" for path in files)
    assert ordered[:units] == files[:units]
    assert [path.name for path in ordered[units : units + len(LONG)]] == list(LONG)
    assert ordered[units + len(LONG) :] == [f for f in files[units:] if f.name not in LONG]
