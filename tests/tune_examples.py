"""The examples of Ray Tune in Ray's own wheel, run unchanged by `regrow tune`, each killed once and
resumed: `make compat`.

    python -m tests.tune_examples --only pbt_example

Each runs in a folder of its own. When its log holds a first report the victim is killed by SIGKILL:
`driver`, the process that runs the script, with all that it started, whereupon the same command is
typed again; or `worker`, the process of a trial, whereupon the experiment continues by itself.
`regrow verify` then recomputes every decision. A table is printed; what was said goes to
`build/compat`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import ray

from regrow.infra.log.log import Log
from regrow.infra.state.places import Places
from regrow.search.events import Reported, decode
from regrow.tasks.errors import RegrowError

HERE = Path(__file__).resolve().parent.parent
SAID = HERE / "build" / "compat"
LIMIT_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A script of `ray/tune/examples`, its arguments, and what is killed."""

    script: str
    arguments: tuple[str, ...] = ()
    victim: str = "driver"

    @property
    def label(self) -> str:
        return " ".join((self.script, *self.arguments))


SMOKE = ("--smoke-test",)
EXAMPLES = (
    Example(script="tune_basic_example.py", arguments=SMOKE),
    Example(script="async_hyperband_example.py", arguments=SMOKE),
    Example(script="hyperband_example.py", arguments=SMOKE),
    Example(script="hyperband_function_example.py", arguments=SMOKE),
    Example(script="pbt_example.py", arguments=SMOKE, victim="worker"),
    Example(script="pbt_function.py", arguments=SMOKE),
    Example(script="pb2_example.py", arguments=SMOKE),
    Example(script="custom_func_checkpointing.py", arguments=SMOKE, victim="worker"),
    Example(script="custom_checkpointing_with_callback.py", arguments=SMOKE),
    Example(script="logging_example.py", arguments=SMOKE),
    Example(script="optuna_example.py", arguments=SMOKE),
    Example(script="optuna_multiobjective_example.py", arguments=SMOKE),
    Example(script="optuna_define_by_run_example.py", arguments=SMOKE),
    Example(script="nevergrad_example.py", arguments=SMOKE),
    Example(script="bayesopt_example.py", arguments=SMOKE),
    Example(script="ax_example.py", arguments=SMOKE),
    Example(script="bohb_example.py", arguments=SMOKE),
    Example(script="hyperopt_conditional_search_space_example.py", arguments=SMOKE),
    Example(script="xgboost_example.py", arguments=SMOKE),
    Example(script="lightgbm_example.py", arguments=SMOKE, victim="worker"),
    Example(script="xgboost_dynamic_resources_example.py", arguments=SMOKE),
    Example(
        script="mlflow_example.py", arguments=("--tracking-uri", "sqlite:///{folder}/mlflow.db")
    ),
)


def run(example: Example, folder: Path) -> str:
    """Runs one, killed once; returns `passed`, or what went wrong."""
    script = Path(ray.__file__).parent / "tune" / "examples" / example.script
    command = [
        sys.executable,
        "-m",
        "regrow",
        "tune",
        "--state",
        str(folder / "state"),
        str(script),
    ]
    command += [argument.format(folder=folder) for argument in example.arguments]
    said = SAID / f"tune-{script.stem}.txt"
    with said.open("w") as out:
        first = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
        killed = _killed(example, first, folder)
        code = _ended(first)
        if killed and example.victim == "driver":
            out.write("\n--- the driver was killed; the same command again ---\n")
            out.flush()
            code = _ended(
                subprocess.Popen(
                    command, cwd=folder, stdout=out, stderr=out, stdin=subprocess.DEVNULL
                )
            )
        if code != 0:
            return f"exit code {code}"
        for name in Places.at(str(folder / "state")).experiments():
            verify = [
                sys.executable,
                "-m",
                "regrow",
                "verify",
                name,
                "--state",
                str(folder / "state"),
            ]
            if subprocess.run(verify, stdout=out, stderr=out, check=False, cwd=folder).returncode:
                return f"verify {name} failed"
    return "passed" if killed else "passed, over before it could be killed"


def _killed(example: Example, process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Kills the victim when a first report is in the log; whether there was anything to kill."""
    end = time.monotonic() + LIMIT_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if not any(_reports(folder)):
            time.sleep(0.1)
            continue
        if example.victim == "driver":
            process.kill()
            return True
        for child in psutil.Process(process.pid).children(recursive=True):
            if child.name().startswith("ray::trial"):
                os.kill(child.pid, signal.SIGKILL)
                return True
        time.sleep(0.1)
    return False


def _reports(folder: Path) -> Iterator[bool]:
    try:
        places = Places.at(str(folder / "state"))
        for name in places.experiments():
            for _, lines in Log.read(places.store(name), 0, on_cut=lambda _: None):
                yield from (
                    isinstance(decode(line), Reported) for line in lines if b'"reported"' in line
                )
    except (RegrowError, OSError):
        return


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return -1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        default="",
        help="scripts whose names hold one of these words, separated by commas",
    )
    words = parser.parse_args().only.split(",")
    SAID.mkdir(parents=True, exist_ok=True)
    failed = 0
    print("| example | killed | seconds | outcome |\n|---|---|---:|---|")
    for example in EXAMPLES:
        if not any(word in example.script for word in words):
            continue
        with tempfile.TemporaryDirectory(
            prefix="regrow-tune-", ignore_cleanup_errors=True
        ) as folder:
            began = time.monotonic()
            outcome = run(example, Path(folder))
        failed += not outcome.startswith("passed")
        print(
            f"| `{example.label}` | {example.victim} | {time.monotonic() - began:.0f} | {outcome} |",
            flush=True,
        )
    print(f"\nwhat was said: {SAID}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
