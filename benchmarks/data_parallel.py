"""A trial of two data-parallel workers: ours, Ray Train's and torchrun's, the same training, in
turns.

    python benchmarks/data_parallel.py --rounds 3 --json data_parallel.json

Told are the seconds from the command to the first step, the milliseconds of a step, how long a step
with a checkpoint holds the training up (its report, less that of a step without), how long after a
SIGKILL of rank 1 the next new step is done and how many steps are done again, and the most memory
that all processes of the command took (PSS). Medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.data_parallel_work import EVERY, STEPS

HERE = Path(__file__).resolve().parent
KILL_AT = 22
PATIENCE = 400.0
SIDES = ("ours", "ray", "torchrun")


def command(side: str, folder: Path) -> list[str]:
    """What is typed."""
    if side == "ours":
        spec = {
            "name": "bench",
            "trainable": f"{HERE / 'data_parallel_work.py'}:ours",
            "metric": "loss",
            "mode": "min",
            "space": {"x": 0},
            "trials": 1,
            "search": "random",
            "schedule": "fifo",
            "max_steps": STEPS + 1,
            "resources": {"cpu": 1, "workers": 2},
            "checkpoint": {"every_steps": EVERY},
            "retries": {"infrastructure": "unlimited"},
        }
        (folder / "bench.yaml").write_text(json.dumps(spec))  # which is YAML, too
        return [str(Path(sys.executable).with_name("regrow")), "run", "bench.yaml", "--quiet"]
    work = str(HERE / "data_parallel_work.py")
    if side == "ray":
        return [sys.executable, work, "ray"]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--max-restarts=3",
        "--standalone",
        work,
        "torchrun",
    ]


def steps(folder: Path) -> list[dict[str, Any]]:
    """What rank 0 has noted."""
    with suppress(FileNotFoundError):
        lines = (folder / "steps.jsonl").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
    return []


def measured(side: str) -> dict[str, float]:
    """One run of a side, in which rank 1 is killed once."""
    folder = Path(tempfile.mkdtemp(prefix=f"bench-{side}-"))
    env = {
        **os.environ,
        "BENCH_FOLDER": str(folder),
        "HOME": str(folder / "home"),
        "OMP_NUM_THREADS": "1",
    }
    (folder / "home").mkdir()
    begun = time.time()
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command(side, folder),
            cwd=folder,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    most, done = [0.0], threading.Event()
    watcher = threading.Thread(target=_watch, args=(process.pid, most, done), daemon=True)
    watcher.start()
    try:
        while not (now := steps(folder)) or now[-1]["step"] < KILL_AT:
            if process.poll() is not None or time.time() - begun > PATIENCE:
                raise SystemExit(
                    f"{side} did not get to step"
                    f" {KILL_AT}:\n{(folder / 'output').read_text()[-3000:]}"
                )
            time.sleep(0.01)
        killed = time.time()
        os.kill(int((folder / "rank-1.pid").read_text()), signal.SIGKILL)
        process.wait(PATIENCE)
    finally:
        done.set()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    noted = steps(folder)
    before = [note for note in noted if note["t"] <= killed]
    after = [note for note in noted if note["t"] > killed]
    last = max(note["step"] for note in before)
    # A step that was under way at the kill may still be noted: what counts comes from processes
    # that were started after it.
    again = [note for note in after if note["step"] <= last]
    first_new = next(
        note["t"] for note in after if note["step"] > last and (again or note["t"] - killed > 0.5)
    )
    plain = [note["report"] for note in before if note["step"] % EVERY and note["step"] > 2]
    saving = [note["report"] for note in before if note["step"] % EVERY == 0]
    found = {
        "first step s": noted[0]["t"] - begun,
        "step ms": (
            1000
            * statistics.median(
                note["train"] + note["report"] for note in before if note["step"] % EVERY
            )
        ),
        "checkpoint stall ms": (
            1000 * max(0.0, statistics.median(saving) - statistics.median(plain))
        ),
        "recovery s": first_new - killed,
        "steps again": float(len(again)),
        "memory MB": most[0] / 1e6,
    }
    if noted[-1]["step"] != STEPS:
        raise SystemExit(
            f"{side} ended at step {noted[-1]['step']}:\n{(folder / 'output').read_text()[-3000:]}"
        )
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _watch(pid: int, most: list[float], done: threading.Event) -> None:
    """The most memory of the command and all that it started, by session or by parent."""
    seen: dict[int, psutil.Process] = {}
    while not done.wait(0.5):
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            seen |= {child.pid: child for child in (root, *root.children(recursive=True))}
        total = 0.0
        for process in list(seen.values()):
            with suppress(psutil.Error):
                seen |= {child.pid: child for child in process.children(recursive=True)}
                total += process.memory_full_info().pss
        most[0] = max(most[0], total)


def main() -> None:
    """Runs the rounds, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(SIDES), help="sides, with commas")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args()
    sides = options.only.split(",")
    rounds: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sides:
            rounds[side].append(measured(side))
            told = ", ".join(f"{name} {value:.3g}" for name, value in rounds[side][-1].items())
            print(f"round {number + 1}, {side}: {told}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")
    for name in rounds[sides[0]][0]:
        values = {side: statistics.median(found[name] for found in rounds[side]) for side in sides}
        ratios = [
            f"{values[side] / values['ours']:.2f} times ours"
            for side in sides[1:]
            if values.get("ours")
        ]
        print(
            f"{name}: " + ", ".join(f"{side} {value:.3g}" for side, value in values.items()),
            *ratios,
            sep="; ",
        )
    if options.json:
        options.json.write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()
