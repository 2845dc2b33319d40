"""State roots that earlier versions have made, as archives: `states-VERSION.tar.gz`, packed by
`make_states.py`.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

STATES = {
    path.name.removeprefix("states-").removesuffix(".tar.gz"): path
    for path in Path(__file__).parent.glob("states-*.tar.gz")
}
"""Archives by the version that made them."""

KINDS = ("finished", "asha", "pbt", "paused", "failed", "killed", "command")
"""The experiments in each."""

SAID = {
    "show.json": ("show", "--json"),
    "best.json": ("best", "--json"),
    "trials.jsonl": ("trials", "--json"),
    "history.jsonl": ("trials", "--history", "--json"),
}
"""What was asked of each, by the file that the answer is in: a command and its options, the name
after the first.
"""


def unpack(version: str, folder: Path) -> None:
    """Lays an archive's `work/`, `state/` and `said/` into a folder."""
    with tarfile.open(STATES[version]) as tar:
        tar.extractall(folder)  # its own files; Python before 3.11.4 has no filters
