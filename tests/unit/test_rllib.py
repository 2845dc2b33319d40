"""RLlib's algorithms as trials: what a specification may say, what RLlib says against it before
anything starts, what is reported.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from regrow.flows.checks import check_frameworks, precheck
from regrow.integrations.rllib import runners, users_code
from regrow.integrations.rllib.bundles import resources
from regrow.integrations.rllib.metrics import is_never_reported, measured
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.search.spec.parts import Children, Resources
from regrow.search.spec.rllib import OFFLINE, ONLINE
from regrow.tasks.errors import UserCodeError, UserError

PPO: dict[str, Any] = {
    "name": "ppo",
    "rllib": {"algorithm": "PPO", "env": "CartPole-v1"},
    "metric": "return",
    "mode": "max",
    "trials": 1,
    "space": {"lr": {"loguniform": [1e-4, 1e-2]}},
}
AGENTS = """
from __future__ import annotations

import gymnasium as gym
import numpy as np
from ray.rllib.algorithms.ppo import PPOConfig


class Corridor(gym.Env):
    def __init__(self, config):
        self.length = config["length"]
        self.action_space = gym.spaces.Discrete(2)
        self.observation_space = gym.spaces.Box(0.0, 9.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if self.length < 0:
            raise ValueError("the corridor has no end")
        return np.zeros(1, np.float32), 0.0, False, False, {}


class Wide(Corridor):
    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, False, {}


def made(config):
    return Corridor(config)


def configure(config: dict) -> PPOConfig:
    if config["lr"] > 1:
        raise KeyError("too fast")
    runners = 1 + (config["lr"] > 0.001) if "vary" in config else 1
    return PPOConfig().environment(Corridor, env_config={"length": 3}).env_runners(num_env_runners=runners).training(lr=0.1)


def endless(config: dict) -> PPOConfig:
    return PPOConfig().environment(Corridor, env_config={"length": -1})


def train(trial):
    pass


number = 3
"""


def spec(folder: Path | None = None, **changes: Any) -> Spec:
    given = {**PPO, **changes}
    given = {key: value for key, value in given.items() if value is not None}
    return Spec.parse(given if folder is None else {**given, "working_dir": str(folder)})


def rllib(**changes: Any) -> dict[str, Any]:
    return {"algorithm": "PPO", "env": "CartPole-v1", **changes}


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with code of a user's own."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "agents", raising=False)
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rllib": rllib(algorithm="PP0")}, "did you mean 'PPO'?"),
        ({"rllib": {"algorithm": "PPO"}}, "rllib.env: is missing; add `env:`"),
        ({"rllib": rllib(workers=2)}, "rllib.workers: 2: unknown key; known: algorithm, env, env_config, env_runners, learners"),
        ({"rllib": "PPO"}, 'rllib: "PPO": is not a map; its keys are: algorithm, env, '),
        ({"rllib": rllib(env_runners=-1)}, "rllib.env_runners: -1: is below 0; write 0 or more"),
        ({"rllib": rllib(algorithm="BC")}, "rllib.offline: is missing: BC learns from recorded episodes; write the folder"),
        ({"rllib": rllib(offline="d")}, 'rllib.offline: "d": PPO learns from its environment; leave it out, or take one of BC'),
        ({"rllib": rllib(algorithm="CQL", offline="d", env_runners=2)}, "rllib.env_runners: 2: CQL learns from recorded episodes"),
        ({"trainable": "a.py:f"}, 'trainable: "a.py:f": stands beside rllib; keep one of them'),
        ({"command": ["a"]}, 'command: ["a"]: stands beside rllib; keep one of them'),
        ({"report": {"file": "a.jsonl"}}, 'report.file: "a.jsonl": is for a command'),
        ({"resources": {"workers": [1, 3]}}, "resources.workers: 3: RLlib has its own processes within a trial; write rllib: {env"),
        ({"space": {"num_env_runners": 2}}, 'space.num_env_runners: {"constant": 2}: is the same for all trials; write rllib: {env_runners: 2}'),
        ({"space": {"num_workers": {"int": [1, 2]}}}, "is the same for all trials; write rllib: {env_runners: ...}"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_told_in_a_line(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as error:
        spec(**changes)
    assert message in str(error.value)


def test_an_algorithm_stands_in_a_trainables_place() -> None:
    found = spec(rllib=rllib(env="agents.py:Corridor", env_runners=2))
    assert found.rllib is not None
    assert (found.rllib.learners, found.program, found.identity()["rllib"]["env_runners"]) == (
        0,
        "agents.py:Corridor",
        2,
    )
    assert Spec.parse(found.to_json()) == found


@pytest.mark.parametrize(
    ("rllib", "message"),
    [
        (
            rllib(env="agents.py:Corrid"),
            "rllib.env: \"agents.py:Corrid\": agents.py has no 'Corrid'; did you mean 'Corridor'?",
        ),
        (rllib(env="agent.py:Corridor"), 'rllib.env: "agent.py:Corridor": there is no file'),
        (rllib(algorithm="BC", offline="nowhere"), 'rllib.offline: "nowhere": there is no '),
    ],
)
def test_files_that_are_not_there_are_told_without_rllib(
    agents: Path, rllib: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as error:
        precheck(spec(agents, rllib=rllib))
    assert message in str(error.value)


def test_a_syntax_error_in_an_environment_is_shown(agents: Path) -> None:
    (agents / "agents.py").write_text("class Corridor(")
    with pytest.raises(UserCodeError, match=r"rllib\.env: .*cannot be run: SyntaxError"):
        precheck(spec(agents, rllib=rllib(env="agents.py:Corridor")))


RESULT = {
    "env_runners": {
        "episode_return_mean": 20.5,
        "episode_len_mean": math.nan,
        "num_episodes_lifetime": 3.0,
        "x": {"y": 7},
    },
    "num_env_steps_sampled_lifetime": 600.0,
    "training_iteration": 2,
    "learners": {
        "__all_modules__": {"total_loss": 9.0},
        "default_policy": {
            "total_loss": 1.5,
            "policy_loss": -0.5,
            "entropy": 0.7,
            "weights_seq_no": 3,
            "vf_loss": math.inf,
        },
        "left": {"qf_loss": 0.25},
    },
    "evaluation": {"env_runners": {"episode_return_mean": 99.0}},
}


def test_names_of_metrics_are_ours_and_those_of_losses_rllibs() -> None:
    assert measured(RESULT) == {
        "return": 20.5,
        "episodes": 3.0,
        "env_steps": 600.0,
        "iterations": 2.0,
        "evaluation_return": 99.0,
        "loss": 1.5,
        "policy_loss": -0.5,
        "entropy": 0.7,
        "left/qf_loss": 0.25,
    }


def test_a_metric_with_a_slash_is_a_place_in_rllibs_result() -> None:
    asked = ["env_runners/x/y", "env_runners/nothing", "return"]
    assert measured(RESULT, asked) == {**measured(RESULT), "env_runners/x/y": 7.0}


@pytest.mark.parametrize(
    "name", ["policy_losses", "td_error_mean", "env_runners/nothing", "learners/left/nothing"]
)
def test_a_metric_that_is_not_beside_a_return_and_losses_will_not_come(name: str) -> None:
    assert is_never_reported(name, RESULT)
    assert not is_never_reported(name, {**RESULT, "learners": {}}), "nothing was learned yet"
    assert not is_never_reported(name, {**RESULT, "env_runners": {}}), "no episode has ended yet"


@pytest.mark.parametrize(
    "name",
    ["return", "vf_loss", "evaluation_return", "evaluation/x", "env_runners/episode_len_mean"],
)
def test_a_metric_that_is_not_finite_or_comes_at_times_may_come(name: str) -> None:
    assert not is_never_reported(name, RESULT)


class Idle:
    """An algorithm whose one env runner plays nothing."""

    def __init__(self) -> None:
        self.env_runner_group = self

    def num_remote_env_runners(self) -> int:
        return 1


def test_an_iteration_without_a_step_of_the_environment_is_waited_out_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, played = [0.0], list[float]()
    monkeypatch.setattr(runners.EnvRunnerWatch, "_play_here", lambda _: played.append(now[0]))
    absence = runners.EnvRunnerWatch(Idle(), 600, lambda: now[0])
    assert not absence.explains({"num_env_steps_sampled_lifetime": 601})
    for now[0] in (10.0, 40.0, 70.0):
        assert absence.explains({"num_env_steps_sampled_lifetime": 600})
    assert played == [40.0], "once, when a new env runner should have been there for long"
    now[0] = 601.0
    with pytest.raises(UserError, match="played nothing for 601 s"):
        absence.explains({})


def test_the_return_of_an_algorithm_that_learns_from_records_is_that_of_its_evaluation() -> None:
    found = measured(RESULT, offline=True)
    assert found["return"] == found["evaluation_return"] == 99.0
    assert "episode_length" not in found


def test_resources_are_those_that_rllib_says() -> None:
    main, runner = {"CPU": 1.0, "GPU": 1.0}, {"CPU": 2.0, "fast": 1.0}
    assert resources(spec(), [{"CPU": 1.0}]) == Resources()
    assert resources(spec(), [main]) == Resources(cpu=1, gpu=1)
    children = Children(cpu=2, custom={"fast": 1.0}, count=3)
    assert resources(spec(), [main, runner, runner, runner]) == Resources(
        cpu=1, gpu=1, children=children
    )


def test_what_is_given_of_resources_stays_and_has_to_be_enough() -> None:
    runners = [{"CPU": 1.0}] * 3
    own = spec(resources={"cpu": 2})
    assert resources(own, runners) == Resources(cpu=2, children=Children(cpu=1, count=2))
    enough = spec(resources={"children": {"cpu": 2}})
    assert resources(enough, runners) == enough.resources
    with pytest.raises(SpecError, match=r"resources\.children: \{.*is too little"):
        resources(spec(resources={"children": {"cpu": 1.5}}), runners)


def test_processes_that_need_different_amounts_are_refused() -> None:
    with pytest.raises(
        SpecError,
        match=r"resources\.children: .*different amounts \(1 CPU; 1 CPU, 1 GPU\).*learners: 0",
    ):
        resources(spec(), [{"CPU": 1.0}, {"CPU": 1.0}, {"CPU": 1.0, "GPU": 1.0}])


def test_a_function_is_told_by_its_signature(agents: Path) -> None:
    assert not users_code.may_configure(spec(agents, rllib=None, trainable="agents.py:train"))
    assert users_code.may_configure(spec(agents, rllib=None, trainable="agents.py:configure"))
    assert not users_code.configures(test_a_function_is_told_by_its_signature)
    names: dict[str, Any] = {}
    exec(
        "def hidden(config) -> 'rl.DQNConfig': ...\ndef other(config) -> 'rl.OtherConfig': ...",
        names,
    )
    assert users_code.configures(names["hidden"])
    assert not users_code.configures(names["other"])


class TestByRLlib:
    """What RLlib itself says; nothing of Ray runs."""

    @pytest.fixture(autouse=True, scope="class")
    def installed(self) -> None:
        pytest.importorskip("gymnasium", reason="regrow[rl] is not installed")
        pytest.importorskip("torch")

    def test_the_names_of_algorithms_are_rllibs(self) -> None:
        from ray.rllib.algorithms.registry import ALGORITHMS

        assert {*ONLINE, *OFFLINE} == {*ALGORITHMS}

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"metric": "retrun"}, "metric: \"retrun\": is no metric of a trial of RLlib's; did you mean 'return'?"),
            ({"rllib": rllib(env="CartPole-v9")}, 'rllib.env: "CartPole-v9": cannot be played: Environment version `v9` for'),
            ({"space": {"learning_rate": 0.1}}, "space.learning_rate: 0.1: is no setting of RLlib's PPO"),
            ({"space": {"clip_parm": 0.1}}, "space.clip_parm: 0.1: is no setting of RLlib's PPO; did you mean 'clip_param'?"),
            ({"space": {"model": {"fcnet_hiden": 3}}}, "space.model.fcnet_hiden: 3: is no setting of RLlib's networks; did you mean 'fcnet_hiddens'?"),
            ({"space": {"model": 3}}, "space.model: 3: is not a map; write model: {fcnet_hiddens: "),
            ({"space": {"minibatch_size": {"choice": [64, 8192]}}}, "space.minibatch_size: 8192: RLlib refuses it: `minibatch_size` (8192)"),
            ({"space": {"batch_mode": "some", "lr": 0.1}}, 'space.batch_mode: "some": RLlib refuses it'),
            ({"space": {"lr": {"choice": ["fast", 0.1]}}}, 'space.lr: "fast": RLlib refuses it'),
            ({"space": {"num_epochs": {"uniform": [1, 5]}}}, "is no whole number, as it is to be for RLlib's PPO; write num_epochs: {int: "),
            ({"metric": "evaluation_return"}, 'metric: "evaluation_return": is never there: RLlib evaluates nothing by itself; write space: {'),
            ({"space": {"num_gpus_per_learner": {"choice": [0, 1]}}}, 'space: ["num_gpus_per_learner"]: RLlib needs more resources for some of their values'),
            ({"space": {"model": {"fcnet_activation": {"choice": ["tanh", "tan"]}}}}, 'space.model.fcnet_activation: "tan": RLlib refuses it'),
            ({"space": {"model": {"fcnet_activation": "tan"}}}, 'space.model.fcnet_activation: "tan": RLlib refuses it: Unknown'),
        ],
    )  # fmt: skip
    def test_what_rllib_refuses_is_told_with_its_key(
        self, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(SpecError) as error:
            check_frameworks(spec(**changes))
        assert message in str(error.value)
        assert "\n" not in str(error.value)

    def test_what_goes_with_something_is_taken(self) -> None:
        """A minibatch of 2,000 is refused with the least batch, and fits the greatest."""
        space = {
            "train_batch_size_per_learner": {"int": [1000, 4000]},
            "minibatch_size": {"int": [100, 2000]},
        }
        assert check_frameworks(spec(space=space)).resources == Resources()

    def test_settings_are_rllibs_by_name(self) -> None:
        from regrow.integrations.rllib.settings import configured

        part = spec(rllib=rllib(env_runners=2, env_config={"a": 1, "b": 1})).rllib
        assert part is not None
        space = {
            "lr": 0.5,
            "lambda": 0.9,
            "model": {"fcnet_hiddens": [3]},
            "num_envs_per_env_runner": 4,
            "env_config": {"b": 2},
        }
        config = configured(part, space, folder=None, gpus=2)
        assert (
            config.lr,
            config.lambda_,
            config.num_env_runners,
            config.num_envs_per_env_runner,
        ) == (0.5, 0.9, 2, 4)
        assert config.model_config["fcnet_hiddens"] == [3]
        assert config.env_config == {"a": 1, "b": 2}
        assert config.num_gpus_per_learner == 2

    def test_a_conditional_parameter_is_looked_at_where_it_takes_part(self) -> None:
        space: dict[str, Any] = {
            "batch_mode": {"choice": ["truncate_episodes", "complete_episodes"]}
        }
        space["minibatch_size"] = {
            "choice": [64, 8192],
            "when": {"batch_mode": "complete_episodes"},
        }
        with pytest.raises(SpecError, match=r"space\.minibatch_size: 8192: RLlib refuses it"):
            check_frameworks(spec(space=space))

    def test_env_runners_are_children(self) -> None:
        assert check_frameworks(spec(rllib=rllib(env_runners=2))).resources == Resources(
            children=Children(cpu=1, count=2)
        )
        impala = rllib(algorithm="IMPALA", env_runners=1, learners=1)
        assert check_frameworks(spec(rllib=impala)).resources == Resources(
            children=Children(cpu=1, count=2)
        )

    def test_what_reads_recorded_episodes_is_a_child(self, tmp_path: Path) -> None:
        """Of one CPU, as RLlib's own two processes beside the task that reads would need three."""
        own = rllib(algorithm="BC", offline=str(tmp_path))
        assert check_frameworks(spec(rllib=own)).resources == Resources(children=Children(cpu=1))
        more = {"map_batches_kwargs": {"concurrency": 3, "num_cpus": 0.5}}
        assert check_frameworks(spec(rllib=own, space=more)).resources == Resources(
            children=Children(cpu=2.5)
        )
        pool = {"map_batches_kwargs": {"compute": {"constant": "a custom pool"}}}
        assert check_frameworks(spec(rllib=own, space=pool)).resources == Resources(
            children=Children(cpu=1)
        )

    @pytest.mark.parametrize("env", ["agents.py:Corridor", "agents.py:made"])
    def test_an_own_environment_is_made(self, agents: Path, env: str) -> None:
        own = rllib(env=env, env_config={"length": 3})
        assert check_frameworks(spec(agents, rllib=own)).resources == Resources()

    @pytest.mark.parametrize(
        ("own", "message", "line"),
        [
            (
                {"rllib": rllib(env="agents.py:Corridor")},
                "rllib.env: .*cannot be played: KeyError: 'length'",
                "in __init__",
            ),
            (
                {"rllib": rllib(env="agents.py:made", env_config={"length": -1})},
                "rllib.env: .*: the corridor has no end; ",
                "in step",
            ),
            (
                {"rllib": None, "trainable": "agents.py:endless"},
                "trainable: .*: the corridor has no end; ",
                "in step",
            ),
        ],
    )
    def test_what_an_own_environment_raises_is_shown_from_its_first_line_on(
        self,
        agents: Path,
        own: dict[str, Any],
        message: str,
        line: str,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        """Also in its first step: an env runner that it ends is started again by RLlib, for ever
        and without a word.
        """
        with pytest.raises(UserCodeError, match=message) as error:
            check_frameworks(spec(agents, **own))
        first, where, *_ = error.value.trace.splitlines()
        assert first == "Traceback (most recent call last):"
        assert str(agents / "agents.py") in where
        assert line in error.value.trace
        printed = "".join(capfd.readouterr())
        assert "the corridor" not in printed, "RLlib prints it as well"
        assert "Traceback" not in printed

    def test_an_environment_whose_observations_are_none_of_its_space_is_told_in_a_line(
        self, agents: Path
    ) -> None:
        with pytest.raises(
            SpecError,
            match=r'rllib\.env: "agents.py:Wide": cannot be played: Output array is the wrong shape; ',
        ):
            check_frameworks(
                spec(agents, rllib=rllib(env="agents.py:Wide", env_config={"length": 1}))
            )

    def test_what_is_no_environment_is_told(self, agents: Path) -> None:
        with pytest.raises(
            SpecError, match=r'rllib\.env: "agents.py:number": is no class or function'
        ):
            check_frameworks(spec(agents, rllib=rllib(env="agents.py:number")))

    def test_a_configuration_of_a_users_function_is_looked_at(self, agents: Path) -> None:
        own: dict[str, Any] = {"rllib": None, "trainable": "agents.py:configure"}
        assert check_frameworks(spec(agents, **own)).resources == Resources(
            children=Children(cpu=1)
        )
        with pytest.raises(
            UserCodeError, match=r"raised KeyError: 'too fast' for \{'lr': (1\.9|2)"
        ) as error:
            check_frameworks(spec(agents, **own, space={"lr": {"uniform": [0.1, 2]}}))
        assert "agents.py" in error.value.trace
        with pytest.raises(SpecError, match=r"space: .*RLlib needs more resources for some"):
            check_frameworks(
                spec(agents, **own, space={"lr": {"uniform": [1e-4, 0.1]}, "vary": True})
            )

    def test_an_ordinary_trainable_is_left_alone(self, agents: Path) -> None:
        own = spec(agents, rllib=None, trainable="agents.py:train")
        assert check_frameworks(own) is own


def test_without_rllib_what_to_install_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(
        Exception, match=r"RLlib cannot be imported .*; pip install 'regrow\[rl,torch\]'"
    ):
        check_frameworks(spec())


def test_a_library_that_is_not_registered_is_told(
    agents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regrow.tasks.attempt.frameworks.entry_points", lambda **_: ())
    with pytest.raises(UserError, match="no library is registered for"):
        precheck(spec(agents, rllib=rllib()))
