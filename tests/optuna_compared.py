"""Studies as scripts of Optuna's have them, each run by Optuna and by `regrow.optuna`, and compared.

`python -m tests.optuna_compared` runs them with real sessions, and prints a table;
`tests/unit/test_optuna_bodies.py` runs them in one process. The studies are in `optuna_bodies.py` and
`optuna_bodies_of_studies.py`.
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
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna

import regrow.optuna as ours
from regrow.infra.log.reading import read_events
from regrow.infra.state.places import Places
from regrow.search.planning.verify import verify
from regrow.tasks.errors import UserError
from tests import optuna_bodies, optuna_bodies_of_studies
from tests.optuna_registry import BODIES, TOPICS

ROOT = Path(__file__).resolve().parents[1]
MODULES = (optuna_bodies, optuna_bodies_of_studies)
"""Those that fill the registry."""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Within the block, nothing is printed, and warnings are not shown."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    optuna.logging.set_verbosity(level)


def compared(name: str) -> tuple[str, str]:
    """Runs one with both: "alike", "refused" or "wrong", and what is said or differs."""
    with quietly():
        theirs = BODIES[name](optuna, f"{name}-theirs")
        try:
            found = BODIES[name](ours, f"{name}-ours")
        except UserError as error:
            return "refused", str(error)
        except Exception as error:
            logging.getLogger(__name__).debug(name, exc_info=True)
            return "wrong", f"{type(error).__name__}: {error}"
    for study in Places.at(None).experiments():
        difference = verify(read_events(Places.at(None).store(study))).difference
        if difference is not None:
            return "wrong", f"{study} is not verified: {difference}"
    if repr(found) == repr(theirs):
        return "alike", ""
    return "wrong", f"{found!r}, not {theirs!r}"


def _alone(name: str) -> tuple[str, list[str], float]:
    """Runs one in a process of its own, as a script."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.optuna_compared", "--one", name],
            cwd=folder,
            env={**os.environ, "REGROW_STATE": folder, "PYTHONPATH": str(ROOT)},
            text=True,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    lines = done.stdout.strip().splitlines()
    told = json.loads(lines[-1]) if lines and not done.returncode else ["wrong", done.stderr[-200:]]
    return name, told, time.monotonic() - began


def main() -> int:
    """Prints a line for each, and how many there are of each outcome."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--one", default="", help="a name, whose outcome is printed as JSON")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(compared(chosen.one)))
        return 0
    names = [name for name in BODIES if chosen.only in name]
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for name, (outcome, told), seconds in pool.map(_alone, names):
            counts[outcome] += 1
            print(f"{TOPICS[name]:60} {outcome:8} {seconds:5.1f} s  {told[:200]!r}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
