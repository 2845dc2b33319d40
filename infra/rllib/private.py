"""The names of RLlib's and Tune's that their documentation does not promise, each with why it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def use_learning_rates(learner: Any, env_steps: int) -> None:
    """Has each optimizer of a learner go on with the rate that its configuration says for now, after so many steps.

    The state of an optimizer has the rate that it was saved with, which RLlib replaces only after the next update: a trial that
    goes on from another one's weights, or with other parameters, would make that update with the wrong one (Ray 2.60).
    """
    for optimizer, schedule in learner._optimizer_lr_schedules.items():  # noqa: SLF001
        learner._set_optimizer_lr(optimizer, lr=schedule.update(timestep=env_steps))  # noqa: SLF001


@contextmanager
def data_placed(context: Any, strategy: Any) -> Iterator[None]:
    """Within the block what Ray Data starts is placed so. Deprecated, and the only way by which all of it is: what looks into
    the files before they are read takes no arguments.
    """
    names = ("scheduling_strategy", "scheduling_strategy_large_args")
    before = {name: getattr(context, name) for name in names}
    for name in names:
        setattr(context, name, strategy)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)


@contextmanager
def results_in(folder: str) -> Iterator[None]:
    """Within the block an algorithm that is made has its (empty) folder of results there, rather than in ~/ray_results."""
    from ray.tune.trainable import trainable as module

    trainable: Any = module
    before = trainable.DEFAULT_STORAGE_PATH
    trainable.DEFAULT_STORAGE_PATH = folder
    try:
        yield
    finally:
        trainable.DEFAULT_STORAGE_PATH = before
