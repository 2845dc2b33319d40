"""The values that define-by-run trials ask for while they run: each one a decision of its own, by what history has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regrow.search.chance import seed_for
from regrow.search.events import Suggested
from regrow.search.history import History
from regrow.search.planning.results import Results
from regrow.search.samplers import Sampler, Suggesting

FIXED = "fixed"
"""Where a proposal has the values that the user wants tried."""
QUEUED = "queued"
"""Where it has which of the specification's `enqueue` these are."""


def suggestion(history: History, results: Results, sampler: Sampler, now: float) -> Suggested:
    """The value that was asked for first. Its seed is that of the experiment, the trial and the parameter's name."""
    (number, name), distribution = next(iter(history.asked.items()))
    trial = history.trials[number]
    fixed = trial.proposal_state.get(FIXED, {})
    if name in fixed:
        value = fixed[name]
    else:
        assert isinstance(sampler, Suggesting)  # of another one nothing is asked: see the checks of a specification
        seed = seed_for(history.spec.seed, number, f"suggestion of {name}")
        value = sampler.suggest(name, distribution, results.of(trial), seed)
    return Suggested(t=now, trial=number, name=name, distribution=distribution, value=value)


def unlike(history: History, name: str, distribution: Mapping[str, Any]) -> str:
    """Why a value of `name` cannot be asked from a distribution, in Optuna's words; "" if it can.

    As in Optuna, all trials of an experiment have the same choices and the same kind and scale of number; bounds may differ.
    """
    first = history.asked_first.get(name, distribution)
    before, now = first["attributes"], distribution["attributes"]
    if first["name"] != distribution["name"]:
        return f"{name!r}: Cannot set different distribution kind to the same parameter name: {first['name']} before"
    if before.get("choices") != now.get("choices"):
        return (
            f"{name!r}: CategoricalDistribution does not support dynamic value space: {before['choices']} before, "
            f"{now['choices']} now; give choices that differ a name each"
        )
    if before.get("log") != now.get("log"):
        return f"{name!r}: Cannot set different log configuration to the same parameter name: log={before.get('log')} before"
    return ""


def next_queued(history: History) -> tuple[int, dict[str, object]] | None:
    """Which of the values that the user wants tried is next, and they; None for none."""
    taken = sum(QUEUED in trial.proposal_state for trial in history.trials)
    queue = history.spec.enqueue
    return (taken, queue[taken]) if taken < len(queue) else None
