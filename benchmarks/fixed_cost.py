"""What an experiment costs that trains nothing: 4 trials of 2 steps, everything embedded, as a user
pays it.

    python benchmarks/fixed_cost.py --before HEAD~20 --runs 5

Three sides take turns, in an order that is reversed each time: another revision of regrow (before),
this checkout with its uncommitted changes (after), and Ray Tune on the same work. Both revisions
run in one virtual environment, which must suit both, through PYTHONPATH. A run counts only if the
driver and every worker wrote down that they had the right code, and if the log, MLflow and Prefect
hold all of it. Each side has a home of its own, which a first run has warmed that is not counted.

*CPU* is what all processes used that the command started, directly or not, ended or not, counted by
a cgroup (`cgroup.py`). It is read when the last of them has ended, which may be after the prompt.
So this needs Linux, and root or a delegated cgroup. *Wall* is by the clock: from the typed command
to the first report, from the end of the last trial's function to the prompt, and in all.

One more run of each side is looked at and not timed, since looking takes time: its peak memory
(PSS, sampled), the processes seen, and which of them imported Prefect, MLflow and Optuna. That is
told by a `sitecustomize` which only this run has on its PYTHONPATH.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import cgroup
from benchmarks.overhead import about, shown
from benchmarks.overhead_memory import Memory
from benchmarks.overhead_sides import MARK, Sandbox, Session, Watcher, Work, ours, sandbox, tune

RESULTS = Path(__file__).parent / "results" / "fixed_cost.json"
HERE = Path(__file__).resolve().parent.parent
WORK = Work(trials=4, reports=2)
LINGER_SECONDS = 60
"""What has not ended so long after the prompt never will, and spoils the measurement."""

BEFORE, AFTER, TUNE = "before", "after", "ray tune"
PACKAGES = ("regrow", "prefect", "mlflow", "optuna")
HOOK = f"""
import os
import sys


class Noted:
    seen = set()

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        # Asked before each first import; for a part, as a package may also be looked for only.
        package, _, part = name.partition(".")
        if part and package in {PACKAGES} and (os.getpid(), package) not in cls.seen:
            cls.seen.add((os.getpid(), package))
            with open(os.path.join(os.environ["{MARK}"], f"imports-{{os.getpid()}}"), "a") as file:
                print(package, getattr(sys.modules.get(package), "__file__", None), file=file)


