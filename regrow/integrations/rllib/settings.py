"""Builds an AlgorithmConfig from a specification's `rllib` and a trial's parameters."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

from regrow.integrations.rllib.users_code import KEY, environment, unknown
from regrow.search.errors import SpecError
from regrow.search.spec import RLlib
from regrow.search.spec.rllib import OFFLINE
from regrow.tasks.errors import UserError
from regrow.tasks.output.traces import one_line

_GROUPS = (
    "training",
    "env_runners",
    "learners",
    "environment",
    "evaluation",
    "rl_module",
    "reporting",
    "fault_tolerance",
    "offline_data",
    "multi_agent",
    "debugging",
    "resources",
)
"""Methods of a configuration whose arguments are settings."""
_ELSEWHERE = {"model": "model_config", "lambda": "lambda_"}
"""Settings that RLlib's methods name otherwise. `model_config` is that of all networks now."""
_FRACTIONS = ("num_cpus", "num_gpus", "grad_clip")
"""Prefixes of settings that RLlib's signatures declare as integers, but that may be fractions."""
_SEEDS = 2**31
"""Upper limit of seeds: RLlib adds to a seed, and NumPy takes none of 2**32 or more."""
OFFLINE_UPDATES = 100
"""Batches of an iteration that learns from recorded episodes, before it is evaluated."""
_LOGGERS = ("ray", "ray.rllib", "ray.tune", "ray.data")


def require() -> None:
    """Raise UserError if RLlib is not installed."""
    try:
        import gymnasium  # noqa: F401
        import torch  # noqa: F401

        with quiet():
            import ray.rllib  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"RLlib cannot be imported ({one_line(str(error))}); pip install 'regrow[rl,torch]'"
        ) from error


@contextmanager
def quiet(level: int = logging.ERROR) -> Iterator[None]:
    """Within the block, RLlib logs only errors: a correct trial has 20 lines of warnings."""
    before = {name: logging.getLogger(name).level for name in _LOGGERS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(level)
        try:
            yield
        finally:
            for name, its in before.items():
                logging.getLogger(name).setLevel(its)


def configured(
    part: RLlib, parameters: Mapping[str, Any], *, folder: str | None, gpus: float = 0
) -> Any:
    """Return the configuration that a specification and a trial's parameters (nested) describe, not
    yet validated.

    `folder`: of the user's code; `gpus`: of the trial's process. Raises SpecError naming the key.
    """
    from ray.tune.registry import get_trainable_cls

    config = get_trainable_cls(part.algorithm).get_default_config()
    config.environment(env=environment(part.env, folder), env_config=dict(part.env_config))
    config.env_runners(num_env_runners=part.env_runners).learners(
        num_learners=part.learners
    ).debugging(log_level="ERROR")
    if gpus and not part.learners:
        config.learners(num_gpus_per_learner=gpus)
    if part.algorithm in OFFLINE:
        _learn_from_records(config, part, folder)
    settings = _settings(config)
    for written, value in parameters.items():
        name = _ELSEWHERE.get(written, written)
        if name not in settings:
            problem_and_hint = unknown(
                written, [*settings, *_ELSEWHERE], f"RLlib's {part.algorithm}"
            )
            raise SpecError(f"space.{written}", value, *problem_and_hint)
        if name == "model_config":
            value = _model(config, written, value)  # noqa: PLW2901 - validated and copied
        if isinstance(value, float) and not value.is_integer() and settings[name].whole:
            problem = f"is no whole number, as it is to be for RLlib's {part.algorithm}"
            hint = f"write {written}: {{int: [LOW, HIGH]}}"
            raise SpecError(f"space.{written}", value, problem, hint)
        try:
            settings[name].method(config, **{name: value})
        except Exception as error:
            raise refusal(f"space.{written}", value, error) from error
    return config


def _learn_from_records(config: Any, part: RLlib, folder: str | None) -> None:
    """Apply the settings that every offline specification would need."""
    assert part.offline is not None
    place = part.offline
    if "://" not in place:
        place = str(Path(folder or ".", place).resolve())
    config.offline_data(input_=[place], dataset_num_iters_per_learner=OFFLINE_UPDATES)
    config.evaluation(
        evaluation_interval=1, evaluation_num_env_runners=0, evaluation_config={"explore": False}
    )
    if part.algorithm == "CQL":  # RLlib does not accept CQL with its defaults
        config.training(lr=None, replay_buffer_config={"type": "EpisodeReplayBuffer"})


class _Setting(NamedTuple):
    method: Callable[..., Any]
    """The method that sets it."""
    whole: bool
    """Whether it is an integer: RLlib accepts 4.4 epochs, and makes 5."""


def _settings(config: Any) -> dict[str, _Setting]:
    """Return all settings, by name; an algorithm's methods come before its base classes'."""
    from ray.rllib.utils.from_config import NotProvided

    found: dict[str, _Setting] = {}
    for group in _GROUPS:
        for cls in type(config).__mro__:
            own = vars(cls).get(group)
            arguments = {} if own is None else inspect.signature(own).parameters
            for name, argument in arguments.items():
                if argument.default is NotProvided and not name.startswith("_"):
                    whole = get_args(argument.annotation) == (int, type(None))
                    whole = whole and not name.startswith(_FRACTIONS)
                    found.setdefault(name, _Setting(getattr(type(config), group), whole))
    return found


def _model(config: Any, written: str, value: Any) -> dict[str, Any]:
    """Return the settings of the networks. Raises SpecError for an unknown one."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    if not isinstance(value, Mapping):
        hint = f"write {written}: {{fcnet_hiddens: {{constant: [64, 64]}}}}"
        raise SpecError(f"space.{written}", value, "is not a map", hint)
    own = config.model_config
    known = [field.name for field in dataclasses.fields(DefaultModelConfig)]
    for name, one in value.items():
        if name not in known and name not in own:
            problem_and_hint = unknown(name, known, "RLlib's networks")
            raise SpecError(f"space.{written}.{name}", one, *problem_and_hint)
    return dict(value)


def seeded(config: Any, seed: int, step: int) -> Any:
    """Set a trial's seed, unless the configuration has one. `step`: the step from which the trial
    continues, so that it does not replay the same episodes.
    """
    if config.seed is None:
        config.debugging(seed=(seed + 1_000_003 * step) % _SEEDS)
    return config


def of_the_environment(error: RuntimeError) -> Exception:
    """Return the environment's exception instead of the empty RuntimeError made of it."""
    cause = error.__cause__
    if str(error) or not isinstance(cause, Exception):
        return error
    error.__cause__ = None  # else each would be the other's cause
    return cause


def refusal(key: str, value: Any, error: BaseException | None) -> SpecError:
    """Return RLlib's or Gymnasium's refusal of a value, without advice to disable validation."""
    while error is not None and "deprecated" in str(error) and error.__context__ is not None:
        error = error.__context__  # RLlib has then tried a deprecated way, and reports that error
    text = one_line(str(error).partition("To suppress all validation errors")[0]).rstrip(".! ")
    if not text or isinstance(error, (LookupError, AttributeError, TypeError, AssertionError)):
        text = f"{type(error).__name__}: {text}"
    if key == KEY:
        hint = "install or correct it, or take an algorithm that can play it"
        return SpecError(key, value, f"cannot be played: {text}", hint)
    return SpecError(
        key, value, f"RLlib refuses it: {text}", "see its documentation of the algorithm"
    )
