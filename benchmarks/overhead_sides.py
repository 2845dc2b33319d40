"""The two sides of `overhead.py`: an experiment by the `regrow` command, and the same one by Ray
Tune.

Each runs in a process of its own, in a folder of its own with an empty home, and nothing of it is
left when it is done. What is measured, and what is made of it, is in `overhead.py`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from regrow.infra.log.reading import read_events
from regrow.infra.state.places import Places
from regrow.search.events import AnyEvent, Began, Closed, Ended, Opened, Reported

MARK = "REGROW_BENCH"
LIMIT_SECONDS = 600
"""No single experiment takes longer, not even Ray Tune's on a busy machine."""

TRAIN = """
import os
import sys
import time
from pathlib import Path

FOLDER = Path({folder!r})
FIRST = FOLDER / "first-report"
(FOLDER / f"code-{{os.getpid()}}").write_text(sys.modules["regrow"].__path__[0])


def train(trial):
    for _ in trial.steps():
        if {seconds}:
            time.sleep({seconds})
        trial.report({{"score": trial.config["x"]}})
        if not FIRST.exists():
            FIRST.write_text(str(time.time()))
    (FOLDER / "last-report").write_text(str(time.time()))
"""
"""Each process that imports it writes down whose regrow it has, as `code-PID`."""

