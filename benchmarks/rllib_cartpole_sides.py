"""The other two sides of `rllib_cartpole.py`: plain RLlib, and Ray Tune. A checkpoint follows each
iteration.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def config(settings: dict[str, Any]) -> Any:
    """What ours makes of `rllib: {algorithm: PPO, env: CartPole-v1, env_runners: 1}` and these
    settings.
    """
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    training = {
        name: value
        for name, value in settings.items()
        if name not in {"model", "num_envs_per_env_runner"}
    }
    made = PPOConfig().environment("CartPole-v1").training(**training)  # type: ignore[no-untyped-call]  # of RLlib
    made.rl_module(model_config=DefaultModelConfig(**settings["model"])).learners(num_learners=0)
    return made.env_runners(
        num_env_runners=1, num_envs_per_env_runner=settings["num_envs_per_env_runner"]
    )


def plain(iterations: int, settings: dict[str, Any], file: Path) -> None:
    """In this process."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False)
    algorithm = config(settings).build_algo()
    with tempfile.TemporaryDirectory() as folder:
        for iteration in range(iterations):
            algorithm.train()
            note(file)
            algorithm.save_to_path(f"{folder}/{iteration}")
    algorithm.stop()


def tune(iterations: int, settings: dict[str, Any], file: Path) -> None:
    """As a trial of Ray Tune's."""
    import ray
    from ray.tune import Callback, CheckpointConfig, RunConfig, Tuner

    class Noted(Callback):
        def on_trial_result(self, *_: Any, **__: Any) -> None:
            note(file)

    ray.init(address="local", num_cpus=2, include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        run = RunConfig(
            storage_path=folder, callbacks=[Noted()], verbose=0,
            stop={"training_iteration": iterations},
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1, num_to_keep=3),
        )  # fmt: skip
        Tuner("PPO", param_space=config(settings), run_config=run).fit()


def note(file: Path) -> None:
    """An iteration is done."""
    with file.open("a") as lines:
        lines.write(f"{time.time()}\n")


if __name__ == "__main__":
    side, count, given, target = sys.argv[1:]
    {"plain": plain, "tune": tune}[side](int(count), json.loads(given), Path(target))
