"""regrow as a tuner of a simulated experiment (`clock.py`): its planner, told the events that a log
would have.

The planner decides here as everywhere: which trial starts, pauses, goes on, stops. The events of a
trial's attempt (it began, it reported, it ended, it saved a checkpoint where it pauses) are written
as a worker would write them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal

from benchmarks.clock import Config, Decision, Task
from regrow.search.events import (
    AnyEvent,
    Began,
    Created,
    Decided,
    Ended,
    Opened,
    Outcome,
    Proposed,
    Reported,
    Row,
    Saved,
    Started,
)
from regrow.search.history import History
from regrow.search.measured import Known
from regrow.search.planning.planner import Planner
from regrow.search.spec import Spec
from regrow.search.spec.keys import UNLIMITED

TRIALS = 100_000
"""More than any budget allows: an experiment that ends by its time."""
AUTO_TRIALS = 2000
"""The same for `search: auto`, which has another sampler for more than so many."""


Limit = Literal["time", "budget", "trials"]
"""What ends an experiment beside the clock: nothing, its trainings as `budget`, or as `trials`."""


class Regrow:
    """An experiment with `search` and `schedule`, as they stand in a specification. Raises
    SpecError for what there is not.
    """

    def __init__(
        self,
        curves: Task,
        seed: int,
        search: Any,
        schedule: Any,
        learnt: Sequence[Known] = (),
        *,
        limit: Limit = "time",
    ) -> None:
        trials = AUTO_TRIALS if search == "auto" else TRIALS
        changes: dict[str, Any] = {"search": search, "schedule": schedule, "seed": seed}
        if limit == "budget":
            trials = UNLIMITED
            changes |= {"budget": curves.trainings, "trials": None}
        else:
            trials = math.ceil(curves.trainings) if limit == "trials" else trials
            changes["trials"] = trials
        spec = Spec.parse({**curves.spec.to_json(), **changes}).resolved
        self._max_steps = curves.max_steps
        self._planner = Planner()
        self._now = itertools.count(1)  # nothing here depends on how much time goes by
        self._apply(Created(t=0, id=spec.name, spec=spec.to_json(), learnt=list(learnt)))
        self._apply(
            Opened(t=0, by="driver", driver="benchmark", slots=curves.workers, trials=trials)
        )

    def ask(self) -> Config | int | None:
        new = False
        while (event := self._planner.next(next(self._now))) is not None:
            self._apply(event)
            new = new or isinstance(event, Proposed)
            if isinstance(event, Started):
                trial = self._planner.history.trials[event.trial]
                began = Began(
                    t=event.t,
                    trial=event.trial,
                    attempt=event.attempt,
                    node="a",
                    restored=trial.step,
                )
                self._apply(began)
                return trial.config if new else event.trial
        return None

    def report(self, trial: int, step: int, score: float) -> Decision:
        now, record = next(self._now), self._planner.history.trials[trial]
        attempt = record.attempt
        if attempt is None:
            raise LookupError(f"trial {trial} reports and has no attempt")
        row = Row(step=step, t=now, metrics={"score": score})
        self._apply(Reported(t=now, trial=trial, attempt=attempt.number, rows=[row]))
        decision: Decision = "continue"
        if attempt.until is not None and step >= attempt.until:
            event = self._planner.next(now)
            if not isinstance(event, Decided) or event.trial != trial:
                raise LookupError(
                    f"a decision on trial {trial} was due at step {step}, not {event}"
                )
            self._apply(event)
            if event.verdict == "restart":
                raise NotImplementedError(
                    "a table cannot say what a model does that goes on in another way"
                )
            decision = event.verdict
        if decision == "continue" and step < self._max_steps:
            return "continue"
        if decision == "pause":
            manifest = f"{trial}-{step}"
            self._apply(
                Saved(
                    t=now, trial=trial, attempt=attempt.number, step=step, manifest=manifest, size=1
                )
            )
        outcomes: dict[Decision, Outcome] = {
            "continue": "done",
            "stop": "stopped",
            "pause": "paused",
        }
        self._apply(
            Ended(t=now, trial=trial, attempt=attempt.number, outcome=outcomes[decision], step=step)
        )
        return "stop" if decision == "continue" else decision

    def fail(self, trial: int, step: int) -> None:
        attempt = self._planner.history.trials[trial].attempt
        if attempt is None:
            raise LookupError(f"trial {trial} fails and has no attempt")
        self._apply(
            Ended(
                t=next(self._now),
                trial=trial,
                attempt=attempt.number,
                outcome="failed",
                cause="error",
                step=step - 1,
            )
        )

    @property
    def history(self) -> History:
        """What happened so far."""
        return self._planner.history

    def _apply(self, event: AnyEvent) -> None:
        self._planner.apply(event)
