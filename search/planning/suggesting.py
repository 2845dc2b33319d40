"""The values that define-by-run trials ask for while they run, each a decision."""

from __future__ import annotations

from regrow.search.chance import seed_for
from regrow.search.events import Suggested
from regrow.search.history import History
from regrow.search.planning.results import Results
from regrow.search.samplers.base import Sampler, Suggesting

FIXED = "fixed"
"""Key of a proposal's state for the values that the user wants tried."""
QUEUED = "queued"
"""Key of a proposal's state for the place of these values in the specification's `enqueue`."""


def suggestion(history: History, results: Results, sampler: Sampler, now: float) -> Suggested:
    """Return the value asked for first, by a seed of experiment, trial and parameter."""
    (number, name), distribution = next(iter(history.asked.items()))
    trial = history.trials[number]
    fixed = trial.proposal_state.get(FIXED, {})
    if name in fixed:
        value = fixed[name]
    else:
        # trials can ask only such a sampler: see the checks of a specification
        assert isinstance(sampler, Suggesting)
        seed = seed_for(history.spec.seed, number, f"suggestion of {name}")
        value = sampler.suggest(name, distribution, results.of(trial), seed)
    return Suggested(t=now, trial=number, name=name, distribution=distribution, value=value)


def next_queued(history: History) -> tuple[int, dict[str, object]] | None:
    """Return place and values of the next entry of the user's queue, None for none."""
    taken = sum(QUEUED in trial.proposal_state for trial in history.trials)
    queue = history.spec.enqueue
    return (taken, queue[taken]) if taken < len(queue) else None
