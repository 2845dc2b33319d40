"""Experiments as scripts of Ray Tune's have them, each run by Ray Tune and by `regrow.tune`, and
compared.

`python -m tests.tune_compared` runs them with real sessions, each in a process of its own, and prints
a line for each. Ray Tune's outcomes are kept in `tests/data/tune_outcomes.json` (`--record` writes
them), with which `tests/unit/test_tune_bodies.py` compares ours in one process; `--recorded` takes
them from there, too, so that only `regrow.tune` runs. `--together` runs all on one cluster of Ray, in
one process; `--here` runs ours without Ray and Prefect, all else is real, and leaves out those that
need sessions. `--write` puts the table into `docs/how-to/coming-from-ray-tune.md`. The experiments are in
`tune_bodies.py`, `tune_bodies_of_runs.py` and `tune_bodies_of_searches.py`.
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
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from regrow import experiment
from regrow.flows import inline
from regrow.infra.log.reading import read_events
from regrow.infra.state.places import Places
from regrow.search.planning.verify import verify
from tests import tune_bodies, tune_bodies_more, tune_bodies_of_runs, tune_bodies_of_searches
from tests.tune_registry import BODIES, IN_WORDS, TOPICS
from tests.unit.tune_here import run_here

ROOT = Path(__file__).resolve().parents[1]
MODULES = (tune_bodies, tune_bodies_more, tune_bodies_of_runs, tune_bodies_of_searches)
"""Those that fill the registry."""
OUTCOMES = ROOT / "tests" / "data" / "tune_outcomes.json"
"""What Ray Tune's outcomes were, by name, as text."""
PAGE = ROOT / "docs" / "how-to" / "coming-from-ray-tune.md"
BEGIN, END = "<!-- compared: `python -m tests.tune_compared --write` -->", "<!-- /compared -->"
LIMIT_SECONDS = 600
CPUS = 2
"""Of the cluster that both have: trials that run at a time."""
ELSEWHERE = ("restored", "timeouts")
"""Those that need real sessions, or take the time that they give."""
DIFFERENT = {
    "not_finite_searched": "a metric that is not finite fails its trial",
    "stop_unknown": "a metric of `stop` that is not reported is an error at once",
    "all_kept": "without a `CheckpointConfig` the last two checkpoints and the best are kept",
    "step_callbacks": "there is no controller whose steps begin and end",
    "dirnames": "`trial_dirname_creator` is named as not used: trials have numbers",
}
"""What differs on purpose, or is not mended, by name, in the words of the page."""


def recorded() -> dict[str, str]:
    """Ray Tune's outcomes by name, as they were recorded."""
    found: dict[str, str] = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
    return found


def cluster() -> None:
    """Starts Ray in this process; both use it."""
    import ray

    ray.init(
        address="local",
        num_cpus=CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
    )


def theirs(name: str, folder: Path) -> str:
    """The outcome of Ray Tune, as text."""
    folder.mkdir(parents=True)
    return repr(BODIES[name](import_module("ray.tune"), str(folder)))


def compared(name: str, folder: Path, expected: str) -> tuple[str, str]:
    """Runs one with ours: "alike", "refused" or "wrong", and what is said or differs."""
    folder.mkdir(parents=True)
    tune: Any = import_module("regrow.tune")
    try:
        found = repr(BODIES[name](tune, str(folder)))
    except IN_WORDS as error:
        return "refused", str(error)
    except (Exception, SystemExit) as error:
        logging.getLogger(__name__).debug(name, exc_info=True)
        return "wrong", "".join(traceback.format_exception_only(error)).strip()
    places = Places.at(str(folder))
    for each in places.experiments():
        difference = verify(read_events(places.store(each))).difference
        if difference is not None:
            return "wrong", f"{each} is not verified: {difference}"
    return ("alike", "") if found == expected else ("wrong", f"{found}, not {expected}")


def both(name: str, folder: Path, known: dict[str, str]) -> tuple[str, str, str]:
    """The outcome, what is said or differs, and Ray Tune's outcome: known, or run here."""
    with contextlib.redirect_stdout(io.StringIO()):
        expected = known[name] if name in known else theirs(name, folder / "theirs")
        outcome, told = compared(name, folder / "ours", expected)
    return outcome, told, expected


