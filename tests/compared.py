"""Scripts as users of Optuna and Ray Tune have them, each run by that library and by regrow in its
place, and compared.

`python -m tests.compared optuna` (or `tune`) runs them with real sessions, each in a process of its own,
and prints a line for each. The library's outcomes may be kept in `tests/data/..._outcomes.json`
(`--record` writes them), as Ray Tune's are: `--recorded` takes them from there, so that only regrow
runs. `--together` runs all on one cluster of Ray, in one process; `--here` runs ours without Ray and
Prefect, all else is real, and leaves out those that need sessions. `--write` puts the table into the
library's page. `tests/unit/test_optuna_bodies.py` and `tests/unit/test_tune_bodies.py` compare in one
process.
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
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from regrow import experiment
from regrow.flows import inline
from regrow.infra.log.reading import read_events
from regrow.infra.state.places import Places
from regrow.search.planning.verify import verify
from tests.compared_cases import CASES, ROOT, TUNE, Cases

LIMIT_SECONDS = 600
CPUS = 2
"""Of the cluster that Ray Tune and ours have: trials that run at a time."""
Outcome = tuple[str, str, str]
"""Of a case: "alike", "refused" or "wrong"; what is said or differs; the library's, as text."""


def outcomes_file(which: str) -> Path:
    """Where the library's outcomes are kept, by name, as text."""
    return ROOT / "tests" / "data" / f"{which}_outcomes.json"


def recorded(which: str) -> dict[str, str]:
    """The library's outcomes by name, as they were recorded."""
    file = outcomes_file(which)
    found: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return found


@contextlib.contextmanager
def quietly(library: str) -> Iterator[None]:
    """Within the block, nothing is printed, warned of, or logged by the library."""
    import_module(library)  # which sets its level
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    logger.setLevel(level)


def _run(cases: Cases, module: str, name: str, folder: Path) -> str:
    """What a case returns, as text."""
    if cases.in_folders:
        folder.mkdir(parents=True)
    new = str(folder) if cases.in_folders else f"{name}-{folder.name}"
    return repr(cases.bodies[name](import_module(module), new))


def _compared(cases: Cases, name: str, folder: Path, expected: str) -> tuple[str, str]:
    try:
        found = _run(cases, cases.ours, name, folder)
    except cases.refusals as error:
        return "refused", str(error)
    except (Exception, SystemExit) as error:
        logging.getLogger(__name__).debug(name, exc_info=True)
        return "wrong", "".join(traceback.format_exception_only(error)).strip()
    places = Places.at(str(folder) if cases.in_folders else None)
    for each in places.experiments():
        difference = verify(read_events(places.store(each))).difference
        if difference is not None:
            return "wrong", f"{each} is not verified: {difference}"
    return ("alike", "") if found == expected else ("wrong", f"{found}, not {expected}")


def both(cases: Cases, name: str, folder: Path, known: Mapping[str, str]) -> Outcome:
    """The outcome of a case. The library's is known, or the library runs here."""
    with quietly(cases.library):
        if (expected := known.get(name)) is None:
            expected = _run(cases, cases.library, name, folder / "theirs")
        return *_compared(cases, name, folder / "ours", expected), expected


def _cluster() -> None:
    """Starts Ray in this process; both use it."""
    import ray

    ray.init(
        address="local",
        num_cpus=CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.CRITICAL,
    )


def _without_ray(which: str) -> None:
    """Has ours run in this process, without Ray."""
    stand_in = import_module(f"tests.unit.{which}_here").run_here
    setattr(experiment, "run_session", stand_in)  # noqa: B010 - it stands in for it
    setattr(inline, "hand_to_guard", lambda *_: None)  # noqa: B010 - it begins processes


