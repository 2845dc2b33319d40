"""The experiment's log: events a second, a replay of a million reports, objects left behind after a
day.

    python benchmarks/log.py --json log.json

Beside each: Optuna's JournalStorage (file backend) doing the same work in the same run, smaller
where it would take hours, as it keeps what a study is in a journal as well. Ray Tune has no log: it
overwrites a snapshot.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regrow.infra.log.log import Log
from regrow.infra.log.segments import PREFIX
from regrow.infra.stores.local import LocalStore
from regrow.search.events import (
    AnyEvent,
    Began,
    Created,
    Ended,
    Opened,
    Proposed,
    Reported,
    Row,
    Started,
    encode,
)
from tests.memory_store import MemoryStore

SPEC = {
    "name": "log",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "space": {"x": {"uniform": [0, 1]}},
    "search": "random",
    "schedule": "fifo",
    "trials": 1,
}
BATCH = 100
"""Rows of a report event: what an attempt sends in one message at some hundred steps a second."""


def experiment(trials: int, steps: int) -> list[bytes]:
    """The lines of an experiment's log."""
    events: list[AnyEvent] = [
        Created(t=0.0, id="00000000-0000-0000-0000-000000000000", spec={**SPEC, "trials": trials}),
        Opened(t=0.0, by="driver", driver="bench", slots=1, trials=trials),
    ]
    for trial in range(trials):
        lease: dict[str, Any] = {"trial": trial, "attempt": 1}
        events += [
            Proposed(t=1.0, trial=trial, config={"x": 0.5}),
            Started(t=1.0, **lease),
            Began(t=1.0, **lease, node="n"),
        ]
        for first in range(1, steps + 1, BATCH):
            last = min(first + BATCH, steps + 1)
            rows = [
                Row(s, 1.0 + s, {"score": 0.001 * s, "loss": 1.0 / s}) for s in range(first, last)
            ]
            events.append(Reported(t=2.0, **lease, rows=rows))
        events.append(Ended(t=3.0, **lease, outcome="done", step=steps))
    return [encode(event) for event in events]


def write(log: Log, lines: list[bytes], a_segment: int) -> None:
    """Append the lines, `a_segment` at a time, compacting as the coordinator does."""
    for number, first in enumerate(range(0, len(lines), a_segment), start=1):
        log.append(lines[first : first + a_segment])
        if number % 128 == 0:
            log.compact()


def durable_events(count: int) -> dict[str, float]:
    """Events a second that are durable on the local disk: one by one, and in groups of 100 as many
    attempts make them.
    """
    line = encode(Reported(t=1.0, trial=0, attempt=1, rows=[Row(1, 1.0, {"score": 0.5})]))
    rates = {}
    for name, group in (("one at a time", 1), ("in groups of 100", 100)):
        with tempfile.TemporaryDirectory() as folder:
            log = Log.open(LocalStore(Path(folder)))
            log.claim([line])
            seconds = timed(lambda log=log, group=group: write(log, [line] * count, group))  # type: ignore[misc]
            rates[name] = count / seconds
    return rates


def optuna_events(count: int) -> float:
    """Reports a second into Optuna's journal file."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        study = journal_study(Path(folder, "journal"))
        trial = study.ask()
        return count / timed(lambda: [trial.report(0.5, step) for step in range(count)])


def journal_study(file: Path) -> Any:
    """A study in a journal file."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(file))), study_name="s", load_if_exists=True
    )


REPLAY = """
import sys, time, resource
from pathlib import Path
start = time.perf_counter()
if sys.argv[1] == "ours":
    from regrow.infra.log.reading import replay
    from regrow.infra.stores.local import LocalStore
    history = replay(LocalStore(Path(sys.argv[2])))
    points = sum(len(trial.rows) for trial in history.trials)
else:
    sys.path.insert(0, sys.argv[3])
    from log import journal_study
    import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = journal_study(Path(sys.argv[2]))
    points = sum(len(trial.intermediate_values) for trial in study.trials)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(points, time.perf_counter() - start, memory)
"""


