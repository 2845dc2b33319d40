"""Ask and tell: trials that the script runs itself, in a session of its own process."""

from __future__ import annotations

import math
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from regrow.flows.inline import InlineSession
from regrow.infra.state.experiments import Prepared
from regrow.infra.state.places import Places
from regrow.integrations.optuna.objective import checked
from regrow.integrations.optuna.running import Trial, finite, logged
from regrow.search.events import Began
from regrow.search.history import History
from regrow.search.planning.suggesting import CAUGHT, EXPECTED
from regrow.search.spec.keys import UNLIMITED
from regrow.tasks.checkpoint.writer import CheckpointWriter
from regrow.tasks.media.writer import MediaWriter
from regrow.tasks.ports.messages import Assignment, Job
from regrow.tasks.ports.ranks import AttemptVerdict
from regrow.tasks.process import temporary
from regrow.tasks.trial.reporter import Reporter
from regrow.tasks.trial.trial import Trial as OurTrial

ASKED = "optuna:asked"
"""Attribute of a trial that the script ran itself, or added."""
ENDED_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class AskedTrial:
    """A trial that runs in this process, from `ask` to `tell`."""

    def __init__(
        self,
        job: Job,
        assignment: Assignment,
        inline: InlineSession,
        prepared: Prepared,
        made: Callable[[OurTrial], Trial],
    ) -> None:
        number, attempt = assignment.trial, assignment.attempt
        self._ended = ExitStack()
        scratch = temporary.made(f"{number}-")
        self._ended.callback(shutil.rmtree, scratch, ignore_errors=True)
        self._writer = CheckpointWriter(prepared.store, trial=number, attempt=attempt)
        self._ended.callback(self._writer.close)
        began = Began(
            t=time.time(),
            trial=number,
            attempt=attempt,
            node=socket.gethostname(),
            task_run=f"ask-{number}",
        )
        self._reporter = Reporter(inline, assignment, began, list)
        self._reporter.start()
        self._ended.callback(self._reporter.stop)
        media = MediaWriter(
            prepared.store,
            trial=number,
            attempt=attempt,
            restored=0,
            queue=self._writer.call,
            folder=scratch / "media",
        )
        self._ours = OurTrial(
            job,
            assignment,
            self._reporter,
            self._writer,
            restored=None,
            restored_step=0,
            suggestions=self._reporter,
            media=media,
        )
        self.trial = made(self._ours)
        self._ours.note({ASKED: True})
        self._reporter.flush()

    def end(self, state: TrialState, values: Mapping[str, float] | None, message: str) -> None:
        """End the trial. `values`: by their names, None for none."""
        ours = self._ours
        match state:
            case TrialState.COMPLETE:
                assert values is not None
                ours.conclude({name: finite(value) for name, value in values.items()})
                end = AttemptVerdict(outcome="done", cause="", message="")
            case TrialState.PRUNED:
                end = AttemptVerdict(outcome="stopped", cause="", message=message)
            case _:
                ours.note({CAUGHT: EXPECTED})
                end = AttemptVerdict(message=message)
        self._writer.drain()
        self._ended.close()
        self._reporter.flush(ended=self._reporter.ended(end))


class Asking:
    """The session in which a study asks. `prepared`: the experiment, as found; `given`: see
    InlineSession.
    """

    def __init__(
        self,
        places: Places,
        prepared: Prepared,
        metrics: Sequence[str],
        made: Callable[[OurTrial], Trial],
        given: object = None,
    ) -> None:
        self._inline = InlineSession(places, prepared, trials=UNLIMITED, given=given)
        self._job = Job.of(prepared.spec, folder=None)
        self._prepared, self._metrics, self._made = prepared, tuple(metrics), made
        self._asked: dict[int, AskedTrial] = {}

    def ask(self, fixed: Mapping[str, BaseDistribution]) -> Trial:
        """Start a trial, and draw the parameters of `fixed`."""
        assignment = self._inline.start()
        asked = AskedTrial(self._job, assignment, self._inline, self._prepared, self._made)
        self._asked[assignment.trial] = asked
        for name, distribution in fixed.items():
            asked.trial.suggest_from(name, distribution)
        return asked.trial

    @property
    def history(self) -> History:
        """All events so far."""
        return self._inline.history

    def frozen(self) -> list[FrozenTrial]:
        """Return the running trials as they are now."""
        running = TrialState.RUNNING
        return [one.trial.frozen(running, None) for one in self._asked.values()]

    def queue(self, values: dict[str, Any], attributes: dict[str, Any]) -> None:
        """Have the next new trial use these values."""
        self._inline.queue(values, attributes)

    def running(self, number: int) -> Trial | None:
        """Return a trial that was asked for and not told; None if it is none."""
        found = self._asked.get(number)
        return None if found is None else found.trial

    def tell(
        self, number: int, values: Any, state: TrialState | None
    ) -> tuple[TrialState, str | None]:
        """End a trial as Optuna's `tell` does. Return its state, and what is wrong with the values
        of a trial that failed for that. Raises ValueError for what Optuna refuses.
        """
        asked, problem, numbers = self._asked[number], None, None
        if state is None or state is TrialState.COMPLETE:
            try:
                numbers = checked(values, len(self._metrics))
                state = TrialState.COMPLETE
            except ValueError as error:
                if state is TrialState.COMPLETE:
                    raise
                state, problem = TrialState.FAIL, str(error)
        named = None if numbers is None else dict(zip(self._metrics, numbers, strict=True))
        asked.end(state, named, problem or f"it was told as {state.name}")
        del self._asked[number]
        return state, problem

    def add(self, trial: FrozenTrial) -> None:
        """Add a trial that has ended elsewhere, with its parameters, values and attributes."""
        self.queue({name: logged(value) for name, value in trial.params.items()}, {})
        made = self.ask({})
        for name, distribution in trial.distributions.items():
            made.suggest_from(name, distribution)
        for step, value in sorted(trial.intermediate_values.items()):
            if len(self._metrics) == 1:
                made.report(value, step)
        for key, one in trial.user_attrs.items():
            made.set_user_attr(key, one)
        for key, violation in trial.constraints.items():
            made.set_constraint(key, violation)
        values = trial.values if trial.state is TrialState.COMPLETE else None
        if values is not None and any(map(math.isnan, values)):
            values = None
        self.tell(made.number, values, trial.state)

    def close(self) -> None:
        """End the session. Trials that were not told are lost."""
        self._inline.close()
