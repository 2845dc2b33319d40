"""Trials of RLlib's, as real runs: nothing is lost with a worker, and nothing that RLlib started
outlives its trial.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray as ray_module
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from regrow.flows.checks import check_frameworks
from regrow.flows.one_trial import OneTrial, configuration, temporary_store
from regrow.infra.ray import cluster
from regrow.infra.stores.local import LocalStore
from regrow.integrations.rllib import checkpoint
from regrow.integrations.rllib.settings import configured, quiet, seeded
from regrow.search.events import Row
from regrow.search.spec import RLlib, Spec
from regrow.search.spec.parts import Children
from regrow.tasks.checkpoint import saving
from tests.system.agents import MIDDLING, RUNNER, SMALL, experiment
from tests.system.conftest import Desk, await_no_process, running

pytest.importorskip("gymnasium", reason="regrow[rl] is not installed")
pytest.importorskip("torch")


# By day the algorithms below go on exactly in one process, a custom configuration is run for
# real, and test_nested.py kills a trial that has actors.
@pytest.mark.nightly
@pytest.mark.usefixtures("shared_prefect")
def test_a_ppo_with_an_env_runner_that_is_killed_goes_on_exactly(desk: Desk) -> None:
    own = {
        "algorithm": "PPO",
        "env": "work.py:Corridor",
        "env_config": {"length": 2},
        "env_runners": 1,
    }
    space = {**SMALL, "lr": {"loguniform": [1e-3, 1e-2]}}
    file = experiment(desk, "ppo", rllib=own, space=space, max_steps=8)
    process = desk.start("run", file)
    desk.await_events("ppo", "saved", 2, process)
    (runner,), (trial,) = running(desk.folder, RUNNER), running(desk.folder, "ray::trial-0000")
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
    assert "all as recorded" in desk.look("verify", "ppo")
    assert not (Path(desk.environment["HOME"]) / "ray_results").exists()


def test_what_rllib_refuses_is_told_before_anything_starts(desk: Desk) -> None:
    file = experiment(
        desk,
        "wrong",
        rllib={"algorithm": "PPO", "env": "CartPole-v1"},
        space={"minibatch_size": 8192},
    )
    done = desk.run("run", file, expect=2)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("regrow: ")
    assert "space.minibatch_size: 8192: RLlib refuses it: `minibatch_size` (8192)" in line
    assert not (desk.folder / ".regrow").exists()


def test_a_configuration_of_ones_own_is_tried(desk: Desk) -> None:
    file = experiment(desk, "own", space={"lr": 0.001, "length": 2})
    file.write_text(
        file.read_text().replace('"metric"', '"trainable": "work.py:configure", "metric"')
    )
    out = desk.run("try", file, "--steps", "2").stdout
    assert "done after 2 steps" in out
    assert "once more from the checkpoint of step 1, as after a loss:" in out
    again = out.partition("once more")[2]
    assert "env_steps 200" in again
    assert "iterations 2" in again
    assert running(desk.folder) == {}


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    """A cluster of this process's own."""
    cluster.connect(address="local", cpus=2, env={"OMP_NUM_THREADS": "1"})
    try:
        yield
    finally:
        cluster.disconnect()


TINY = {"fcnet_hiddens": {"constant": [8]}}
WITH_BUFFER = {
    "num_steps_sampled_before_learning_starts": 50,
    "min_sample_timesteps_per_iteration": 100,
    "model": TINY,
}
ASYNC = {
    "train_batch_size_per_learner": 100,
    "min_time_s_per_iteration": 0,
    "min_sample_timesteps_per_iteration": 200,
    "model": TINY,
}

DREAMER = {
    "model_size": "nano",
    "batch_size_B": 2,
    "batch_length_T": 8,
    "horizon_H": 3,
    "training_ratio": 4,
}
RECORDS = {
    "train_batch_size_per_learner": 32,
    "dataset_num_iters_per_learner": 3,
    "evaluation_duration": 1,
    "model": TINY,
}


def spec_of(algorithm: str, env: str, space: dict[str, Any], **more: Any) -> Spec:
    """A specification of one trial; `more` stands below `rllib`."""
    own = {"algorithm": algorithm, "env": env, **more}
    return Spec.parse(
        {
            "name": "one",
            "rllib": own,
            "metric": "return",
            "mode": "max",
            "space": space,
            "trials": 1,
        }
    )