def replayed(side: str, place: Path) -> tuple[float, float]:
    """Seconds and peak MB of a process that reads everything and folds it; imports count."""
    command = [sys.executable, "-c", REPLAY, side, str(place), str(Path(__file__).parent)]
    points, seconds, megabytes = map(
        float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    )
    assert points > 0
    return seconds, megabytes


def replay(reports: int, rival_reports: int, rounds: int) -> dict[str, Any]:
    """Reading and folding so many reports; Optuna's is smaller and scaled, as writing it takes so
    long.
    """
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "ours"), Path(folder, "journal")
        log = Log.open(LocalStore(ours))
        lines = experiment(reports // 1000, 1000)
        log.claim(lines[:2])
        write(log, lines[2:], 50)
        study = journal_study(theirs)
        for _ in range(rival_reports // 1000):
            trial = study.ask()
            trial.suggest_float("x", 0, 1)
            for step in range(1000):
                trial.report(0.5, step)
            study.tell(trial, 0.5)
        found: dict[str, list[tuple[float, float]]] = {"ours": [], "optuna": []}
        for _ in range(rounds):
            found["ours"].append(replayed("ours", ours))
            found["optuna"].append(replayed("optuna", theirs))
    (s, mb), (rs, rmb) = (
        [statistics.median(v) for v in zip(*found[side], strict=True)]
        for side in ("ours", "optuna")
    )
    return {
        "reports": reports,
        "seconds": s,
        "megabytes": mb,
        "optuna reports": rival_reports,
        "optuna seconds": rs,
        "optuna megabytes": rmb,
        "times faster a report": (rs / rival_reports) / (s / reports),
    }


def a_day(seconds: int) -> dict[str, float]:
    """Objects in the bucket after so many commits, one a second, and the most that there were."""
    store = MemoryStore()
    log = Log.open(store)
    line = encode(Reported(t=1.0, trial=0, attempt=1, rows=[Row(1, 1.0, {"score": 0.5})]))
    log.claim([line])
    most = requests = 0
    for number in range(1, seconds + 1):
        log.append([line])
        requests += 1
        if number % 128 == 0:
            merged = log.compact()
            requests += 2 * merged  # each is read and deleted
            most = max(most, len(store.list(PREFIX)))
    return {
        "commits": seconds,
        "objects": len(store.list(PREFIX)),
        "most objects": most,
        "requests a commit": requests / seconds,
    }


def timed(call: Callable[[], object]) -> float:
    """Seconds that `call` takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Measures, prints a line each, writes JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reports", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.getLogger("optuna").setLevel(logging.ERROR)

    rates = durable_events(2_000)
    rival = optuna_events(2_000)
    print(
        f"durable events a second, one at a time:    {rates['one at a time']:>9,.0f}   Optuna's"
        f" journal {rival:,.0f}"
    )
    print(f"durable events a second, in groups of 100: {rates['in groups of 100']:>9,.0f}")
    found = replay(options.reports, min(20_000, options.reports), options.rounds)
    print(
        f"replay of {found['reports']:,} reports: {found['seconds']:.1f} s,"
        f" {found['megabytes']:.0f} MB; Optuna of {found['optuna reports']:,}:"
        f" {found['optuna seconds']:.1f} s; {found['times faster a report']:.0f} times faster each"
    )
    day = a_day(86_400)
    print(
        f"a day at one commit a second: {day['objects']} objects left, {day['most objects']} at"
        f" most, {day['requests a commit']:.2f} requests a commit"
    )
    if options.json:
        machine = {
            "python": platform.python_version(),
            "load": Path("/proc/loadavg").read_text().split()[0],
        }
        report = {
            "machine": machine,
            "events": {**rates, "optuna": rival},
            "replay": found,
            "day": day,
        }
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