sys.meta_path.insert(0, Noted)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of those that take turns; `code` is the root of its regrow, None for Ray Tune."""

    run: Callable[[Sandbox, Work, Watcher], Session]
    code: Path | None
    box: Sandbox
    group: cgroup.Cgroup

    def measure(self) -> dict[str, float]:
        """One run: seconds by name."""
        at_prompt = begin = self.group.cpu

        def watch(process: subprocess.Popen[bytes]) -> None:
            nonlocal at_prompt
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            at_prompt = self.group.cpu

        session = self.run(self.box, WORK, watch)
        self.group.await_empty(LINGER_SECONDS)
        self._check_code()
        return {
            "CPU of all processes": self.group.cpu - begin,
            "of it after the prompt": self.group.cpu - at_prompt,
            "Enter to first report": session.first_report,
            "last report to prompt": session.last_report,
            "Enter to prompt": session.process,
        }

    def look(self, hook: Path) -> tuple[Memory, dict[int, set[str]]]:
        """One run that is looked at: what Memory saw, and which packages each process imported."""
        seen = Memory(f"{MARK}={self.box.folder}")
        path, self.box.path = (
            self.box.path,
            os.pathsep.join(filter(None, (str(hook), self.box.path))),
        )
        self.run(self.box, WORK, seen.watch)
        self.group.await_empty(LINGER_SECONDS)
        self.box.path = path
        imports: dict[int, set[str]] = {}
        for file in self.box.folder.glob("imports-*"):
            lines = [line.split(maxsplit=1) for line in file.read_text().splitlines()]
            imports[int(file.name.partition("-")[2])] = {package for package, _ in lines}
            if self.code is not None:
                places = {place for package, place in lines if package == "regrow"}
                assert places <= {str(self.code / "regrow/__init__.py")}, (
                    f"{file.name}: {places}, not {self.code}"
                )
        return seen, imports

    def _check_code(self) -> None:
        """Raises AssertionError unless the driver and the workers, who import the trainable, had
        this side's code.
        """
        if self.code is not None:
            found = [file.read_text() for file in self.box.folder.glob("code-*")]
            assert len(found) >= 2, f"only {len(found)} processes imported the trainable"
            assert set(found) == {str(self.code / "regrow")}, f"{found}, not {self.code}"


def measure(sides: dict[str, Side], runs: int) -> dict[str, dict[str, list[float]]]:
    """All runs: seconds by side and name. Prints a line for each."""
    for side in sides.values():
        side.measure()
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in sides}
    for run in range(runs):
        for name in reversed(sides) if run % 2 else sides:
            seconds = sides[name].measure()
            for what, value in seconds.items():
                found[name][what].append(value)
            print(
                f"run {run + 1}, {name}:"
                f" {', '.join(f'{what} {value:.2f} s' for what, value in seconds.items())}",
                flush=True,
            )
    return found


def table(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Lines of Markdown: medians and their range, and the ratios: the median of the runs' own, and
    their range.
    """
    lines = [
        "| seconds | before | after | Ray Tune | after / before | after / Ray Tune |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for what, after in found[AFTER].items():
        values = [shown(found[name][what]) for name in (BEFORE, AFTER, TUNE)]
        lines.append(
            "| "
            + " | ".join(
                [
                    what,
                    *values,
                    _ratio(after, found[BEFORE][what]),
                    _ratio(after, found[TUNE][what]),
                ]
            )
            + " |"
        )
    return lines


def _ratio(ours: list[float], theirs: list[float]) -> str:
    """Run by run, since a load that comes and goes meets both sides of a run and not of all. Empty
    where there was nothing.
    """
    if statistics.median(theirs) < 0.05:
        return ""
    return shown([one / other for one, other in zip(ours, theirs, strict=True)])


def processes(seen: Memory, imports: dict[int, set[str]]) -> list[str]:
    """A line for each kind of process: how many of it were seen, and what they imported."""
    kinds: dict[str, list[set[str]]] = defaultdict(list)
    for pid, name in seen.names.items():
        kinds[name].append(imports.get(pid, set()))
    lines = []
    for name, members in sorted(kinds.items()):
        counted = {package: sum(package in member for member in members) for package in PACKAGES}
        said = [
            package if count == len(members) else f"{package} in {count}"
            for package, count in counted.items()
            if count
        ]
        lines.append(f"  {len(members)} x {name}{': ' if said else ''}{', '.join(said)}")
    return lines


def unpack(revision: str, folder: Path) -> Path:
    """The files of a revision; an archive, since a work tree would have to be taken back, also
    after a kill.
    """
    packed = subprocess.run(
        ["git", "archive", revision], cwd=HERE, stdout=subprocess.PIPE, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(folder)  # its own files; Python before 3.11.4 has no filters
    assert (folder / "regrow" / "search" / "__init__.py").exists(), (
        "the links in regrow/ came to nothing"
    )
    return folder


def named(revision: str) -> str:
    """A commit's short name, with `+` where it is this checkout and has changes."""
    return subprocess.run(
        [
            "git",
            "describe",
            "--always",
            "--exclude=*",
            *(["--dirty=+"] if revision == "HEAD" else [revision]),
        ],
        cwd=HERE,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--before", required=True, metavar="REV", help="the revision to compare this checkout with"
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="counted runs of each side; default: %(default)s"
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS, help="where the numbers go; default: %(default)s"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        temporary = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="regrow-bench-code-"))
        )
        (temporary / "hook").mkdir()
        (temporary / "hook" / "sitecustomize.py").write_text(HOOK)
        sides: dict[str, Side] = {}
        codes = {BEFORE: unpack(options.before, temporary / "before"), AFTER: HERE, TUNE: None}
        for name, code in codes.items():
            group, box = stack.enter_context(cgroup.made()), stack.enter_context(sandbox())
            box.prefix, box.path = group.prefix, str(code or "")
            sides[name] = Side(run=ours if code else tune, code=code, box=box, group=group)
        print(
            f"before: {named(options.before)}, after: {named('HEAD')}; load average"
            f" {os.getloadavg()[0]:.1f}",
            flush=True,
        )
        found = measure(sides, options.runs)
        load = os.getloadavg()[0]
        looks: dict[str, Any] = {}
        print(
            f"\nMedians of {options.runs} runs (load average {load:.1f} at the end)\n",
            *table(found),
            sep="\n",
            flush=True,
        )
        for name, side in sides.items():
            seen, imports = side.look(temporary / "hook")
            print(
                f"\n{name}: {len(seen.names)} processes seen, peak {seen.peak:.0f} MB",
                *processes(seen, imports),
                sep="\n",
            )
            looks[name] = {"peak_mb": seen.peak, "mb": seen.breakdown, "processes": len(seen.names)}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    results = {
        "about": about(),
        "before": named(options.before),
        "after": named("HEAD"),
        "seconds": found,
        "seen": looks,
    }
    options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