def tried(algorithm: str, env: str, space: dict[str, Any], *until: int, **more: Any) -> list[Row]:
    """What a trial reports up to each of these steps, by an attempt each."""
    spec = check_frameworks(spec_of(algorithm, env, space, **more))
    rows: list[Row] = []
    with temporary_store() as store:
        one = OneTrial(
            spec=spec, config=configuration(spec, 0, {}), number=0, store=store, show=rows.append
        )
        for most in until:
            ended = one.run(most, after=one.saved[-1] if one.saved else None)
            assert (ended.outcome, ended.step) == ("done", most), ended
    return rows


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    ("algorithm", "env", "space"),
    [
        ("IMPALA", "CartPole-v1", ASYNC),
        # A buffer's way is that of the test of SAC below.
        pytest.param(
            "DQN",
            "CartPole-v1",
            {**WITH_BUFFER, "train_batch_size_per_learner": 8, "training_intensity": 1},
            marks=pytest.mark.nightly,
        ),
        pytest.param("DreamerV3", "CartPole-v1", DREAMER, marks=pytest.mark.nightly),
        pytest.param(
            "SAC",
            "Pendulum-v1",
            {**WITH_BUFFER, "train_batch_size_per_learner": 8},
            marks=pytest.mark.nightly,
        ),
        pytest.param("APPO", "CartPole-v1", ASYNC, marks=pytest.mark.nightly),
    ],
)
def test_algorithms_go_on_where_they_were(algorithm: str, env: str, space: dict[str, Any]) -> None:
    rows = tried(algorithm, env, space, 2, 4)
    assert rising(rows, "env_steps")
    assert rising(rows, "iterations")


def rising(rows: list[Row], name: str) -> bool:
    """Whether each report of a counter is above the one before."""
    counts = [row.metrics[name] or 0.0 for row in rows]
    return counts == sorted(set(counts))


def record(env: str, folder: Path, episodes: int = 5) -> Path:
    """Writes episodes played at random, a row a step, by the names that RLlib reads by itself."""
    import gymnasium
    import pyarrow as pa
    from pyarrow import parquet

    world, rows = gymnasium.make(env), []
    world.action_space.seed(0)
    for episode in range(episodes):
        (before, _), done = world.reset(seed=episode), False
        while not done:
            action = world.action_space.sample()
            after, reward, terminated, truncated, _ = world.step(action)
            rows.append({
                "eps_id": str(episode), "obs": before.tolist(), "actions": action.tolist(), "rewards": float(reward),
                "new_obs": after.tolist(), "terminateds": terminated, "truncateds": truncated,
            })  # fmt: skip
            before, done = after, terminated or truncated
    parquet.write_table(pa.Table.from_pylist(rows), folder / "episodes.parquet")
    return folder


# By day tests/unit/test_rllib.py has what is asked of recorded episodes.
@pytest.mark.nightly
@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        ("BC", "CartPole-v1"),
        ("MARWIL", "CartPole-v1"),
        ("CQL", "Pendulum-v1"),
        ("IQL", "Pendulum-v1"),
    ],
)
def test_what_learns_from_records_goes_on_in_a_trials_own_room(
    tmp_path: Path, algorithm: str, env: str
) -> None:
    """On two CPUs, both the trial's: none is left for Ray Data, which asks for three by itself,
    outside of what trials have.
    """
    offline = str(record(env, tmp_path))
    assert check_frameworks(
        spec_of(algorithm, env, RECORDS, offline=offline)
    ).resources.children == Children(cpu=1)
    room = ray_module.util.placement_group([{"CPU": 1}, {"CPU": 1}])
    try:
        strategy = PlacementGroupSchedulingStrategy(
            room, 0, placement_group_capture_child_tasks=True
        )
        attempts = ray_module.remote(num_cpus=1, scheduling_strategy=strategy)(tried)
        rows = ray_module.get(
            attempts.remote(algorithm, env, RECORDS, 2, 4, offline=offline), timeout=240
        )
    finally:
        ray_module.util.remove_placement_group(room)
    assert [row.metrics["iterations"] for row in rows] == [1, 2, 3, 4]
    assert all(row.metrics["return"] == row.metrics["evaluation_return"] for row in rows)
    assert algorithm == "CQL" or rising(rows, "env_steps")  # RLlib does not count for that one


def made(algorithm: str, env: str, **settings: Any) -> Any:
    """An algorithm as a trial has it."""
    part = RLlib(algorithm=algorithm, env=env, env_runners=settings.pop("env_runners", 0))  # type: ignore[arg-type]
    return seeded(configured(part, settings, folder=None), 3, 0).build_algo()


def weights(algorithm: Any) -> Any:
    """Of the learner and of each env runner, a number."""
    state = algorithm.learner_group.get_state(components="learner/rl_module", inference_only=True)[
        "learner"
    ]["rl_module"]
    of_runners = algorithm.env_runner_group.foreach_env_runner(
        lambda runner: total(runner.module.get_state(inference_only=True))
    )
    return [total(state["default_policy"]), *of_runners]


