"""What the experiments of `tune_bodies.py` and the modules beside it share: a Tuner's results, and
what is compared of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ray import tune as rays

from tests.compared_cases import TUNE

body, raised = TUNE.body, TUNE.raised


def part(tune: Any, place: str) -> Any:
    """A module below Ray Tune, or below ours: what `from ray.tune.search.optuna import` reads."""
    return importlib.import_module(f"{'ray' if tune is rays else 'regrow'}.tune.{place}")


def run_config(tune: Any, folder: str, **more: Any) -> Any:
    """A RunConfig that stores below `folder`, and shows nothing."""
    return tune.RunConfig(**{"storage_path": folder, "name": "experiment", "verbose": 0, **more})


def fit(
    tune: Any,
    folder: str,
    trainable: Any,
    space: dict[str, Any] | None = None,
    *,
    run: dict[str, Any] | None = None,
    **config: Any,
) -> Any:
    """The results of a Tuner. `run`: arguments of its RunConfig."""
    return tune.Tuner(
        trainable,
        param_space=space or {},
        tune_config=tune.TuneConfig(**config),
        run_config=run_config(tune, folder, **(run or {})),
    ).fit()


def ends(grid: Iterable[Any]) -> dict[str, int]:
    """How many trials failed, and how many did not."""
    failed = [result.error is not None for result in grid]
    return {"failed": sum(failed), "ended": len(failed) - sum(failed)}


def last(grid: Iterable[Any], *names: str) -> list[Any]:
    """These metrics of each trial's last report, sorted, as trials may be in any order."""
    found = [tuple(result.metrics.get(name, "nothing") for name in names) for result in grid]
    return sorted(found, key=repr)


def configs(grid: Iterable[Any], *names: str) -> list[Any]:
    """These entries of each trial's configuration, sorted; all of it without a name."""
    found = [
        tuple(result.config[name] for name in names or sorted(result.config)) for result in grid
    ]
    return sorted(found, key=repr)


def kinds(values: dict[str, Any], *names: str) -> dict[str, str]:
    """The types of these values."""
    return {name: type(values.get(name)).__name__ for name in names}


def lines(folder: str, name: str) -> list[str]:
    """The lines that trials wrote by `note`, sorted."""
    file = Path(folder, name)
    return sorted(file.read_text().splitlines()) if file.exists() else []


def note(folder: str, name: str, line: str) -> None:
    """Adds a line to a file that all trials know."""
    with Path(folder, name).open("a") as file:
        file.write(f"{line}\n")


def counted(tune: Any, upto: int = 10) -> Any:
    """A function that reports `m` from 0 on, and more of them nested."""

    def train(config: dict[str, Any]) -> None:
        for i in range(upto):
            tune.report({"m": i, "deep": {"er": {"m": i}}})

    return train
