"""Experiments whose trials are groups of workers (`shares.py`), as a test drives them: how far they
may go, and which process is which rank. No test lives here.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tests.system import shares
from tests.system.conftest import Desk, running

T = TypeVar("T")
PAIR = {"cpu": 1, "workers": 2, "reduce": "mean"}
END = 1_000_000
"""As far as it goes."""


def write(desk: Desk, name: str, **changes: Any) -> Path:
    """The specification of an experiment of groups, whose trials may not begin their first step
    yet.
    """
    spec: dict[str, Any] = {
        "space": {"x": {"uniform": [0, 10]}},
        "points": [{"x": 3.0}],
        "trials": 1,
        "concurrency": None,
        "resources": PAIR,
        "env": {"SHARES": str(desk.folder)},
        "checkpoint": {"every_steps": 1, "keep_last": 2},
        "retries": {"preempted": "unlimited", "infrastructure": "unlimited", "error": 0},
        **changes,
    }
    for trial in range(spec["trials"]):
        until(desk, 0, trial)
    return desk.write(name, train=Path(shares.__file__).read_text(), **spec)


def until(desk: Desk, step: int, trial: int = 0) -> None:
    """Lets a trial do its steps up to this one."""
    fresh = desk.folder / "until.new"
    fresh.write_text(str(step))
    fresh.rename(desk.folder / f"until-{trial}")


def events(desk: Desk, name: str, kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Those of a kind that are in the log by now, with these values; none while it is being
    written.
    """
    with suppress(OSError, json.JSONDecodeError):
        return [e for e in desk.events(name) if e["event"] == kind and fields.items() <= e.items()]
    return []


def event(
    desk: Desk, process: subprocess.Popen[str], name: str, kind: str, **fields: Any
) -> dict[str, Any]:
    """The first such event, once it is in the log."""
    return wait(process, lambda: events(desk, name, kind, **fields), f"{kind} {fields}")[0]


def wait(
    process: subprocess.Popen[str], what: Callable[[], T], name: str, seconds: float = 120.0
) -> T:
    """What the condition gives, once it is true. Fails where the experiment ends before."""
    began = time.monotonic()
    while not (found := what()):
        assert process.poll() is None, f"it ended before: {name}\n{process.communicate()[0]}"
        assert time.monotonic() - began < seconds, f"not within {seconds:.0f} s: {name}"
        time.sleep(0.02)
    return found


def ranks(desk: Desk, trial: int = 0) -> dict[int, int]:
    """The processes of a trial's ranks, by rank."""
    titles = {
        f"ray::trial-{trial:04d}": 0,
        **{f"ray::trial-{trial:04d}-rank-{rank}": rank for rank in (1, 2)},
    }
    found = running(desk.folder, f"ray::trial-{trial:04d}")
    return {titles[words[0]]: process for process, words in found.items() if words[0] in titles}


def alive(pid: int) -> bool:
    """Whether a process runs, or is stopped; one that is dead and was not waited for has no command
    line.
    """
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    return False


def at(desk: Desk, trial: int, attempt: int, rank: int) -> tuple[int, int]:
    """The process of a rank and the step that it does; (0, 0) before its first."""
    with suppress(OSError, ValueError):
        process, step = (desk.folder / f"at-{trial}-{attempt}-{rank}").read_text().split()
        return int(process), int(step)
    return 0, 0


def scores(x: float, steps: int) -> list[float]:
    """Those of a trial 0 that did all its steps itself."""
    done = [shares.added(step, 0, x) for step in range(1, steps + 1)]
    return [sum(done[:step]) for step in range(1, steps + 1)]
