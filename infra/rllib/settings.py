"""An AlgorithmConfig of what a specification says below `rllib`, and of a trial's parameters."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, get_args

from regrow.infra.rllib.users_code import KEY, environment, unknown
from regrow.search.errors import SpecError
from regrow.search.spec import RLlib
from regrow.search.spec.rllib import OFFLINE
from regrow.tasks.errors import UserError
from regrow.tasks.traces import one_line

_GROUPS = (
    "training", "env_runners", "learners", "environment", "evaluation", "rl_module", "reporting", "fault_tolerance",
    "offline_data", "multi_agent", "debugging", "resources",
)
"""The methods of a configuration whose arguments are settings."""
_ELSEWHERE = {"model": "model_config", "lambda": "lambda_"}
"""What RLlib's methods call otherwise. `model_config` is what the networks of all its algorithms are made of by now."""
_FRACTIONS = ("num_cpus", "num_gpus", "grad_clip")
"""Beginnings of names of which RLlib's signatures say that they are whole numbers, and which need not be."""
_SEEDS = 2**31
"""RLlib adds numbers of processes to a seed, which NumPy wants below 2**32."""
OFFLINE_UPDATES = 100
"""Batches of an iteration that learns from recorded episodes, before it is evaluated."""
_LOGGERS = ("ray", "ray.rllib", "ray.tune", "ray.data")


def require() -> None:
    """Raises UserError where RLlib is not installed."""
    try:
        import gymnasium  # noqa: F401
        import torch  # noqa: F401

        with quiet():
            import ray.rllib  # noqa: F401
    except ImportError as error:
        raise UserError(f"RLlib cannot be imported ({one_line(str(error))}); pip install 'regrow[rl,torch]'") from error


@contextmanager
def quiet(level: int = logging.ERROR) -> Iterator[None]:
    """Within the block RLlib says what is wrong and nothing else: it prints 20 lines of warnings for a trial that is fine."""
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


def configured(part: RLlib, parameters: Mapping[str, Any], *, folder: str | None, gpus: float = 0) -> Any:
    """The configuration that a specification and a trial's parameters (nested) describe, not yet validated.

    `folder`: of the user's code; `gpus`: what the trial's own process has. Raises SpecError naming the key.
    """
    from ray.tune.registry import get_trainable_cls

    config = get_trainable_cls(part.algorithm).get_default_config()  # type: ignore[no-untyped-call]  # of Tune
    config.environment(env=environment(part.env, folder), env_config=dict(part.env_config))
    config.env_runners(num_env_runners=part.env_runners).learners(num_learners=part.learners).debugging(log_level="ERROR")
    if gpus and not part.learners:
        config.learners(num_gpus_per_learner=gpus)
    if part.algorithm in OFFLINE:
        _learn_from_records(config, part, folder)
    settings = _settings(config)
    for written, value in parameters.items():
        name = _ELSEWHERE.get(written, written)
        if name not in settings:
            raise SpecError(f"space.{written}", value, *unknown(written, [*settings, *_ELSEWHERE], f"RLlib's {part.algorithm}"))
        if name == "model_config":
            value = _model(config, written, value)  # noqa: PLW2901 - completed
        if isinstance(value, float) and not value.is_integer() and settings[name].whole:
            problem = f"is no whole number, as it is to be for RLlib's {part.algorithm}"
            raise SpecError(f"space.{written}", value, problem, f"write {written}: {{int: [LOW, HIGH]}}")
        try:
            settings[name].method(config, **{name: value})
        except Exception as error:
            raise refusal(f"space.{written}", value, error) from error
    return config


def _learn_from_records(config: Any, part: RLlib, folder: str | None) -> None:
    """What RLlib asks for that would be the same in all specifications."""
    assert part.offline is not None
    place = part.offline if "://" in part.offline else str(Path(folder or ".", part.offline).resolve())
    config.offline_data(input_=[place], dataset_num_iters_per_learner=OFFLINE_UPDATES)
    config.evaluation(evaluation_interval=1, evaluation_num_env_runners=0, evaluation_config={"explore": False})
    if part.algorithm == "CQL":  # which RLlib would not take as it is by itself
        config.training(lr=None, replay_buffer_config={"type": "EpisodeReplayBuffer"})


class _Setting(NamedTuple):
    """One of an algorithm's."""

    method: Callable[..., Any]
    """By which it is set."""
    whole: bool
    """Whether it is a whole number: RLlib takes 4.4 epochs, and makes 5."""


def _settings(config: Any) -> dict[str, _Setting]:
    """All, by name. An algorithm's own methods go before those that they hand others on to."""
    from ray.rllib.utils.from_config import NotProvided

    found: dict[str, _Setting] = {}
    for group in _GROUPS:
        for cls in type(config).__mro__:
            own = vars(cls).get(group)
            for name, argument in inspect.signature(own).parameters.items() if own is not None else ():
                if argument.default is NotProvided and not name.startswith("_"):
                    whole = get_args(argument.annotation) == (int, type(None)) and not name.startswith(_FRACTIONS)
                    found.setdefault(name, _Setting(getattr(type(config), group), whole))
    return found


def _model(config: Any, written: str, value: Any) -> dict[str, Any]:
    """The settings of the networks, with those that the configuration has by itself. Raises SpecError for an unknown one."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    if not isinstance(value, Mapping):
        raise SpecError(f"space.{written}", value, "is not a map", f"write {written}: {{fcnet_hiddens: {{constant: [64, 64]}}}}")
    own = config.model_config
    known = [field.name for field in dataclasses.fields(DefaultModelConfig)]
    for name, one in value.items():
        if name not in known and name not in own:
            raise SpecError(f"space.{written}.{name}", one, *unknown(name, known, "RLlib's networks"))
    return dict(value)


def seeded(config: Any, seed: int, step: int) -> Any:
    """The configuration with a trial's seed, unless it has one. `step`: what a trial goes on from, as it is not to play again
    what it played from its beginning.
    """
    if config.seed is None:
        config.debugging(seed=(seed + 1_000_003 * step) % _SEEDS)
    return config


def of_the_environment(error: RuntimeError) -> Exception:
    """What an environment raised in a step, rather than the RuntimeError without a word that RLlib makes of it."""
    cause = error.__cause__
    if str(error) or not isinstance(cause, Exception):
        return error
    error.__cause__ = None  # else each would be the other's reason
    return cause


def refusal(key: str, value: Any, error: BaseException | None) -> SpecError:
    """What RLlib, or Gymnasium below it, says against a value. Its advice to have nothing checked is left out."""
    while error is not None and "deprecated" in str(error) and error.__context__ is not None:
        error = error.__context__  # RLlib tries an older way then, and says that of it
    said = one_line(str(error).partition("To suppress all validation errors")[0]).rstrip(".! ")
    if not said or isinstance(error, (LookupError, AttributeError, TypeError, AssertionError)):
        said = f"{type(error).__name__}: {said}"
    if key == KEY:
        return SpecError(key, value, f"cannot be played: {said}", "install or correct it, or take an algorithm that can play it")
    return SpecError(key, value, f"RLlib refuses it: {said}", "see its documentation of the algorithm")