def total(state: dict[str, Any]) -> float:
    return float(sum(abs(values).sum() for values in state.values()))


def rates(algorithm: Any) -> list[float]:
    """The rates of learning of its optimizers."""
    (found,) = algorithm.learner_group.foreach_learner(
        func=lambda learner: [
            group["lr"] for one in learner._optimizer_lr_schedules for group in one.param_groups
        ]
    )
    return list(found.get())


@pytest.mark.usefixtures("ray")
def test_a_checkpoint_has_what_rllibs_own_lacks(tmp_path: Path) -> None:
    """RLlib sends weights to its env runners one message at a time and drops the others; it keeps
    old rates and new coefficients.
    """
    small = {
        "train_batch_size_per_learner": 64,
        "minibatch_size": 32,
        "num_epochs": 2,
        "model": {"fcnet_hiddens": [8]},
        "kl_target": 0,
    }
    with quiet():
        first = made("PPO", "CartPole-v1", lr=0.01, env_runners=1, **small)
        first.train()
        checkpoint.save(first, tmp_path, {"env_steps": 64}, with_buffer=True)
        second = made("PPO", "CartPole-v1", lr=0.002, env_runners=1, **small)
        assert checkpoint.load(second, tmp_path) == {"env_steps": 64}
        of_learner, *of_runners = weights(first)
        assert weights(second) == [of_learner] * (1 + len(of_runners))
        assert rates(second) == [0.002]
        result = second.train()
        show = result["learners"]["default_policy"]
        assert (result["num_env_steps_sampled_lifetime"], result["training_iteration"]) == (128, 2)
        assert show["curr_kl_coeff"] > 0.25, "it rises with each iteration, from 0.2"
        first.stop()
        second.stop()


@pytest.mark.usefixtures("ray")
def test_a_replay_buffer_and_a_temperature_go_on(tmp_path: Path) -> None:
    settings = {
        "train_batch_size_per_learner": 8,
        "training_intensity": 1,
        "model": {"fcnet_hiddens": [8]},
    }
    settings |= {
        "num_steps_sampled_before_learning_starts": 20,
        "min_sample_timesteps_per_iteration": 60,
        "alpha_lr": 0.1,
    }
    with quiet():
        first = made("SAC", "Pendulum-v1", **settings)
        first.train()
        checkpoint.save(first, tmp_path, {}, with_buffer=True)
        second = made("SAC", "Pendulum-v1", **settings)
        checkpoint.load(second, tmp_path)
        assert (
            second.local_replay_buffer.get_num_timesteps()
            == first.local_replay_buffer.get_num_timesteps()
            >= 60
        )
        before, after = (
            found.learner_group.foreach_learner(func=temperature) for found in (first, second)
        )
        assert [one.get() for one in before] == [one.get() for one in after] != [0.0]
        second.train()
        first.stop()
        second.stop()


def temperature(learner: Any) -> float:
    return float(learner.curr_log_alpha["default_policy"])


@pytest.mark.usefixtures("ray")
def test_a_step_lasts_until_a_first_episode_ends_and_repeats_its_return_where_none_does() -> None:
    """An episode of Pendulum has 200 steps, an iteration here 96: the third is the first in which
    one ends, then each other.
    """
    rows = tried(
        "PPO", "Pendulum-v1", {**SMALL, "train_batch_size_per_learner": 96, "minibatch_size": 96}, 3
    )
    assert [row.metrics["iterations"] for row in rows] == [3, 4, 5]
    assert rows[0].metrics["return"] == rows[1].metrics["return"] != rows[2].metrics["return"]


@pytest.mark.nightly
def test_a_lost_env_runner_costs_no_step(desk: Desk) -> None:
    """RLlib starts it again, and counts iterations in which nothing was played until it is there:
    they are not reported.
    """
    file = experiment(
        desk,
        "runner",
        rllib={"algorithm": "PPO", "env": "CartPole-v1", "env_runners": 1},
        space=MIDDLING,
        max_steps=8,
    )
    process = desk.start("run", file)
    killed: list[int] = []
    for after in (2, 5):
        desk.await_events("runner", "saved", after, process)
        killed += running(desk.folder, RUNNER)
        os.kill(killed[-1], signal.SIGKILL)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    assert len({*killed}) == 2
    points = desk.points("runner")
    assert [(p["step"], p["attempt"], p["env_steps"]) for p in points] == [
        (step, 1, 1000.0 * step) for step in range(1, 9)
    ]
    assert points[-1]["iterations"] > 8, "RLlib has counted those, too"
    assert await_no_process(desk.folder) == []


