"""A trainable of several ranks, without torch: each has a share of what was done, and only all
shares together are a state.

A test copies this file beside its specification, so nothing of the tests is imported here. A score
is an exact function of all steps up to its own, and of who did them: one that was lost or doubled
shows. Where it runs and how far it may go stand in files of the folder $SHARES, which all nodes
see: a trial does the steps up to the number in `until-TRIAL`, and waits before the next one.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

Done = tuple[int, int, float]
"""A step, the trial that did it, and what it added to the score."""


def added(step: int, trial: int, x: float) -> float:
    """What a trial with the parameter `x` adds by a step."""
    return step * (x + trial)


def share_of(rank: int, size: int, done: list[Done]) -> list[Done]:
    """What a rank keeps of all that was done."""
    return [one for one in done if one[0] % size == rank]


def content(step: int, share: list[Done]) -> str:
    """A rank's file in a checkpoint."""
    return json.dumps({"step": step, "share": share})


def read(folder: Path) -> tuple[int, list[Done]]:
    """The step of a checkpoint and what was done until then. Raises ValueError unless all ranks'
    files are there, of one step, and each step is in them once.
    """
    files = [json.loads(file.read_text()) for file in sorted(folder.glob("rank-*.json"))]
    steps, done = (
        {file["step"] for file in files},
        sorted((*one,) for file in files for one in file["share"]),
    )
    if len(steps) != 1 or [one[0] for one in done] != list(range(1, max(steps) + 1)):
        raise ValueError(
            f"files of the steps {sorted(steps)}, which hold the steps {[one[0] for one in done]}"
        )
    return steps.pop(), done


def train(trial: Any) -> None:
    """The mean over all ranks of their own sums, times their number, is the sum of all steps."""
    rank, size, diary = trial.world.rank, trial.world.size, Path(os.environ["SHARES"])
    mine = share_of(rank, size, read(trial.restored)[1] if trial.restored else [])
    for step in trial.steps():
        while step > int((diary / f"until-{trial.number}").read_text()):
            time.sleep(0.005)
        if step % size == rank:
            mine.append((step, trial.number, added(step, trial.number, trial.config["x"])))
        (diary / f"at-{trial.number}-{trial.attempt}-{rank}").write_text(f"{os.getpid()} {step}")

        def save(folder: Path, step: int = step) -> None:
            (folder / f"rank-{rank}.json").write_text(content(step, mine))

        trial.report(
            {"score": size * sum(one[2] for one in mine), "workers": size}, checkpoint=save
        )
