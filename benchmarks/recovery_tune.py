"""Ray Tune's side of `recovery.py`: two endless trials, a checkpoint at every step.

    python recovery_tune.py FOLDER SECONDS [restore]

Set up in its favour: no limit of failures, nothing printed, storage on the local disk, the latest
checkpoint kept.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import tune


def train(config: dict[str, Any]) -> None:
    """One step each `seconds`, each with a checkpoint, each told to a file."""
    step = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            step = json.loads(Path(folder, "model.json").read_text())["step"]
    while True:
        step += 1
        time.sleep(config["seconds"])
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "model.json").write_text(json.dumps({"step": step}))
            tune.report({"score": step}, checkpoint=tune.Checkpoint.from_directory(folder))
        with Path(config["steps"]).open("a") as file:
            file.write(
                json.dumps(
                    {"trial": config["trial"], "pid": os.getpid(), "step": step, "t": time.time()}
                )
                + "\n"
            )


def main(folder: Path, seconds: float, restore: bool) -> None:
    """Runs until it is killed."""
    address = os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = (
        {} if address else {"address": "local", "num_cpus": 2, "include_dashboard": False}
    )
    ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    if restore:
        tuner = tune.Tuner.restore(str(folder / "storage" / "bench"), train, resume_errored=True)
    else:
        tuner = tune.Tuner(
            train,
            param_space={
                "trial": tune.grid_search([0, 1]),
                "seconds": seconds,
                "steps": str(folder / "steps.jsonl"),
            },
            tune_config=tune.TuneConfig(metric="score", mode="max", max_concurrent_trials=2),
            run_config=tune.RunConfig(
                storage_path=str(folder / "storage"),
                name="bench",
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=-1),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
            ),
        )
    tuner.fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), "restore" in sys.argv)
