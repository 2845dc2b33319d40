"""Trials of RLlib's, as real runs: nothing is lost with a worker, and nothing that RLlib started outlives its trial."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.ray import cluster
from regrow.launch import check_rllib
from regrow.one_trial import OneTrial, configuration, temporary_store
from regrow.search.events import Row
from regrow.search.spec import Spec
from tests.system.conftest import Desk, await_no_process, processes_of

pytest.importorskip("gymnasium", reason="regrow[rl] is not installed")
pytest.importorskip("torch")

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
SMALL = {"train_batch_size_per_learner": 200, "minibatch_size": 100, "num_epochs": 2, "model": {"fcnet_hiddens": {"constant": [16]}}}


def experiment(desk: Desk, name: str, **changes: Any) -> Path:
    """Writes the user's files and a specification."""
    (desk.folder / "corridors.py").write_text("LEAST = 1\n")
    given = {"metric": "return", "mode": "max", "search": "random", "trials": 1, "max_steps": 6, "concurrency": None, **changes}
    return desk.write(name, train=AGENTS, trainable=None, **given)


def workers(desk: Desk, title: str) -> list[int]:
    """Processes of a test's cluster by their title."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            mark = f"REGROW_TEST_MARK={desk.folder}".encode() in (entry / "environ").read_bytes()
            if mark and (entry / "cmdline").read_bytes().startswith(title.encode()):
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


def test_a_ppo_with_an_env_runner_that_is_killed_goes_on_exactly(desk: Desk) -> None:
    own = {"algorithm": "PPO", "env": "work.py:Corridor", "env_config": {"length": 2}, "env_runners": 1}
    space = {**SMALL, "lr": {"loguniform": [1e-3, 1e-2]}}
    file = experiment(desk, "ppo", rllib=own, space=space, max_steps=8)
    process = desk.start("run", file)
    desk.await_events("ppo", "saved", 2, process)
    (runner,), (trial,) = workers(desk, RUNNER), workers(desk, "ray::trial-0000")
    os.kill(trial, signal.SIGKILL)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    points = desk.points("ppo")
    assert [p["step"] for p in points] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [p["env_steps"] for p in points] == [200.0 * step for step in range(1, 9)]
    assert [p["iterations"] for p in points] == [float(step) for step in range(1, 9)]
    (_, second) = [e for e in desk.events("ppo") if e["event"] == "began"]
    assert second["attempt"] == 2
    assert second["restored"] >= 2
    (created,) = [e for e in desk.events("ppo") if e["event"] == "created"]
    assert created["spec"]["resources"]["children"]["count"] == 1
    assert not Path(f"/proc/{runner}").exists()
    assert await_no_process(desk.folder) == []
    assert "ok" in desk.run("verify", "ppo").stdout
    assert not (Path(desk.environment["HOME"]) / "ray_results").exists()


def test_what_rllib_refuses_is_told_before_anything_starts(desk: Desk) -> None:
    file = experiment(desk, "wrong", rllib={"algorithm": "PPO", "env": "CartPole-v1"}, space={"minibatch_size": 8192})
    done = desk.run("run", file, expect=2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("regrow: ")
    assert "space.minibatch_size: 8192: RLlib refuses it: `minibatch_size` (8192)" in line
    assert not (desk.folder / ".regrow").exists()


def test_a_configuration_of_ones_own_is_tried(desk: Desk) -> None:
    file = experiment(desk, "own", space={"lr": 0.001, "length": 2})
    file.write_text(file.read_text().replace('"metric"', '"trainable": "work.py:configure", "metric"'))
    out = desk.run("try", file, "--steps", "2").stdout
    assert "done after 2 steps" in out
    assert "once more from the checkpoint of step 1, as after a loss:" in out
    again = out.partition("once more")[2]
    assert "env_steps 200" in again
    assert "iterations 2" in again
    assert processes_of(desk.folder) == []


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """A cluster of this process's own."""
    cluster.connect(address="local", cpus=2, env={"OMP_NUM_THREADS": "1"})
    try:
        yield
    finally:
        cluster.disconnect()


TINY = {"fcnet_hiddens": {"constant": [8]}}
WITH_BUFFER = {"num_steps_sampled_before_learning_starts": 50, "min_sample_timesteps_per_iteration": 100, "model": TINY}
ASYNC = {"train_batch_size_per_learner": 100, "min_time_s_per_iteration": 0, "min_sample_timesteps_per_iteration": 200, "model": TINY}


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    ("algorithm", "env", "space"),
    [
        ("DQN", "CartPole-v1", {**WITH_BUFFER, "train_batch_size_per_learner": 8, "training_intensity": 1}),
        ("SAC", "Pendulum-v1", {**WITH_BUFFER, "train_batch_size_per_learner": 8, "training_intensity": 1}),
        ("IMPALA", "CartPole-v1", ASYNC),
        ("APPO", "CartPole-v1", ASYNC),
    ],
)
def test_algorithms_go_on_where_they_were(algorithm: str, env: str, space: dict[str, Any]) -> None:
    spec = Spec.parse({
        "name": "one", "rllib": {"algorithm": algorithm, "env": env}, "metric": "return", "mode": "max", "space": space, "trials": 1,
    })
    spec = check_rllib(spec)
    rows: list[Row] = []
    with temporary_store() as store:
        one = OneTrial(spec=spec, config=configuration(spec, 0, {}), number=0, store=store, told=rows.append)
        first = one.run(2)
        assert (first.outcome, first.step) == ("done", 2), first
        second = one.run(4, after=one.saved[-1])
    assert (second.outcome, second.step) == ("done", 4), second
    steps = [row.metrics["env_steps"] or 0.0 for row in rows]
    assert steps == sorted(set(steps)), steps
    iterations = [row.metrics["iterations"] or 0.0 for row in rows]
    assert iterations == sorted(set(iterations))
