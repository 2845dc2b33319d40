"""How long a decision, a proposal of CMA-ES and a whole simulated experiment take, ours and
Optuna's in one run.

python benchmarks/decide.py [--trials 10000] [--json FILE]

* asha: one decision with so many trials in the lowest rung; Optuna's SuccessiveHalvingPruner over a
  study with as many.
* cmaes: one proposal after so many finished trials; Optuna's CmaEsSampler after as many, at most
  OPTUNA_MOST, as each costs it more than the one before.
* simulation: so many random trials of at most 27 steps under ASHA, 16 workers, virtual time; there
  is no rival for it here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna

from regrow.search import samplers, schedulers
from regrow.search.chance import uniform_draw
from regrow.search.planning.simulator import FunctionObjective, simulate
from regrow.search.samplers.base import Result
from regrow.search.schedulers.base import Candidate, Decision, Verdict
from regrow.search.space import Space
from regrow.search.space.setting import Setting
from regrow.search.spec import Spec

OPTUNA_MOST = 2_000
SPACE = {f"x{n}": {"uniform": [0.0, 1.0]} for n in range(6)}
SETTING = Setting(space=Space.parse(SPACE), modes=("min",), max_steps=27)
REPEATS = 21


def median_ms(call: Callable[[int], Any]) -> float:
    """The median of REPEATS calls, which are given 0, 1, ...; two before them don't count."""
    times = []
    for turn in range(REPEATS + 2):
        start = time.perf_counter()
        call(turn)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[2:])


def asha(trials: int) -> tuple[float, float]:
    """Milliseconds a decision, ours and Optuna's."""
    scheduler = schedulers.make("asha", SETTING)
    for trial in range(trials):
        scheduler.apply(Candidate(trial=trial, config={}))
        scheduler.apply(
            Decision(trial=trial, values=[uniform_draw(trial, "loss")], verdict=Verdict())
        )
    ours = median_ms(lambda turn: scheduler.decide(trials + turn, [uniform_draw(-turn, "loss")]))
    study = optuna.create_study(pruner=optuna.pruners.SuccessiveHalvingPruner(reduction_factor=3))
    attrs = {"completed_rung_0": 0.5}
    for trial in range(trials):
        value = uniform_draw(trial, "loss")
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.PRUNED,
                value=value,
                intermediate_values={1: value},
                system_attrs=attrs,
            )
        )

    def prune(turn: int) -> None:
        trial = study.ask()
        trial.report(uniform_draw(-turn, "loss"), 1)
        trial.should_prune()

    return ours, median_ms(prune)


def cmaes(trials: int) -> tuple[float, float]:
    """Milliseconds a proposal, ours and Optuna's."""
    sampler = samplers.make("cmaes", SETTING)

    def turn_of_ours(number: int) -> None:
        proposal = sampler.ask(number, number)
        assert proposal is not None
        value = sum((float(v) - 0.3) ** 2 for v in proposal.config.values())
        sampler.tell(
            Result(
                number=number,
                config=proposal.config,
                state=proposal.state,
                status="done",
                value=value,
            )
        )

    for number in range(trials):
        turn_of_ours(number)
    ours = median_ms(lambda turn: turn_of_ours(trials + turn))
    study = optuna.create_study(sampler=optuna.samplers.CmaEsSampler(seed=0))

    def turn_of_optuna(_: int) -> None:
        trial = study.ask()
        study.tell(trial, sum((trial.suggest_float(name, 0.0, 1.0) - 0.3) ** 2 for name in SPACE))

    for number in range(min(trials, OPTUNA_MOST)):
        turn_of_optuna(number)
    return ours, median_ms(turn_of_optuna)


def simulation(trials: int) -> float:
    """Seconds for the whole."""
    spec = Spec.parse(
        {
            "name": "large",
            "trainable": "a.py:b",
            "metric": "loss",
            "mode": "min",
            "space": SPACE,
            "search": "random",
            "schedule": "asha",
            "trials": trials,
            "max_steps": 27,
        }
    )
    objective = FunctionObjective(
        function=lambda config, step: float(config["x0"]) / step, spec=spec
    )
    start = time.perf_counter()
    assert simulate(spec, objective, workers=16).history.closed is not None
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: dict[str, dict[str, float]] = {}
    for name, (ours, theirs) in (("asha", asha(options.trials)), ("cmaes", cmaes(options.trials))):
        found[name] = {"ours_ms": ours, "optuna_ms": theirs, "ratio": theirs / ours}
        print(f"{name:8} ours {ours:8.4f} ms   Optuna {theirs:9.4f} ms   {theirs / ours:7.1f}x")
    found["simulation"] = {"seconds": simulation(options.trials)}
    print(
        f"simulation of {options.trials} trials x 27 steps: {found['simulation']['seconds']:.1f} s"
    )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