Watcher = Callable[["subprocess.Popen[bytes]"], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """An experiment: so many trials of so many reports on two slots; `seconds` of sleep before each
    report.
    """

    trials: int
    reports: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """How long it took, in seconds."""

    typed: float
    """When the command was typed, in seconds since the epoch."""
    process: float
    """From the typed command to the prompt."""
    first_report: float
    """From the typed command to the user's first report."""
    last_report: float
    """From the end of the last trial's function to the prompt."""
    cpu: float
    """What the process and those of its children that it waited for used."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds by name, which differ between the sides."""


class Sandbox:
    """A folder with an empty home, from which experiments are started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.path = os.environ.get("PYTHONPATH", "")
        """PYTHONPATH of what is started here: another version than the installed one is measured by
        it.
        """
        self.prefix: list[str] = []
        """Words before each command."""

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the developer's own, so both sides meet what a new user meets."""
        return {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "COLUMNS": "160",
            MARK: str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "DO_NOT_TRACK": "1",
            "PYTHONPATH": self.path,
        }

    def time(
        self, command: list[str], watch: Watcher | None = None, *, work_in: Path | None = None
    ) -> Session:
        """Runs a command to its end; the trainable lies in `work_in`, if not here. Raises
        RuntimeError if it fails.
        """
        notes = work_in or self.folder
        for old in (*notes.glob("*-report"), *notes.glob("code-*")):
            old.unlink()
        with (self.folder / "said").open("wb") as said:
            typed = time.time()
            process = subprocess.Popen(
                [*self.prefix, *command],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
            limit = threading.Timer(LIMIT_SECONDS, process.kill)
            limit.start()
            if watch is not None:
                watch(process)
            _, status, usage = os.wait4(process.pid, 0)
            ended = time.time()
            limit.cancel()
            code = process.returncode = os.waitstatus_to_exitcode(status)
        if code:
            raise RuntimeError(
                f"{command} ended with {code}:\n{(self.folder / 'said').read_text()[-4000:]}"
            )
        first, last = (_stamp(notes / name) for name in ("first-report", "last-report"))
        return Session(
            typed=typed,
            process=ended - typed,
            first_report=first - typed,
            last_report=ended - last,
            cpu=usage.ru_utime + usage.ru_stime,
        )

    def processes(self) -> list[int]:
        """Those that were started from here and still run."""
        return [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_mine(pid)
        ]

    def sweep(self, seconds: float = 10.0) -> None:
        """Waits until nothing of it runs any more, then kills what still does."""
        deadline = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            os.kill(pid, signal.SIGKILL)

    def _is_mine(self, pid: int) -> bool:
        try:
            return f"{MARK}={self.folder}".encode() in Path(
                f"/proc/{pid}/environ"
            ).read_bytes().split(b"\0")
        except OSError:
            return False


def _stamp(file: Path) -> float:
    """The time that a trainable has written; not a number where it never came to that."""
    return float(file.read_text()) if file.exists() else float("nan")


@contextmanager
def sandbox() -> Iterator[Sandbox]:
    """A fresh sandbox; what was started from it and all that it wrote is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="regrow-bench-"))
    box = Sandbox(folder)
    try:
        yield box
    finally:
        box.sweep()
        shutil.rmtree(folder, ignore_errors=True)


def write_spec(folder: Path, work: Work, **changes: Any) -> dict[str, Any]:
    """Writes the trainable and the specification of our side, and returns the specification."""
    (folder / "work.py").write_text(TRAIN.format(folder=str(folder), seconds=work.seconds))
    spec = {
        "name": "bench",
        "trainable": "work.py:train",
        "metric": "score",
        "mode": "max",
        "space": {"x": {"uniform": [0, 1]}},
        "search": "random",
        "trials": work.trials,
        "max_steps": work.reports,
        "concurrency": 2,
        **changes,
    }
    (folder / "bench.yaml").write_text(json.dumps(spec))  # JSON is YAML
    return spec


def ours(box: Sandbox, work: Work, watch: Watcher | None = None) -> Session:
    """`regrow run`, then a look at the log, MLflow and Prefect: everything must be in all three."""
    state = box.folder / "state"
    shutil.rmtree(state, ignore_errors=True)
    write_spec(box.folder, work)
    box.sweep()
    session = box.time(
        [sys.executable, "-m", "regrow", "run", "bench.yaml", "--quiet", "--state", str(state)],
        watch,
    )
    events = read_events(Places.at(str(state)).store("bench"))
    check(state, events, work)
    return replace(session, parts=parts(events, session))


def parts(events: list[AnyEvent], session: Session) -> dict[str, float]:
    """Where the last session's time went, from its own log."""
    opened = max(e.t for e in events if isinstance(e, Opened))
    began = min(e.t for e in events if isinstance(e, Began) and e.t >= opened)
    ended = max(e.t for e in events if isinstance(e, Ended | Closed))
    return {
        "start": opened - session.typed,
        "to first trial": began - opened,
        "trials": ended - began,
        "end": session.typed + session.process - ended,
        "experiment": session.typed + session.process - opened,
    }


def check(state: Path, events: list[AnyEvent], work: Work) -> None:
    """Raises AssertionError unless log, MLflow and Prefect hold all trials and all points."""
    points = work.trials * work.reports
    assert sum(len(e.rows) for e in events if isinstance(e, Reported)) == points
    mlflow, prefect = (
        state / ".services" / "mlflow.db",
        state / ".services" / "prefect" / "prefect.db",
    )
    assert _rows(mlflow, "select count(*) from runs where lifecycle_stage = 'active'") == {
        (work.trials + 1,)
    }
    # Beside them stand the best so far, and each machine's use where a trial lasts for a while.
    theirs = "select count(*) from metrics where key not glob 'best_*' and key not glob 'system/*'"
    assert _rows(mlflow, theirs) == {(points,)}
    assert _rows(mlflow, "select count(*) from runs where status <> 'FINISHED'") == {(0,)}
    carriers = {str(e.task_run) for e in events if isinstance(e, Began)}
    completed = {
        str(UUID(run))
        for (run,) in _rows(prefect, "select id from task_run where state_type = 'COMPLETED'")
    }
    assert carriers <= completed, (
        f"{len(carriers - completed)} of {len(carriers)} task runs have not ended in Prefect"
    )
    flow_runs = _rows(prefect, "select state_type from flow_run")
    assert flow_runs == {("COMPLETED",)}, flow_runs


def _rows(database: Path, query: str) -> set[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return set(connection.execute(query).fetchall())


def tune(box: Sandbox, work: Work, watch: Watcher | None = None) -> Session:
    """Ray Tune's run of the same work."""
    shutil.rmtree(box.folder / "storage", ignore_errors=True)
    script = Path(__file__).with_name("overhead_tune.py")
    command = [
        sys.executable,
        str(script),
        str(work.trials),
        str(work.reports),
        str(work.seconds),
        str(box.folder),
    ]
    box.sweep()  # what the command before may have left must not cost this one anything
    session = box.time(command, watch)
    times = json.loads((box.folder / "times.json").read_text())
    assert times.pop("trials") == work.trials
    assert times.pop("rows") == work.trials * work.reports
    return replace(session, parts=times)