@pytest.mark.nightly
def test_what_learns_from_records_goes_on_exactly_after_a_kill(desk: Desk) -> None:
    offline = str(record("CartPole-v1", desk.folder))
    file = experiment(
        desk,
        "bc",
        rllib={"algorithm": "BC", "env": "CartPole-v1", "offline": offline},
        space=RECORDS,
        max_steps=8,
    )
    process = desk.start("run", file)
    desk.await_events("bc", "saved", 2, process)
    (trial,) = running(desk.folder, "ray::trial-0000")
    os.kill(trial, signal.SIGKILL)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0, out
    points = desk.points("bc")
    assert [(p["step"], p["iterations"], p["env_steps"]) for p in points] == [
        (step, step, 32.0 * step) for step in range(1, 9)
    ]
    assert {p["attempt"] for p in points} == {1, 2}
    assert await_no_process(desk.folder) == []


@pytest.mark.nightly
def test_the_worse_of_a_population_goes_on_from_the_others_networks_and_counters(
    desk: Desk, tmp_path: Path
) -> None:
    """One of the two hardly learns, by its rate."""
    space = {
        **MIDDLING,
        "train_batch_size_per_learner": 500,
        "num_epochs": 10,
        "lr": {"loguniform": [1e-8, 3e-3]},
    }
    file = experiment(
        desk, "pbt", rllib={"algorithm": "PPO", "env": "CartPole-v1"}, space=space, points=[{"lr": 2e-3}, {"lr": 1e-8}], trials=2,
        max_steps=8, concurrency=2, schedule={"pbt": {"perturbation_interval": 2}}, checkpoint={"keep_last": 20},
    )  # fmt: skip
    desk.run("run", file)
    store, points, events = (
        LocalStore(desk.folder / ".regrow" / "pbt"),
        desk.points("pbt"),
        desk.events("pbt"),
    )

    def networks(manifest: str) -> Any:
        saving.restore(store, [manifest], tmp_path / manifest)
        state = (
            tmp_path
            / manifest
            / checkpoint.STATE
            / "learner_group/learner/rl_module/default_policy/module_state.pkl"
        )
        return np.concatenate(
            [value.ravel() for _, value in sorted(pickle.loads(state.read_bytes()).items())]
        )

    exploits = [
        event for event in events if event["event"] == "decided" and event["verdict"] == "restart"
    ]
    # those of before an exploit are not
    kept, compared = ([*(desk.folder / ".regrow/pbt/manifests").rglob("*.json")], 0)
    for exploit in exploits:
        trial, step, attempt = exploit["trial"], exploit["step"], exploit["attempt"]
        source = exploit["manifests"][0]
        of_source = int(Path(source).stem)
        (first,) = [p for p in points if (p["trial"], p["step"]) == (trial, step + 1)]
        assert first["attempt"] == attempt + 1
        assert (first["iterations"], first["env_steps"]) == (of_source + 1, 500 * (of_source + 1))
        after = f"manifests/{trial}/{attempt + 1}/{step + 1:010}.json"
        if not {source, after} - {
            manifest.relative_to(desk.folder / ".regrow/pbt").as_posix() for manifest in kept
        }:
            theirs = networks(source)
            assert np.linalg.norm(networks(after) - theirs) < 0.5 * np.linalg.norm(theirs), (
                "networks of its own are 1.4 times it away"
            )
            compared += 1
    assert compared
    assert "all as recorded" in desk.look("verify", "pbt")


@pytest.mark.nightly
def test_ppo_learns_to_hold_the_pole_though_it_is_killed(desk: Desk) -> None:
    """The work of `benchmarks/rllib_cartpole.py`."""
    space = {
        "lr": 0.0003, "num_epochs": 6, "vf_loss_coeff": 0.01, "train_batch_size_per_learner": 4000, "num_envs_per_env_runner": 8,
        "model": {"fcnet_hiddens": {"constant": [32]}, "fcnet_activation": "linear", "vf_share_layers": True},
    }  # fmt: skip
    own = {"algorithm": "PPO", "env": "CartPole-v1", "env_runners": 1}
    file = experiment(
        desk, "pole", rllib=own, space=space, max_steps=60, stop={"trial": {"target": 450}}
    )
    process = desk.start("run", file)
    desk.await_events("pole", "saved", 5, process)
    (trial,) = running(desk.folder, "ray::trial-0000")
    os.kill(trial, signal.SIGKILL)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    points = desk.points("pole")
    assert points[-1]["return"] >= 450
    assert {p["attempt"] for p in points} == {1, 2}
    assert (
        [p["iterations"] for p in points]
        == [p["step"] for p in points]
        == [*range(1, len(points) + 1)]
    )
    steps = [0, *(p["env_steps"] for p in points)]
    assert all(4000 <= b - a < 4008 for a, b in itertools.pairwise(steps)), (
        "eight environments at once"
    )
    assert await_no_process(desk.folder) == []
