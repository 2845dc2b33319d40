"""PPO of RLlib's on CartPole to a return of 450 within 60 iterations, its process killed once on the way.

    python benchmarks/rllib_cartpole.py --kill-after 5

Prints the iterations and seconds that it took, and the counters of the last step before the kill and of the first after it:
they must go on by one iteration and one batch. Returns are not compared, as environments are not saved.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

GOAL, MOST, BATCH = 450.0, 60, 4000
MARK = "REGROW_BENCH"
SPEC: dict[str, Any] = {
    "name": "cartpole", "rllib": {"algorithm": "PPO", "env": "CartPole-v1", "env_runners": 1}, "metric": "return", "mode": "max",
    "space": {
        "lr": 0.0003, "num_epochs": 6, "vf_loss_coeff": 0.01, "train_batch_size_per_learner": BATCH, "num_envs_per_env_runner": 8,
        "model": {"fcnet_hiddens": {"constant": [32]}, "fcnet_activation": "linear", "vf_share_layers": True},
    },
    "search": "random", "trials": 1, "max_steps": MOST, "stop": {"trial": {"target": GOAL}}, "checkpoint": {"every_steps": 1},
}


def main() -> None:
    """Runs it once; exits with 1 if the goal was missed or a counter is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kill-after", type=int, default=5, help="durable checkpoints before the kill")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="regrow-bench-") as folder:
        points, killed_at, seconds = measured(Path(folder), asked.kill_after)
    steps = [int(point["env_steps"]) for point in points]
    exact = [b - a for a, b in itertools.pairwise(steps)]
    last = points[-1]
    print(f"return {last['return']:.1f} after {len(points)} iterations, {seconds:.0f} s, one SIGKILL among them")
    for point in points:
        if killed_at <= point["step"] <= killed_at + 1:
            told = f"{point['env_steps']:,.0f} steps of the environment, iteration {point['iterations']:.0f}"
            print(f"step {point['step']}, attempt {point['attempt']}: {told}")
    print(f"steps of the environment an iteration: {min(exact)} to {max(exact)}")
    right = [point["iterations"] for point in points] == [float(point["step"]) for point in points]
    sys.exit(0 if last["return"] >= GOAL and len(points) <= MOST and right else 1)


def measured(folder: Path, kill_after: int) -> tuple[list[dict[str, Any]], int, float]:
    """The points of the trial, the step that its second attempt went on from, and how long all of it took."""
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
        found += [json.loads(line) for line in segment.read_text().splitlines() if line.endswith("}")]
    return [event for event in found if "event" in event]


def count(folder: Path, kind: str) -> int:
    """How many events of a kind there are."""
    return sum(event["event"] == kind for event in events(folder))


def trial(mark: str) -> int:
    """The process of the trial."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and "ray::trial-0000" in " ".join(process.cmdline()):
                return int(process.pid)
        except psutil.Error:
            continue
    sys.exit("there is no process of the trial")


if __name__ == "__main__":
    main()
