"""Experiments of RLlib's as a user writes them, with an environment of the user's own. No test
lives here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.system.conftest import Desk

RUNNER = "ray::SingleAgentEnvRunner"
AGENTS = """
from __future__ import annotations

import gymnasium as gym
import numpy as np
from ray.rllib.algorithms.ppo import PPOConfig

from corridors import LEAST  # another file of the user's, which the env runners have to find, too


class Corridor(gym.Env):
    def __init__(self, config):
        self.length = config["length"] + LEAST
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Box(0.0, 99.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = self.moves = 0
        return np.array([self.at], np.float32), {}

    def step(self, action):
        self.at, self.moves = max(0, self.at + (1 if action else -1)), self.moves + 1
        done = self.at >= self.length
        return np.array([self.at], np.float32), float(done) - 0.1, done, self.moves >= 40, {}


def configure(config: dict) -> PPOConfig:
    made = PPOConfig().environment(Corridor, env_config={"length": config["length"]}).env_runners(num_env_runners=0)
    return made.training(lr=config["lr"], train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
"""
SMALL = {
    "train_batch_size_per_learner": 200,
    "minibatch_size": 100,
    "num_epochs": 2,
    "model": {"fcnet_hiddens": {"constant": [16]}},
}

MIDDLING = {**SMALL, "train_batch_size_per_learner": 1000, "minibatch_size": 125}


def experiment(desk: Desk, name: str, **changes: Any) -> Path:
    """Writes the user's files and a specification."""
    (desk.folder / "corridors.py").write_text("LEAST = 1\n")
    given = {
        "metric": "return",
        "mode": "max",
        "search": "random",
        "trials": 1,
        "max_steps": 6,
        "concurrency": None,
        **changes,
    }
    return desk.write(name, train=AGENTS, trainable=None, **given)
