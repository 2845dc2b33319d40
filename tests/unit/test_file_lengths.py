"""How long a file of Python may be: what is longer is about more than one thing, and is divided."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 700


def python_files(root: Path) -> Iterator[Path]:
    """All of a repository but what is in hidden folders; links are not followed, as those in
    regrow/ lead to its own.
    """
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


def too_long(root: Path) -> set[str]:
    """The files with more than MOST_LINES lines."""
    return {
        file.relative_to(root).as_posix()
        for file in python_files(root)
        if len(file.read_bytes().splitlines()) > MOST_LINES
    }


def test_no_file_is_too_long() -> None:
    assert sorted(too_long(ROOT)) == [], "divide them by subject"


def test_a_file_of_one_line_more_is_found(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / "part" / "fits.py").write_text("\n" * MOST_LINES)
    for place in ("part/longer.py", "longest.py", ".venv/no_concern_of_ours.py"):
        (tmp_path / place).write_text("\n" * (MOST_LINES + 1))
    (tmp_path / "link").symlink_to("part")
    assert too_long(tmp_path) == {"part/longer.py", "longest.py"}
