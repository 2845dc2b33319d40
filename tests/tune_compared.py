"""Experiments as scripts of Ray Tune's have them, each run by Ray Tune and by `regrow.tune`, and
compared.

`python -m tests.tune_compared` runs them with real sessions, and prints a table. The experiments are
in `tune_bodies.py` and `tune_bodies_of_runs.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from regrow.infra.log.reading import read_events
from regrow.infra.state.places import Places
from regrow.search.planning.verify import verify
from tests import tune_bodies, tune_bodies_of_runs
from tests.tune_registry import BODIES, IN_WORDS, TOPICS

ROOT = Path(__file__).resolve().parents[1]
MODULES = (tune_bodies, tune_bodies_of_runs)
"""Those that fill the registry."""
LIMIT_SECONDS = 300
CPUS = 2
"""Of the cluster that both have: trials that run at a time."""


def compared(name: str, folder: Path) -> tuple[str, str]:
    """Runs one with both: "alike", "refused" or "wrong", and what is said or differs."""
    import ray

    ours: Any = import_module("regrow.tune")
    ray.init(
        address="local",
        num_cpus=CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
    )
    (folder / "theirs").mkdir()
    (folder / "ours").mkdir()
    theirs = BODIES[name](import_module("ray.tune"), str(folder / "theirs"))
    try:
        found = BODIES[name](ours, str(folder / "ours"))
    except IN_WORDS as error:
        return "refused", str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the outcome that is told
        return "wrong", "".join(traceback.format_exception_only(error)).strip()
    places = Places.at(str(folder / "ours"))
    for experiment in places.experiments():
        difference = verify(read_events(places.store(experiment))).difference
        if difference is not None:
            return "wrong", f"{experiment} is not verified: {difference}"
    if repr(found) == repr(theirs):
        return "alike", ""
    return "wrong", f"{found!r}, not {theirs!r}"


def _alone(name: str) -> tuple[str, list[str], float]:
    """Runs one in a process of its own, as a script."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tests.tune_compared", "--one", name],
                cwd=folder,
                env={
                    **os.environ,
                    "REGROW_STATE": f"{folder}/ours",
                    "RAY_AIR_NEW_OUTPUT": "0",
                    "PYTHONPATH": str(ROOT),
                },
                text=True,
                capture_output=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return name, ["wrong", f"not over after {LIMIT_SECONDS} s"], time.monotonic() - began
    found = done.stdout.strip().splitlines()
    told = json.loads(found[-1]) if found and not done.returncode else ["wrong", done.stderr[-600:]]
    return name, told, time.monotonic() - began


def main() -> int:
    """Prints a line for each, and how many there are of each outcome."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--one", default="", help="a name, whose outcome is printed as JSON")
    chosen = parser.parse_args()
    if chosen.one:
        with contextlib.redirect_stdout(io.StringIO()):
            outcome = compared(chosen.one, Path.cwd())
        print(json.dumps(outcome))
        return 0
    names = [name for name in BODIES if any(word in name for word in chosen.only.split(","))]
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for name, (outcome, told), seconds in pool.map(_alone, names):
            counts[outcome] += 1
            shown = f" {' '.join(told.split())[:400]}" if told else ""
            print(f"{TOPICS[name]:60} {outcome:8} {seconds:5.0f} s{shown}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