def _here(names: list[str], known: dict[str, str]) -> Iterator[tuple[str, list[str], float]]:
    """Runs all in this process, on one cluster."""
    cluster()
    for name in names:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found = list(both(name, Path(folder), known))
        yield name, found, time.monotonic() - began


def _without_ray(names: list[str], known: dict[str, str]) -> Iterator[tuple[str, list[str], float]]:
    """Runs ours in this process, without Ray."""
    setattr(experiment, "run_session", run_here)  # noqa: B010 - it stands in for it
    setattr(inline, "hand_to_guard", lambda *_: None)  # noqa: B010 - it begins processes
    for name in names:
        if name in ELSEWHERE:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            os.chdir(folder)
            found = list(both(name, Path(folder), known))
            os.chdir(ROOT)
        yield name, found, time.monotonic() - began


def _alone(names: list[str], known: dict[str, str]) -> Iterator[tuple[str, list[str], float]]:
    """Runs each in a process of its own, as a script."""
    for name in names:
        began = time.monotonic()
        command = [sys.executable, "-m", "tests.tune_compared", "--one", name]
        command += ["--recorded"] if known else []
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            try:
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    text=True,
                    capture_output=True,
                    check=False,
                    stdin=subprocess.DEVNULL,
                    timeout=LIMIT_SECONDS,
                )
                found = done.stdout.strip().splitlines()
                told = ["wrong", done.stderr[-600:], ""]
                if found and not done.returncode:
                    told = json.loads(found[-1])
            except subprocess.TimeoutExpired:
                told = ["wrong", f"not over after {LIMIT_SECONDS} s", ""]
        yield name, told, time.monotonic() - began


def table(outcomes: dict[str, tuple[str, str]]) -> str:
    """The table of the page."""
    counts = Counter(outcome for outcome, _ in outcomes.values())
    said = ", ".join(f"{counts[one]} {one}" for one in ("alike", "refused", "wrong") if counts[one])
    lines = [f"Of {len(outcomes)}: {said}.", "", "| experiment | outcome | |", "|---|---|---|"]
    for name, (outcome, told) in outcomes.items():
        why = "" if outcome == "alike" else DIFFERENT.get(name, told).replace("|", "\\|")
        shown = outcome if outcome != "wrong" else "different"
        lines.append(f"| {TOPICS[name]} | {shown} | {' '.join(why.split())[:200]} |")
    return "\n".join(lines).replace(" wrong", " different")


def main() -> int:
    """Prints a line for each, and how many there are of each outcome."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--together", action="store_true", help="in one process, on one cluster")
    parser.add_argument("--here", action="store_true", help="ours without Ray, Ray's as recorded")
    parser.add_argument("--recorded", action="store_true", help="Ray Tune's outcomes as recorded")
    parser.add_argument("--record", action="store_true", help="keep Ray Tune's outcomes")
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    parser.add_argument("--one", default="", help="a name, whose outcome is printed as JSON")
    chosen = parser.parse_args()
    known = recorded() if chosen.recorded or chosen.here else {}
    if chosen.one:
        cluster()
        print(json.dumps(both(chosen.one, Path.cwd(), known)))
        return 0
    names = [name for name in BODIES if any(word in name for word in chosen.only.split(","))]
    outcomes: dict[str, tuple[str, str]] = {}
    records = recorded()
    way = _without_ray if chosen.here else _here if chosen.together else _alone
    for name, (outcome, told, expected), seconds in way(names, known):
        outcomes[name] = outcome, told
        records[name] = expected
        shown = f" {' '.join(told.split())[:400]}" if told else ""
        print(f"{TOPICS[name]:60} {outcome:8} {seconds:5.0f} s{shown}", flush=True)
    counts = Counter(outcome for outcome, _ in outcomes.values())
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    if chosen.record:
        OUTCOMES.write_text(json.dumps(records, indent=1) + "\n")
    if chosen.write:
        text = PAGE.read_text()
        before, after = text[: text.index(BEGIN)], text[text.index(END) :]
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(outcomes)}\n\n{after}")
    return int(counts["wrong"] > sum(name in DIFFERENT for name in outcomes))


if __name__ == "__main__":
    sys.exit(main())
