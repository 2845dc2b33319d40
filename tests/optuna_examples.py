"""Runs Optuna's own examples with one line changed, the import: `python -m tests.optuna_examples
FOLDER`, a clone of github.com/optuna/optuna-examples.

Each runs in a folder of its own, and each study that it made is verified. A table is printed; exit
code 1 if one that is expected to run does not. The examples that download data, or need a library
that is no extra of ours, are not tried.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = (
    "basic/quadratic.py",
    "basic/pruning.py",
    "basic/quadratic_constraint.py",
    "basic/quadratic_multi_objective.py",
    "faq/enqueue_trial.py",
    "faq/max_trials_callback.py",
    "multi_objective/quadratic_simple.py",
    "sklearn/sklearn_simple.py",
    "sklearn/sklearn_additional_args.py",
    "visualization/plot_pareto_front.py",
)
REFUSED = (
    "basic/artifact_store.py",
    "terminator/terminator_simple.py",
    "samplers/simulated_annealing_sampler.py",
    "samplers/warm_starting_cma.py",
)
"""Those that need what is not there; none of them may seem to have run."""
LIMIT_SECONDS = 900


def attempt(file: Path, folder: Path) -> tuple[str, str]:
    """Runs one; its outcome and the last line that it printed."""
    source, changed = re.subn(
        r"^import optuna$", "import regrow.optuna as optuna", file.read_text(), flags=re.MULTILINE
    )
    if not changed:
        return "no such import", ""
    (folder / file.name).write_text(source)
    try:
        done = subprocess.run(
            [sys.executable, file.name],
            cwd=folder,
            text=True,
            capture_output=True,
            timeout=LIMIT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"over {LIMIT_SECONDS} s", ""
    said = (done.stderr if done.returncode else done.stdout).strip().splitlines()
    if done.returncode:
        return f"exit {done.returncode}", said[-1] if said else ""
    for log in sorted(folder.glob(".regrow/*/log")):
        name = log.parent.name
        checked = subprocess.run(
            [sys.executable, "-m", "regrow", "verify", name],
            cwd=folder,
            text=True,
            capture_output=True,
            check=False,
        )
        if checked.returncode:
            return "not verified", checked.stdout.strip().splitlines()[-1]
    return "ran, verified", said[-1] if said else ""


def main() -> int:
    """Prints a line for each example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="part of an example's path")
    chosen = parser.parse_args()
    failed = 0
    for name in (one for one in (*RUN, *REFUSED) if chosen.only in one):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(
            prefix="regrow-optuna-", ignore_cleanup_errors=True
        ) as folder:
            outcome, said = attempt(chosen.folder / name, Path(folder))
        failed += (outcome == "ran, verified") != (name in RUN)
        print(f"{name:42} {outcome:14} {time.monotonic() - began:5.0f} s  {said[:110]}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
