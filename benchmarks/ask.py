"""How long a proposal takes, ours beside plain Optuna, in the same run and over the same trials.

    python benchmarks/ask.py --json ask.json

Six parameters (two logarithmic, one real, two whole, one choice), all trials done; for "early" all
but one in nine were stopped, where TPE is our own, and not Optuna's. Each number is the median over
`--repeats` proposals; for TPE both get the same seeds and their proposals are compared. "cold" is
the time from nothing to the first proposal: telling all results, then asking.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from regrow.search.samplers import make
from regrow.search.samplers.base import Result, Sampler, TrialStatus
from regrow.search.space import Space
from regrow.search.space.setting import Setting

SPACE = Space.parse(
    {
        "lr": {"loguniform": [1e-5, 1e-1]},
        "decay": {"loguniform": [1e-6, 1e-2]},
        "dropout": {"uniform": [0, 0.6]},
        "layers": {"int": [1, 6]},
        "units": {"logint": [16, 1024]},
        "activation": {"choice": ["relu", "tanh", "gelu"]},
    }
)
OPTUNAS: dict[str, BaseDistribution] = {
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "decay": FloatDistribution(1e-6, 1e-2, log=True),
    "dropout": FloatDistribution(0, 0.6),
    "layers": IntDistribution(1, 6),
    "units": IntDistribution(16, 1024, log=True),
    "activation": CategoricalDistribution(("relu", "tanh", "gelu")),
}
SETTING = Setting(space=SPACE, modes=("min",))
WARM_UP = 2  # proposals before those that count: imports, caches


def results(count: int, *, early: bool = False) -> list[Result]:
    """Random trials with a loss that depends on most parameters, all done; `early`: all but one in
    nine stopped.
    """
    sampler, told = make("random", SETTING), []
    for number in range(count):
        proposal = sampler.ask(number, number)
        assert proposal is not None
        config = proposal.config
        loss = abs(math.log10(config["lr"]) + 3) + config["dropout"] + abs(config["layers"] - 3) / 6
        value = loss + number % 97 / 970
        curve = (
            [(step, value + 1 / step) for step in range(1, 10 if number % 9 == 0 else 4)]
            if early
            else []
        )
        status: TrialStatus = "stopped" if early and number % 9 else "done"
        told.append(
            Result(number=number, config=config, status=status, value=value, intermediate=curve)
        )
    return told


def study_with(told: list[Result], sampler: optuna.samplers.BaseSampler) -> optuna.Study:
    """A study in memory with the same trials."""
    study = optuna.create_study(sampler=sampler)
    for result in told:
        done = result.status == "done"
        trial = optuna.trial.create_trial(
            params=dict(result.config),
            distributions=OPTUNAS,
            value=result.value if done else None,
            state=optuna.trial.TrialState.COMPLETE if done else optuna.trial.TrialState.PRUNED,
            intermediate_values=dict(result.intermediate),
        )
        study.add_trial(trial)
    return study


def milliseconds(call: Callable[[], Any]) -> tuple[float, Any]:
    """How long `call` takes, and what it returns."""
    start = time.perf_counter()
    answer = call()
    return (time.perf_counter() - start) * 1e3, answer


def measure(search: Any, told: list[Result], repeats: int) -> dict[str, Any]:
    """Medians of ours and Optuna's, turn by turn, so that both meet the same load of the
    machine.
    """
    make(search, SETTING).ask(0, 0)  # imports are not what is measured here

    def rebuild() -> Sampler:
        sampler = make(search, SETTING)
        for result in told:
            sampler.tell(result)
        sampler.ask(len(told), 0)
        return sampler

    cold, ours = milliseconds(rebuild)
    theirs = (
        optuna.samplers.TPESampler(seed=0)
        if search != "random"
        else optuna.samplers.RandomSampler(seed=0)
    )
    study = study_with(told, theirs)
    times: dict[str, list[float]] = {"ours": [], "optuna": []}
    equal = 0
    for turn in range(repeats + WARM_UP):
        number = len(told) + turn
        theirs._rng.rng.seed(turn)  # noqa: SLF001  # a new sampler would lose its caches
        took, trial = milliseconds(partial(study.ask, OPTUNAS))
        times["optuna"].append(took)
        took, proposal = milliseconds(partial(ours.ask, number, turn))
        times["ours"].append(took)
        equal += proposal.config == trial.params and turn >= WARM_UP
        # Optuna's trial is running from now on, and keeps later proposals away: so must ours.
        running = Result(number=number, config=trial.params, state=proposal.state, status="running")
        ours.tell(running)
    median = {who: statistics.median(taken[WARM_UP:]) for who, taken in times.items()}
    return {
        "search": search,
        "trials": len(told),
        "ours_ms": median["ours"],
        "optuna_ms": median["optuna"],
        "ratio": median["optuna"] / median["ours"],
        "cold_ms": cold,
        "equal": f"{equal}/{repeats}" if search == "tpe" and told[1].status == "done" else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[100, 1_000, 10_000], help="trials told"
    )
    parser.add_argument("--repeats", type=int, default=21, help="proposals for each median")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = []
    names = ("trials", "ours ms", "optuna ms", "ratio", "cold ms")
    print(f"{'search':8}" + "".join(f"{name:>11}" for name in names) + "  same proposals")
    for name, search, early in (
        ("random", "random", False),
        ("tpe", "tpe", False),
        ("early", "tpe", True),
    ):
        for size in options.sizes:
            row = measure(search, results(size, early=early), options.repeats) | {"search": name}
            rows.append(row)
            print(
                f"{name:8}{size:11}{row['ours_ms']:11.3f}{row['optuna_ms']:11.3f}{row['ratio']:10.1f}x"
                f"{row['cold_ms']:11.1f}  {row['equal'] or ''}"
            )
    if options.json:
        about = {
            "python": platform.python_version(),
            "optuna": optuna.__version__,
            "numpy": np.__version__,
        }
        options.json.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
