"""Change one operator or constant of the core at a time, by cosmic-ray, and see whether a test fails.

    make mutants ARGS="--each 40 --seed 7 --only log,planner"

Runs in a copy of the last commit. Prints for each area how many of the sampled mutants survived,
and each of these with its line. A mutant that changes nothing, as of a timeout's
length, survives every test.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOL = "cosmic-ray==8.7.0"
TIMEOUT_SECONDS = 300.0
"""A mutant whose tests take longer counts as killed: it made them wait for ever."""


@dataclass(frozen=True)
class Area:
    """A part of the product.

    Attributes:
        modules: its files or folders.
        tests: patterns of the test files that look at it, the quickest first.

    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]


AREAS = {
    "planner": Area(
        ("search/planning/planner.py", "search/planning/scheduling.py", "search/planning/results.py"),
        ("unit/test_planner*", "unit/test_lifecycle*", "unit/test_pauses*", "unit/test_widths*",
         "unit/test_capacity*", "unit/test_stop_conditions*", "unit/test_wide*", "unit/test_retry_failed*",
         "unit/test_clones*", "unit/test_on_oom*", "unit/test_verify*", "unit/test_simulator*",
         "unit/test_limits*", "unit/test_budget*", "unit/test_points_and_repeats*",
         "unit/test_several_metrics*", "unit/test_small_spaces*",
         "faults/test_every_pair*"),
    ),
    "lifecycle": Area(
        ("search/lifecycle.py",),
        ("unit/test_lifecycle*", "unit/test_planner*", "unit/test_contradictions*",
         "unit/test_history*", "unit/test_attempts*", "faults/test_every_pair*"),
    ),
    "schedulers": Area(
        ("search/schedulers",),
        ("unit/test_schedulers*", "unit/test_scheduler_port*", "unit/test_gaps*",
         "unit/test_score_and_steps*", "faults/test_every_pair*"),
    ),
    "log": Area(
        ("infra/log",),
        ("unit/test_log*", "unit/test_leases*", "unit/test_follow*", "unit/test_ends_of_logs*", "unit/test_rows*",
         "unit/test_subscription*", "unit/test_events*", "unit/test_sessions*",
         "faults/test_torn_twice*"),
    ),
    "coordinator": Area(
        ("flows/coordinator",),
        ("unit/test_coordinator*", "unit/test_leases*", "unit/test_relay*", "unit/test_write_spacing*",
         "unit/test_refused_messages*", "unit/test_connecting*", "unit/test_capacity*",
         "unit/test_callers*", "unit/test_paused*", "unit/test_clone*", "unit/test_group_orders*",
         "unit/test_trial_and_coordinator*", "unit/test_notices*", "faults/test_handed_out*"),
    ),
    "checkpoints": Area(
        ("tasks/checkpoint",),
        ("unit/test_checkpoint*", "unit/test_manifests*", "unit/test_disks*",
         "unit/test_moved_and_odd*", "unit/test_trial.py", "contract/test_store*"),
    ),
}  # fmt: skip


def cosmic_ray(*words: str, inside: Path) -> str:
    """Run the tool in the copy. Returns what it printed."""
    uv = str(Path(sys.executable).with_name("uv"))
    done = subprocess.run(
        [uv, "tool", "run", "--quiet", "--from", TOOL, "cosmic-ray", *words],
        cwd=inside,
        env={**os.environ, "PYTHONPATH": str(inside), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def types(source: str) -> set[int]:
    """The lines of a module with signatures and annotations: a mutant there changes nothing."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines |= set(range(node.lineno, node.body[0].lineno))
        elif isinstance(node, ast.AnnAssign):
            lines |= set(range(node.annotation.lineno, (node.annotation.end_lineno or 0) + 1))
    return lines


def sample(session: Path, copy: Path, each: int, seed: int) -> None:
    """Keep `each` of the mutants of a session, the same ones for the same sources and seed."""
    with closing(sqlite3.connect(session)) as connection, connection:
        found = connection.execute(
            "select job_id, module_path, start_pos_row from mutation_specs"
            " order by module_path, operator_name, occurrence"
        ).fetchall()
        untouched = {module: types((copy / module).read_text()) for _, module, _ in found}
        able = [job for job, module, line in found if line not in untouched[module]]
        kept = {*random.Random(seed).sample(able, min(each, len(able)))}
        others = [(job,) for job, _, _ in found if job not in kept]
        connection.executemany("delete from mutation_specs where job_id = ?", others)
        connection.executemany("delete from work_items where job_id = ?", others)
    print(f"  {len(kept)} of {len(able)} mutants", flush=True)


def judged(area: Area, copy: Path, each: int, seed: int) -> list[str]:
    """Return the mutants of an area that no test killed, a line each."""
    files = [
        str(path.relative_to(copy / "tests"))
        for pattern in area.tests
        for path in sorted((copy / "tests").glob(pattern))
        if path.suffix == ".py"
    ]
    tests = [str(Path("tests", file)) for file in dict.fromkeys(files)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
    ]
    command += ["-m", "not nightly", f"--basetemp={copy}-pytest", *tests]
    paths = [
        str(path.relative_to(copy))
        for module in area.modules
        for path in (
            [copy / module] if module.endswith(".py") else sorted((copy / module).glob("*.py"))
        )
        if path.name != "__init__.py"
    ]
    config, session = copy / "mutants.toml", copy / "mutants.sqlite"
    session.unlink(missing_ok=True)
    config.write_text(
        f"[cosmic-ray]\nmodule-path = {json.dumps(paths)}\ntimeout = {TIMEOUT_SECONDS}\n"
        f"excluded-modules = []\ntest-command = {json.dumps(shlex.join(command))}\n"
        '[cosmic-ray.distributor]\nname = "local"\n'
    )
    cosmic_ray("baseline", config.name, inside=copy)
    cosmic_ray("init", config.name, session.name, inside=copy)
    sample(session, copy, each, seed)
    cosmic_ray("exec", config.name, session.name, inside=copy)
    lines = []
    for line in cosmic_ray("dump", session.name, inside=copy).splitlines():
        work, result = json.loads(line)
        if result["test_outcome"] == "survived":
            (at,) = work["mutations"]
            changed = [
                text
                for text in result["diff"].splitlines()
                if text[:1] in {"+", "-"} and text[:3] not in {"+++", "---"}
            ]
            lines.append(
                f"{at['module_path']}:{at['start_pos'][0]} {at['operator_name']}\n      "
                + "\n      ".join(changed)
            )
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=40, help="mutants of an area (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(AREAS), help="some of %(default)s")
    parser.add_argument("--at", default="HEAD", help="commit whose product and tests are taken")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "copy"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
        subprocess.run(["git", "checkout", "--quiet", options.at], cwd=copy, check=True)
        for name in options.only.split(","):
            print(name, flush=True)
            lines = judged(AREAS[name], copy, options.each, options.seed)
            print(f"  survived: {len(lines)}")
            for line in lines:
                print(f"    {line}", flush=True)


if __name__ == "__main__":
    main()