def _here(which: str, name: str, known: Mapping[str, str]) -> Outcome:
    """Runs a case in this process."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        contextlib.chdir(folder),
    ):
        return both(CASES[which], name, Path(folder), known)


def _alone(which: str, name: str, known: Mapping[str, str]) -> Outcome:
    """Runs a case in a process of its own, as a script."""
    command = [sys.executable, "-m", "tests.compared", which, "--one", name]
    command += ["--recorded"] if known else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        state = {} if CASES[which].in_folders else {"REGROW_STATE": folder}
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, **state, "PYTHONPATH": str(ROOT)},
                text=True,
                capture_output=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=LIMIT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return "wrong", f"not over after {LIMIT_SECONDS} s", ""
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return "wrong", done.stderr[-600:], ""
    outcome, message, expected = json.loads(lines[-1])
    return outcome, message, expected


def table(cases: Cases, outcomes: Mapping[str, Outcome]) -> str:
    """The table of the page."""
    counts = Counter(outcome for outcome, *_ in outcomes.values())
    total = ", ".join(
        f"{counts[one]} {one}" for one in ("alike", "refused", "wrong") if counts[one]
    )
    lines = [f"Of {len(outcomes)}: {total}.", "", "| experiment | outcome | |", "|---|---|---|"]
    for name, (outcome, message, _) in outcomes.items():
        why = "" if outcome == "alike" else cases.different.get(name, message).replace("|", "\\|")
        shown = outcome if outcome != "wrong" else "different"
        lines.append(f"| {cases.topics[name]} | {shown} | {' '.join(why.split())[:200]} |")
    return "\n".join(lines).replace(" wrong", " different")


def _write(page: Path, which: str, text: str) -> None:
    """Puts the table between its two marks in a page."""
    begin = f"<!-- compared: `python -m tests.compared {which} --write` -->"
    before, _, rest = page.read_text().partition(begin)
    after = rest[rest.index("<!-- /compared -->") :]
    page.write_text(f"{before}{begin}\n\n{text}\n\n{after}")


def main() -> int:
    """Prints a line for each, and how many there are of each outcome."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("which", choices=CASES, help="the library")
    parser.add_argument("--only", default="", help="parts of names, separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--together", action="store_true", help="in one process, on one cluster")
    parser.add_argument("--here", action="store_true", help="ours without Ray, theirs as recorded")
    parser.add_argument("--recorded", action="store_true", help="the library's as recorded")
    parser.add_argument("--record", action="store_true", help="keep the library's outcomes")
    parser.add_argument("--write", action="store_true", help="put the table into the page")
    parser.add_argument("--one", default="", help="a name, whose outcome is printed as JSON")
    chosen = parser.parse_args()
    if not chosen.one:  # each has a state of its own
        os.environ.pop("REGROW_STATE", None)
    which, cases = chosen.which, CASES[chosen.which]
    if chosen.write and cases.page is None:
        parser.error(f"--write: no page has a table of {which}'s")
    known = recorded(which) if chosen.recorded or chosen.here else {}
    names = [name for name in cases.loaded() if any(one in name for one in chosen.only.split(","))]
    if chosen.together or (chosen.one and cases is TUNE):
        _cluster()
    if chosen.one:
        print(json.dumps(both(cases, chosen.one, Path.cwd(), known)))
        return 0
    if chosen.here:
        _without_ray(which)
        names = [name for name in names if name not in cases.elsewhere]
    run = _here if chosen.here or chosen.together else _alone

    def timed(name: str) -> tuple[Outcome, float]:
        began = time.monotonic()
        return run(which, name, known), time.monotonic() - began

    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(chosen.jobs) as pool:
        each = pool.map(timed, names) if run is _alone else map(timed, names)
        for name, (found, seconds) in zip(names, each, strict=True):
            outcomes[name] = found
            shown = f" {' '.join(found[1].split())[:400]}" if found[1] else ""
            print(f"{cases.topics[name]:60} {found[0]:8} {seconds:5.1f} s{shown}", flush=True)
    counts = Counter(outcome for outcome, *_ in outcomes.values())
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    if chosen.record:
        records = recorded(which) | {name: found[2] for name, found in outcomes.items()}
        outcomes_file(which).write_text(json.dumps(records, indent=1) + "\n")
    if chosen.write and cases.page is not None:
        _write(cases.page, which, table(cases, outcomes))
    return int(counts["wrong"] > sum(name in cases.different for name in outcomes))


if __name__ == "__main__":
    sys.exit(main())
