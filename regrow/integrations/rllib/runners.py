"""Env runners: one in this process, to check an environment; and a trial's lost ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from regrow.integrations.rllib.metrics import PLACES, Result
from regrow.integrations.rllib.settings import of_the_environment
from regrow.tasks.errors import UserError

LOOK_SECONDS = 30.0
"""After this time without env runners, the trial's process plays itself, to find the cause. A new
env runner takes 3 s on an idle machine.
"""
AWAY_SECONDS = 600.0
"""After this time the trial fails: enough to place a lost node's env runners elsewhere."""
PLAYED, PLAYED_SECONDS = 200, 10.0
"""Maximum steps of the environment, and seconds, that the trial's process plays."""


@contextmanager
def runner_of(config: Any) -> Iterator[Any]:
    """Yield an env runner of this process with its own environment; stop it at the end."""
    from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    usual = MultiAgentEnvRunner if config.is_multi_agent else SingleAgentEnvRunner
    runner = (config.env_runner_cls or usual)(config=config, worker_index=0)
    try:
        yield runner
    finally:
        runner.stop()


def play(runner: Any, steps: int, seconds: float = PLAYED_SECONDS) -> None:
    """Play at random. Raises what the environment raises."""
    until = time.monotonic() + seconds
    try:
        while steps and time.monotonic() < until:
            runner.sample(num_timesteps=1, random_actions=True)
            steps -= 1
    except RuntimeError as error:
        raise of_the_environment(error) from None


class EnvRunnerWatch:
    """Detects iterations in which nothing was played: RLlib counts those, too, until lost env
    runners are back.

    `env_steps`: number of steps played before.
    """

    def __init__(
        self, algorithm: Any, env_steps: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._algorithm, self._env_steps, self._clock = algorithm, env_steps, clock
        self._since, self._looked = clock(), False

    def explains(self, result: Result) -> bool:
        """Return whether nothing was played in an iteration, so that it is not a step.

        Raises the environment's exception if it also occurs here: RLlib restarts the environment's
        process forever, and shows the exception nowhere. Raises UserError if nothing is played for
        too long.
        """
        group = self._algorithm.env_runner_group
        if group is None or not group.num_remote_env_runners():
            return False
        if result.get(PLACES["env_steps"], 0) > self._env_steps:
            return False
        away = self._clock() - self._since
        if away > LOOK_SECONDS and not self._looked:
            self._looked = True
            self._play_here()
        if away > AWAY_SECONDS:
            raise UserError(
                f"the env runners played nothing for {away:,.0f} s: each was lost again, or is"
                " slow; see what `rllib: {env_runners: 0}` does, or give them longer"
                " (sample_timeout_s)"
            )
        return True

    def _play_here(self) -> None:
        config = self._algorithm.config.copy(copy_frozen=False)
        with runner_of(config.env_runners(num_env_runners=0)) as runner:
            play(runner, PLAYED)
