"""The table of CONTRIBUTING.md that tells a stranger what to read: its files are there, and there
is no more to read than it says.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from regrow.search import samplers, schedulers

ROOT = Path(__file__).resolve().parents[2]
SECTION = (
    (ROOT / "CONTRIBUTING.md").read_text().split("## Where to add things")[1].split("\n## ")[0]
)
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in SECTION.splitlines()
    if line.startswith("| a")
]
SHORT = ("a scheduler", "a sampler", "a store for the state", "a command", "a training framework")
"""What many add, and may not need much reading."""


def paths(text: str) -> list[Path]:
    """The files and folders that a text names."""
    return [ROOT / name for name in re.findall(r"`([\w./-]+/[\w./-]*)`", text)]


def test_the_table_has_what_people_add() -> None:
    subjects = "\n".join(row[0] for row in ROWS)
    assert [
        word
        for word in ("scheduler", "sampler", "store", "command", "MLflow", "cloud", "framework")
        if word not in subjects
    ] == []


@pytest.mark.parametrize(("subject", "read", "lines", "edit"), ROWS, ids=[row[0] for row in ROWS])
def test_the_files_are_there_and_as_short_as_it_says(
    subject: str, read: str, lines: str, edit: str
) -> None:
    assert [path for path in paths(read + edit) if not path.exists()] == []
    files = paths(read)
    assert files
    assert paths(edit)
    counted = sum(len(path.read_text().splitlines()) for path in files)
    assert 0.8 <= counted / int(lines) <= 1.2, f"{subject}: {counted} lines"
    assert counted < 500 or subject not in SHORT


def test_each_sampler_and_scheduler_is_described_where_users_choose_one() -> None:
    page = (ROOT / "docs/algorithms.md").read_text()
    described = set(re.findall(r"^### (\w+)", page, re.MULTILINE))
    assert {*samplers.NAMES, *schedulers.NAMES} - {"define_by_run"} <= described
