"""The same with real processes and real files: a process dies by SIGKILL in the middle, another one
continues.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from regrow.infra.stores.local import LocalStore
from tests.faults import cuts, tally
from tests.faults.scenarios import SEED, go_on, whole

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["asha, tpe", "fifo, random, 2 slots"])
def test_it_grows_back_after_a_process_was_killed(name: str, tmp_path: Path) -> None:
    sample = random.Random(SEED).sample(whole(name).tape, 16)
    dying = subprocess.run(
        [sys.executable, "-m", "tests.faults.doomed", name, str(tmp_path)], input="\n".join(str(t.number) for t in sample),
        stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=200, check=True,
    )  # fmt: skip
    assert dying.stdout.split("\n")[:-1] == [str(t.number) for t in sample]
    for transition in sample:
        tally.cut("by SIGKILL", name, transition.number, transition.kind)
        store = LocalStore(tmp_path / str(transition.number))
        with cuts.told(f"a process was killed at {transition}"):
            go_on(name, store, seed=transition.number)
