"""An algorithm of RLlib instead of a trainable: the values below the key `rllib`.

Only names: `regrow/integrations/rllib/` checks whether RLlib accepts them and runs it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from regrow.search.errors import SpecError
from regrow.search.space import Constant, Space
from regrow.search.spec.parts import Count, Part

ONLINE = ("PPO", "DQN", "SAC", "IMPALA", "APPO", "DreamerV3")
OFFLINE = ("BC", "MARWIL", "CQL", "IQL")
"""Algorithms that learn from recorded episodes."""
_HERE = {
    "env": "env",
    "num_env_runners": "env_runners",
    "num_learners": "learners",
    "input_": "offline",
    "input": "offline",
    "num_workers": "env_runners",
}
"""Settings of RLlib that a specification has below `rllib`, because all trials have the same."""


class RLlib(Part):
    """A trial trains one of RLlib's algorithms; the space's parameters are the algorithm's
    settings, by RLlib's names.
    """

    algorithm: Literal[
        "PPO", "DQN", "SAC", "IMPALA", "APPO", "DreamerV3", "BC", "MARWIL", "CQL", "IQL"
    ]
    """Its name in RLlib."""
    env: Annotated[str, Field(min_length=1)]
    """The environment: an id of Gymnasium, or your own, `file.py:Env` (a class, or a function of
    its settings).
    """
    env_config: dict[str, Any] = Field(default={})
    """Settings of the environment; parameters below `space: {env_config: ...}` override them."""
    env_runners: Annotated[Count, Field(ge=0)] = 0
    """Processes that play; 0: the trial's own process plays and learns in turn."""
    learners: Annotated[Count, Field(ge=0)] = 0
    """Processes that learn; 0: the trial's own process."""
    offline: Annotated[str, Field(min_length=1)] | None = None
    """Recorded episodes that BC, MARWIL, CQL and IQL learn from: a folder or file of Parquet,
    relative to the specification's folder, or an address such as s3://bucket/folder.
    """
    replay_buffer: Annotated[bool, Field(strict=True)] = True
    """Whether checkpoints include the replay buffer of DQN, SAC and DreamerV3. Without it a trial
    that continues begins with an empty one.
    """


def check(part: RLlib, space: Space, *, workers: int) -> None:
    """Raise SpecError for values that do not fit together. `workers`: most of a trial."""
    learns_offline = part.algorithm in OFFLINE
    if learns_offline and part.offline is None:
        problem = f"is missing: {part.algorithm} learns from recorded episodes"
        raise SpecError("rllib.offline", None, problem, "write the folder of their Parquet files")
    if not learns_offline and part.offline is not None:
        hint = f"leave it out, or take one of {', '.join(OFFLINE)}"
        raise SpecError(
            "rllib.offline", part.offline, f"{part.algorithm} learns from its environment", hint
        )
    if learns_offline and part.env_runners:
        problem = f"{part.algorithm} learns from recorded episodes, and plays only to be evaluated"
        hint = "leave it out; evaluation_num_env_runners is a setting"
        raise SpecError("rllib.env_runners", part.env_runners, problem, hint)
    if workers > 1:
        problem = "RLlib has its own processes within a trial"
        raise SpecError(
            "resources.workers", workers, problem, "write rllib: {env_runners: ..., learners: ...}"
        )
    for parameter in space.parameters:
        if (key := _HERE.get(parameter.name)) is not None:
            value = parameter.domain.to_json()
            constant = isinstance(parameter.domain, Constant)
            hint = f"write rllib: {{{key}: {parameter.domain.value if constant else '...'}}}"  # type: ignore[attr-defined]
            raise SpecError(f"space.{parameter.name}", value, "is the same for all trials", hint)
