"""The values that define-by-run trials ask for while they run, each a decision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from regrow.search.chance import seed_for
from regrow.search.events import Suggested
from regrow.search.history import History, TrialRecord
from regrow.search.history.records import ATTRIBUTES
from regrow.search.planning.results import Results
from regrow.search.samplers import is_external
from regrow.search.samplers.base import Sampler, Suggesting
from regrow.search.samplers.external import Wanted

FIXED = "fixed"
"""Key of a proposal's state for the values that the user wants tried."""
QUEUED = "queued"
"""Key of a proposal's state for the place of these values in the specification's `enqueue`."""

LATER = "later"
"""The same for values that were queued by an event: its place among them."""
CAUGHT, EXPECTED = "optuna:caught", "expected"
"""Attribute of a trial whose failure does not end the study, and its value; it is True in logs of
versions that ended a session after five of them.
"""


def suggestion(
    history: History, results: Results, sampler: Sampler, now: float
) -> Suggested | Wanted:
    """Return the value asked for first, by a seed of experiment, trial and parameter; else what an
    external sampler has to answer.
    """
    (number, name), distribution = next(iter(history.asked.items()))
    trial = history.trials[number]
    fixed = trial.proposal_state.get(FIXED, {})
    if name in fixed:
        value = fixed[name]
    elif is_external(history.spec.search):
        if (number, name) not in history.answers:
            return Wanted(trial=number, name=name, distribution=distribution)
        value = history.answers[number, name]
    else:
        # trials can ask only such a sampler: see the checks of a specification
        assert isinstance(sampler, Suggesting)
        seed = seed_for(history.spec.seed, number, f"suggestion of {name}")
        value = sampler.suggest(name, distribution, results.of(trial), seed)
    return Suggested(t=now, trial=number, name=name, distribution=distribution, value=value)


def next_queued(history: History) -> dict[str, Any] | None:
    """Return the state of a proposal with the next values that the user wants tried, those of the
    specification first; None for none.
    """
    return next(waiting(history), None)


def waiting(history: History) -> Iterator[dict[str, Any]]:
    """Yield the same for all values that wait, in their order."""
    queue, later = history.spec.enqueue, history.queue
    if not queue and not later:
        return
    taken = sum(QUEUED in trial.proposal_state for trial in history.trials)
    for place in range(taken, len(queue)):
        yield {FIXED: dict(queue[place]), QUEUED: place}
    taken = sum(LATER in trial.proposal_state for trial in history.trials)
    for place in range(taken, len(later)):
        given = {ATTRIBUTES: later[place].attributes} if later[place].attributes else {}
        yield {FIXED: dict(later[place].values), LATER: place, **given}


def expected(trial: TrialRecord) -> bool:
    """Return whether a trial failed by an exception that its study catches."""
    return bool(trial.attributes.get(CAUGHT) == EXPECTED)
