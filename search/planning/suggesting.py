"""The values that define-by-run trials ask for while they run: each one a decision of its own, by what history has."""

from __future__ import annotations

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


def next_queued(history: History) -> tuple[int, dict[str, object]] | None:
    """Which of the values that the user wants tried is next, and they; None for none."""
    taken = sum(QUEUED in trial.proposal_state for trial in history.trials)
    queue = history.spec.enqueue
    return (taken, queue[taken]) if taken < len(queue) else None
