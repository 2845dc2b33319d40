"""Experiments whose trials fail, and the next session, in which they are tried again. No test lives
here.
"""

from __future__ import annotations

from typing import Any

from regrow.search.events import AnyEvent, Decided, Ended
from regrow.search.history import History
from regrow.search.planning.simulator import FunctionObjective
from regrow.search.planning.simulator import Simulation as Simulated
from regrow.search.spec import Spec
from tests.faults.test_every_pair import SCHEDULERS
from tests.unit.simulated import SPEC, score

SCHEDULES: list[Any] = [
    *({name: options} for name, options in sorted(SCHEDULERS.items())),
    {"asha": {"type": "promotion", "reduction_factor": 2}},
    {"asha": {"guard": True, "recheck": True, "reduction_factor": 2}},
    {"async_hyperband": {"type": "promotion"}},
]


def simulated(workers: int = 2, **changes: Any) -> Simulated:
    spec = Spec.parse({**SPEC, "trials": 9, **changes})
    return Simulated(spec=spec, objective=_objective(spec), workers=workers)


def _objective(spec: Spec) -> FunctionObjective:
    return FunctionObjective(function=score, spec=spec)


def failing(run: Simulated, *at: tuple[int, int]) -> Simulated:
    """Runs to the end; the trials of `at` raise once at the step beside their number, where they
    come to it.
    """
    left = set(at)
    run.open()
    while run.history.closed is None:
        run.run(most_events=len(run.events) + 1)
        for running in run.running:
            if (running.trial, running.step) in left:
                left.discard((running.trial, running.step))
                run.fail(running.trial, "NameError: name 'modle' is not defined")
    assert left < set(at)
    return run


def reopened(
    run: Simulated, events: list[AnyEvent] | None = None, *, retry_failed: bool = True
) -> Simulated:
    """The next session at its beginning. `events`: of the log of the run so far, None for all."""
    again = Simulated(spec=run.spec, objective=run.objective, workers=run.workers)
    return again.open(run.events if events is None else events, retry_failed=retry_failed)


def retried(run: Simulated) -> Simulated:
    """The next session, in which what failed is tried again."""
    return reopened(run).run()


def curves(history: History) -> list[list[float]]:
    return [list(trial.values) for trial in history.trials]


def until(events: list[AnyEvent], verdict: str) -> list[AnyEvent]:
    """The log up to the first such decision."""
    place = next(
        n
        for n, event in enumerate(events)
        if isinstance(event, Decided) and event.verdict == verdict
    )
    return events[: place + 1]


def failed_after(run: Simulated, log: list[AnyEvent]) -> Simulated:
    """That log, in which the trial of the last decision then raised, run to its end by the next
    driver.
    """
    decided = log[-1]
    assert isinstance(decided, Decided)
    ended = Ended(
        t=decided.t,
        trial=decided.trial,
        attempt=decided.attempt,
        outcome="failed",
        cause="error",
        step=decided.step,
        message="raised as it was told",
    )
    return reopened(run, [*log, ended], retry_failed=False).run()
