"""Ray Tune's side of `overhead.py`: one experiment in this process, its times written as JSON.

    python overhead_tune.py TRIALS REPORTS SECONDS FOLDER [METRICS]

Set up in its favour: actors are reused, nothing is printed, no dashboard, no usage statistics,
storage on the local disk. Its result files (JSON, CSV, TensorBoard) stay on, as they are by
default: ours records every trial, too.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

START = time.time()

import ray  # noqa: E402  # what is measured is from here on
from ray import tune  # noqa: E402


def train(config: dict[str, Any]) -> None:
    """As many reports as asked for, one each `seconds`."""
    folder = Path(config["folder"])
    first = folder / "first-report"
    for _ in range(config["reports"]):
        if config["seconds"]:
            time.sleep(config["seconds"])
        tune.report(
            {
                "score": config["x"],
                **{f"m{n}": config["x"] / (n + 1) for n in range(config["metrics"] - 1)},
            }
        )
        if not first.exists():
            first.write_text(str(time.time()))
    (folder / "last-report").write_text(str(time.time()))


def main(trials: int, reports: int, seconds: float, folder: Path, metrics: int = 1) -> None:
    imported = time.time()
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    ready = time.time()
    tuner = tune.Tuner(
        train,
        param_space={
            "x": tune.uniform(0, 1),
            "reports": reports,
            "seconds": seconds,
            "folder": str(folder),
            "metrics": metrics,
        },
        tune_config=tune.TuneConfig(
            num_samples=trials, metric="score", mode="max", reuse_actors=True
        ),
        run_config=tune.RunConfig(storage_path=str(folder / "storage"), name="bench", verbose=0),
    )
    results = tuner.fit()
    fitted = time.time()
    done = [
        (results[number].metrics or {}).get("training_iteration", 0)
        for number in range(len(results))
    ]
    times = {"import": imported - START, "init": ready - imported, "fit": fitted - ready}
    times |= {"trials": len(done), "rows": sum(done)}
    (folder / "times.json").write_text(json.dumps(times))


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        float(sys.argv[3]),
        Path(sys.argv[4]),
        *map(int, sys.argv[5:]),
    )
