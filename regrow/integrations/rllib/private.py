"""Private names of RLlib and Tune that we use, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def use_learning_rates(learner: Any, env_steps: int) -> None:
    """Set each optimizer of a learner to the rate that its configuration has after this many steps.

    The state of an optimizer contains the rate with which it was saved, and RLlib replaces it only
    after the next update: a trial that continues from another one's weights, or with other
    parameters, would make that update with the wrong rate (Ray 2.60).
    """
    for optimizer, schedule in learner._optimizer_lr_schedules.items():  # noqa: SLF001 - the purpose of this module
        learner._set_optimizer_lr(optimizer, lr=schedule.update(timestep=env_steps))  # noqa: SLF001 - the purpose of this module


@contextmanager
def data_placed(context: Any, strategy: Any) -> Iterator[None]:
    """Set the placement of everything that Ray Data starts within the block.

    These settings are deprecated, but the only way to place all of it: the task that inspects the
    files before they are read takes no arguments.
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
    """Within the block, use this folder instead of ~/ray_results for new algorithms."""
    from ray.tune.trainable import trainable as module

    trainable: Any = module
    before = trainable.DEFAULT_STORAGE_PATH
    trainable.DEFAULT_STORAGE_PATH = folder
    try:
        yield
    finally:
        trainable.DEFAULT_STORAGE_PATH = before
