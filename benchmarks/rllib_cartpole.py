"""PPO of RLlib's on CartPole: ours beside plain RLlib and Ray Tune on the same work; then ours to a
return of 450, killed once.

    python benchmarks/rllib_cartpole.py --rounds 2 --iterations 15

The three take turns, each in a process, a folder and a home of its own, with an env runner and a
checkpoint after each iteration. Told are the seconds from the command to the first iteration's end,
those of an iteration, and those of all of it: medians and ranges of the rounds, and ratios to plain
RLlib. Then the iterations and seconds of ours to 450, within 60, with one SIGKILL of the trial's
process, and its counters around it, which must go on by one iteration and one batch. Returns are
not compared, as environments are not saved.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

GOAL, MOST, BATCH = 450.0, 60, 4000
MARK = "REGROW_BENCH"
SIDES = ("ours", "plain", "tune")
SIDES_FILE = Path(__file__).with_name("rllib_cartpole_sides.py")
SPEC: dict[str, Any] = {
    "name": "cartpole",
    "rllib": {"algorithm": "PPO", "env": "CartPole-v1", "env_runners": 1},
    "metric": "return",
    "mode": "max",
    "space": {
        "lr": 0.0003,
        "num_epochs": 6,
        "vf_loss_coeff": 0.01,
        "train_batch_size_per_learner": BATCH,
        "num_envs_per_env_runner": 8,
        "model": {
            "fcnet_hiddens": {"constant": [32]},
            "fcnet_activation": "linear",
            "vf_share_layers": True,
        },
    },
    "search": "random",
    "trials": 1,
    "max_steps": MOST,
    "stop": {"trial": {"target": GOAL}},
    "checkpoint": {"every_steps": 1},
}


def main() -> None:
    """Exits with 1 if the goal was missed or a counter is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kill-after", type=int, default=5, help="durable checkpoints before the kill"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=15)
    asked = parser.parse_args()
    compared(asked.rounds, asked.iterations)
    with tempfile.TemporaryDirectory(prefix="regrow-bench-") as folder:
        points, killed_at, seconds = measured(Path(folder), asked.kill_after)
    steps = [int(point["env_steps"]) for point in points]
    exact = [b - a for a, b in itertools.pairwise(steps)]
    last = points[-1]
    print(
        f"return {last['return']:.1f} after {len(points)} iterations, {seconds:.0f} s, one SIGKILL"
        " among them"
    )
    for point in points:
        if killed_at <= point["step"] <= killed_at + 1:
            told = (
                f"{point['env_steps']:,.0f} steps of the environment, iteration"
                f" {point['iterations']:.0f}"
            )
            print(f"step {point['step']}, attempt {point['attempt']}: {told}")
    print(f"steps of the environment an iteration: {min(exact)} to {max(exact)}")
    right = [point["iterations"] for point in points] == [float(point["step"]) for point in points]
    sys.exit(0 if last["return"] >= GOAL and len(points) <= MOST and right else 1)


def compared(rounds: int, iterations: int) -> None:
    """Prints a table of the three sides."""
    found: dict[str, list[tuple[float, ...]]] = {side: [] for side in SIDES}
    loads = []
    for number in range(rounds):
        for side in (*SIDES[number % 3 :], *SIDES[: number % 3]):
            loads.append(os.getloadavg()[0])
            with tempfile.TemporaryDirectory(prefix="regrow-bench-") as folder:
                found[side].append(one(side, Path(folder), iterations))
    for place, what in enumerate(
        ("command to first iteration, s", "an iteration, s", f"{iterations} iterations, process, s")
    ):
        medians = {
            side: statistics.median(row[place] for row in rows) for side, rows in found.items()
        }
        cells = []
        for side, rows in found.items():
            values = [row[place] for row in rows]
            ratio = medians[side] / medians["plain"]
            cells.append(
                f"{side} {medians[side]:.2f} ({min(values):.2f} to {max(values):.2f}, {ratio:.2f}"
                " of plain)"
            )
        print(f"{what}: {'; '.join(cells)}")
    print(f"load {min(loads):.1f} to {max(loads):.1f}")


def one(side: str, folder: Path, iterations: int) -> tuple[float, ...]:
    """Seconds to the first iteration's end, of an iteration (median), and of the process."""
    noted = folder / "iterations"
    if side == "ours":
        (folder / "cartpole.yaml").write_text(
            json.dumps({**SPEC, "max_steps": iterations, "stop": {}})
        )
        typed = [sys.executable, "-m", "regrow", "run", "cartpole.yaml", "--quiet"]
    else:
        settings = {**SPEC["space"], "model": {**SPEC["space"]["model"], "fcnet_hiddens": [32]}}
        typed = [
            sys.executable,
            str(SIDES_FILE),
            side,
            str(iterations),
            json.dumps(settings),
            str(noted),
        ]
    begun, ticking = time.time(), time.monotonic()
    environment = {**os.environ, "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        typed,
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    whole = time.monotonic() - ticking
    if side == "ours":
        times = [
            row[1]
            for event in events(folder)
            if event["event"] == "reported"
            for row in event["rows"]
        ]
    else:
        times = [float(line) for line in noted.read_text().splitlines()]
    if len(times) != iterations:
        sys.exit(f"{side}: {len(times)} iterations instead of {iterations}")
    return times[0] - begun, statistics.median(b - a for a, b in itertools.pairwise(times)), whole


def measured(folder: Path, kill_after: int) -> tuple[list[dict[str, Any]], int, float]:
    """The points of the trial, the step that its second attempt went on from, and how long all of
    it took.
    """
    (folder / "cartpole.yaml").write_text(json.dumps(SPEC))
    mark = secrets.token_hex(8)
    begun = time.monotonic()
    typed = [sys.executable, "-m", "regrow", "run", "cartpole.yaml"]
    driver = subprocess.Popen(typed, cwd=folder, env={**os.environ, MARK: mark})
    while driver.poll() is None and count(folder, "saved") < kill_after:
        time.sleep(0.1)
    os.kill(trial(mark), signal.SIGKILL)
    if driver.wait() != 0:
        sys.exit("the run failed")
    seconds = time.monotonic() - begun
    listed = [sys.executable, "-m", "regrow", "trials", "cartpole", "--history", "--json"]
    told = subprocess.run(listed, cwd=folder, capture_output=True, text=True, check=True)
    points = [json.loads(line) for line in told.stdout.splitlines()]
    began = [event for event in events(folder) if event["event"] == "began"]
    return points, int(began[-1]["restored"]), seconds


def events(folder: Path) -> list[dict[str, Any]]:
    """The log; its last line may be under way."""
    found: list[dict[str, Any]] = []
    for segment in sorted((folder / ".regrow" / "cartpole" / "log").glob("*.jsonl")):
        found += [
            json.loads(line) for line in segment.read_text().splitlines() if line.endswith("}")
        ]
    return [event for event in found if "event" in event]


def count(folder: Path, kind: str) -> int:
    """How many events of a kind there are."""
    return sum(event["event"] == kind for event in events(folder))


def trial(mark: str) -> int:
    """The process of the trial."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and "ray::trial-0000" in " ".join(
                process.cmdline()
            ):
                return int(process.pid)
        except psutil.Error:
            continue
    sys.exit("there is no process of the trial")


if __name__ == "__main__":
    main()
