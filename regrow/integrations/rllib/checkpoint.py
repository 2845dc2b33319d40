"""Checkpoint of an algorithm: RLlib's, and what that lacks (Ray 2.60).

* The replay buffer of DQN, SAC and DreamerV3: without it, a trial would learn from almost nothing
  again.
* What an algorithm adapts beside its networks would start again: PPO's and APPO's coefficient of
  the KL loss, SAC's and CQL's temperature, MARWIL's norm of advantages.
* The weights and filters of the env runners: RLlib sends them asynchronously, one message at a
  time, and drops them while another one is pending, as just after the runners were created. The
  next iteration would then be played by untrained networks.
* The learning rates, see `private.use_learning_rates`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from regrow.integrations.rllib import private

STATE, BUFFER, BESIDE = "rllib", "replay_buffer.pkl", "beside.json"
"""RLlib's folder, and our files beside it."""
ADAPTED = ("curr_kl_coeffs_per_module", "curr_log_alpha", "moving_avg_sqd_adv_norms_per_module")
"""Attributes of learners, each with a tensor for each module."""
Adapted = dict[str, dict[str, Any]]


def save(algorithm: Any, folder: Path, beside: Mapping[str, Any], *, with_buffer: bool) -> None:
    """Write everything that is needed to continue, except the environments: episodes in progress
    start again. `beside`: JSON that `load` returns.
    """
    algorithm.save_to_path(str(folder / STATE))
    if with_buffer and (buffer := _buffer(algorithm)) is not None:
        with (folder / BUFFER).open("wb") as file:
            pickle.dump(buffer.get_state(), file, protocol=pickle.HIGHEST_PROTOCOL)
    adapted = _of_learners(algorithm, _adapted)[0]
    (folder / BESIDE).write_text(json.dumps({**beside, "adapted": adapted}))


def load(algorithm: Any, folder: Path) -> dict[str, Any]:
    """Restore a new algorithm from what `save` wrote; return its `beside`.

    The learning rates, and all other settings, are those of the algorithm's configuration.
    """
    from ray.rllib.utils.checkpoints import Checkpointable

    path = str((folder / STATE).resolve())
    if algorithm.env_runner_group is None:
        # BC, MARWIL and IQL: RLlib would update env runners all the same, and raise AttributeError.
        # Evaluation gets its weights before each evaluation anyway.
        Checkpointable.restore_from_path(algorithm, path)
    else:
        algorithm.restore_from_path(path)
    if (saved := folder / BUFFER).exists() and (buffer := _buffer(algorithm)) is not None:
        with saved.open("rb") as file:
            buffer.set_state(pickle.load(file))  # noqa: S301 - written by this experiment, verified by its manifest
    beside: dict[str, Any] = json.loads((folder / BESIDE).read_text())
    _of_learners(
        algorithm,
        partial(_adapt, adapted=beside.pop("adapted"), env_steps=int(beside.get("env_steps", 0))),
    )
    _bring_env_runners_up_to_date(algorithm)
    return beside


def _buffer(algorithm: Any) -> Any:
    """Return the replay buffer of an algorithm, None if it has none."""
    if algorithm.config.is_offline:
        return None
    own = getattr(algorithm, "replay_buffer", None)  # DreamerV3 has its buffer in another attribute
    return own if own is not None else algorithm.local_replay_buffer


def _of_learners(algorithm: Any, function: Any) -> list[Any]:
    """Return a function's result for each learner. Raises what it raises."""
    return [result.get() for result in algorithm.learner_group.foreach_learner(func=function)]


def _adapted(learner: Any) -> Adapted:
    found = {name: getattr(learner, name) for name in ADAPTED if hasattr(learner, name)}
    return {
        name: {module: value.tolist() for module, value in tensors.items()}
        for name, tensors in found.items()
    }


def _adapt(learner: Any, adapted: Adapted, env_steps: int) -> None:
    import torch

    for name, values in adapted.items():
        for module, value in values.items():
            # RLlib creates it on access. It is changed in place, as an optimizer may hold it.
            tensor = getattr(learner, name)[module]
            tensor.data.copy_(torch.as_tensor(value, dtype=tensor.dtype))
    private.use_learning_rates(learner, env_steps)


def _bring_env_runners_up_to_date(algorithm: Any) -> None:
    """Wait until the env runners have the learners' weights and the connectors' restored states."""
    import ray

    group = algorithm.env_runner_group
    if group is None or not group.num_remote_env_runners():
        return
    weights = algorithm.learner_group.get_state(
        components="learner/rl_module", inference_only=True
    )["learner"]
    # Without its sequence number: no weights are newer than these.
    state = {"rl_module": weights["rl_module"]}
    if (local := algorithm.env_runner) is not None:
        state |= local.get_state(not_components="rl_module")
    else:
        state["env_to_module_connector"] = algorithm.env_to_module_connector.get_state()
        state["module_to_env_connector"] = algorithm.module_to_env_connector.get_state()
    state.pop("weights_seq_no", None)
    group.foreach_env_runner(partial(_set_state, state=ray.put(state)), local_env_runner=False)


def _set_state(runner: Any, state: Any) -> None:
    import ray

    runner.set_state(ray.get(state))
