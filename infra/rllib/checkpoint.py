"""A checkpoint of an algorithm: RLlib's own, and what that lacks (Ray 2.60).

* The replay buffer of DQN, SAC and DreamerV3: a trial would learn from next to nothing again.
* What an algorithm adapts beside its networks: PPO's and APPO's coefficient of the KL loss, SAC's and CQL's temperature,
  MARWIL's norm of advantages began anew.
* The weights and filters of the env runners: they are sent without waiting, one message at a time, and dropped while another one
  is under way, as it is just after the runners were made. The next iteration was then played by networks that know nothing.
* The rates of learning, see `private.use_learning_rates`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from regrow.infra.rllib import private

STATE, BUFFER, BESIDE = "rllib", "replay_buffer.pkl", "beside.json"
"""RLlib's own folder, and the files beside it."""
ADAPTED = ("curr_kl_coeffs_per_module", "curr_log_alpha", "moving_avg_sqd_adv_norms_per_module")
"""Attributes of learners: a tensor for each module."""
Adapted = dict[str, dict[str, Any]]


def save(algorithm: Any, folder: Path, beside: Mapping[str, Any], *, with_buffer: bool) -> None:
    """Writes all that is needed to go on, but for the environments: episodes under way begin anew.

    `beside`: JSON to give back.
    """
    algorithm.save_to_path(str(folder / STATE))
    if with_buffer and (buffer := _buffer(algorithm)) is not None:
        with (folder / BUFFER).open("wb") as file:
            pickle.dump(buffer.get_state(), file, protocol=pickle.HIGHEST_PROTOCOL)
    adapted = _of_learners(algorithm, _adapted)[0]
    (folder / BESIDE).write_text(json.dumps({**beside, "adapted": adapted}))


def load(algorithm: Any, folder: Path) -> dict[str, Any]:
    """Has an algorithm just made go on from what `save` wrote; returns its `beside`.

    The rates of learning, and all other settings, are those of its own configuration.
    """
    _restore(algorithm, str((folder / STATE).resolve()))
    if (saved := folder / BUFFER).exists() and (buffer := _buffer(algorithm)) is not None:
        with saved.open("rb") as file:
            buffer.set_state(pickle.load(file))  # noqa: S301 - written by this experiment, verified by its manifest
    beside: dict[str, Any] = json.loads((folder / BESIDE).read_text())
    _of_learners(algorithm, partial(_adapt, adapted=beside.pop("adapted"), env_steps=int(beside.get("env_steps", 0))))
    _bring_env_runners_up_to_date(algorithm)
    return beside


def _restore(algorithm: Any, path: str) -> None:
    """What RLlib saved itself. It then brings env runners up to date also where there are none, and raises AttributeError: BC,
    MARWIL and IQL are restored without that. What evaluates gets its weights before it does.
    """
    from ray.rllib.utils.checkpoints import Checkpointable

    if algorithm.env_runner_group is None:
        Checkpointable.restore_from_path(algorithm, path)
    else:
        algorithm.restore_from_path(path)


def _buffer(algorithm: Any) -> Any:
    """The replay buffer of an algorithm that has one, else None."""
    if algorithm.config.is_offline:
        return None
    own = getattr(algorithm, "replay_buffer", None)  # DreamerV3's
    return own if own is not None else algorithm.local_replay_buffer


def _of_learners(algorithm: Any, function: Any) -> list[Any]:
    """What a function returns for each learner. Raises what it raises."""
    return [result.get() for result in algorithm.learner_group.foreach_learner(func=function)]


def _adapted(learner: Any) -> Adapted:
    found = {name: getattr(learner, name) for name in ADAPTED if hasattr(learner, name)}
    return {name: {module: value.tolist() for module, value in tensors.items()} for name, tensors in found.items()}


def _adapt(learner: Any, adapted: Adapted, env_steps: int) -> None:
    import torch

    for name, values in adapted.items():
        for module, value in values.items():
            tensor = getattr(learner, name)[module]  # made if it is not there yet; an optimizer may hold it
            tensor.data.copy_(torch.as_tensor(value, dtype=tensor.dtype))
    private.use_learning_rates(learner, env_steps)


def _bring_env_runners_up_to_date(algorithm: Any) -> None:
    """Waits until each env runner has the weights of the learners, and the states of the connectors that were restored."""
    import ray

    group = algorithm.env_runner_group
    if group is None or not group.num_remote_env_runners():
        return
    weights = algorithm.learner_group.get_state(components="learner/rl_module", inference_only=True)["learner"]
    state = {"rl_module": weights["rl_module"]}  # without its number: newer weights than these there are none
    if (local := algorithm.env_runner) is not None:
        state |= local.get_state(not_components="rl_module")
    else:
        state["env_to_module_connector"] = algorithm.env_to_module_connector.get_state()
        state["module_to_env_connector"] = algorithm.module_to_env_connector.get_state()
    state.pop("weights_seq_no", None)
    group.foreach_env_runner(partial(_take, state=ray.put(state)), local_env_runner=False)


def _take(runner: Any, state: Any) -> None:
    import ray

    runner.set_state(ray.get(state))
