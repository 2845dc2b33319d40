"""A session of a study: launched, and followed in its log for callbacks and Optuna's log lines."""

from __future__ import annotations

import builtins
import copy
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from optuna.logging import get_logger
from optuna.trial import FrozenTrial, TrialState

from regrow.flows.inline import run_inline
from regrow.infra.log.follower import Follower
from regrow.infra.log.reading import fold
from regrow.infra.log.subscription import Batch, Subscription, available
from regrow.infra.state.places import Places
from regrow.integrations.optuna.driver import DriverProcess, in_main_thread, run_apart
from regrow.integrations.optuna.mirror import Mirror
from regrow.integrations.optuna.objective import Objective
from regrow.integrations.optuna.trials import Trials
from regrow.search.events import AnyEvent, Ended, Hold, Opened
from regrow.search.history import History, TrialRecord
from regrow.search.lifecycle import TrialState as State
from regrow.search.planning.suggesting import CAUGHT
from regrow.search.spec import Spec
from regrow.tasks.errors import UserCodeError, UserError
from regrow.tasks.ports.store import Store

Callback = Callable[[FrozenTrial], object]
_LOOK_SECONDS = (0.1, 0.1)


class Follow:
    """Follows one session from the driver's process, for `timeout` seconds (None: to its end)."""

    def __init__(
        self,
        store: Store,
        callbacks: Sequence[Callback],
        timeout: float | None,
        hold: Hold = "",
    ) -> None:
        """`hold`: after which ends of trials the next decision waits for the callbacks."""
        self._store, self._callbacks, self._timeout = store, callbacks, timeout
        self._hold, self._coordinator = hold, DriverProcess()
        self._log = get_logger("optuna.study")
        self._history = History()
        self._ends = False
        """Whether the session is to end."""
        self._deadline = math.inf
        self._raised: BaseException | None = None
        """The exception that a callback raised."""
        self._failure: TrialRecord | None = None
        """The first trial that failed with an exception that is not caught."""

    def run(self, spec: Spec, places: Places, objective: Objective, mirror: Mirror) -> None:
        """Launch the session and return when it has ended. Raises a callback's exception,
        UserCodeError for the objective's exception, KeyboardInterrupt if the user has interrupted
        it.
        """
        from regrow.experiment import run_session, store_trainable

        places.writable()
        run = self._runner(run_session, store_trainable, objective, spec, places)
        follower = Follower(self._store)
        for segments in available(follower):  # earlier sessions have reported them
            fold(self._store, self._history.apply, segments)
        log = Subscription(follower, _LOOK_SECONDS)
        try:
            with log.in_background(partial(self._apply_batch, mirror), "optuna"):
                run()
        finally:
            if self._history.created is not None:  # else what went wrong before is the error
                mirror.replace_all(Trials(self._history, self._store))
        if self._raised is not None:
            raise self._raised
        if self._failure is not None:
            number, last = self._failure.number, self._failure.attempts[-1]
            raise raised(objective.function, number, last.message, last.trace)
        closed = self._history.closed
        if closed is not None and closed.status == "interrupted":
            raise KeyboardInterrupt

    def _runner(
        self, session: Any, stored: Any, objective: Objective, spec: Spec, places: Places
    ) -> Callable[[], None]:
        """Return what runs the session: with workers, or in this process if the objective cannot be
        sent to any. Only the main thread can drive workers itself.
        """
        common: dict[str, Any] = {
            "name": spec.name,
            "spec": spec,
            "places": places,
            "hold": self._hold,
        }
        try:
            code = stored(self._store, objective)
        except UserError as error:
            self._log.warning(
                f"{error}. Until then, trials run in this process, one after the other: what cannot"
                " be pickled (a lock, an open file, a connection) is made in the objective instead,"
                " or at the top of a module that it imports"
            )
            through = self._coordinator.through
            return partial(run_inline, **common, given=objective, reached=through)
        common |= {"code": code, "announce": self._log.info}
        if not in_main_thread():
            return partial(run_apart, self._coordinator, **common)
        return partial(session, **common, given=objective, watch=self._coordinator.reached)

    @property
    def history(self) -> History | None:
        """What the log has, as far as it was read; None if it has nothing."""
        return self._history if self._history.created is not None else None

    def queue(self, values: dict[str, Any], attributes: dict[str, Any]) -> None:
        """Have the next new trial use these values."""
        if not self._coordinator.call("queue", values, attributes):
            raise UserError("the session is not there yet, or has ended; enqueue the trial again")

    def stop(self) -> None:
        """Have no further trial begin; those that run end by themselves."""
        self._coordinator.call("stop_study")

    def _end(self) -> None:
        """Ask the session to end. Without a coordinator, the next batch asks again."""
        self._ends = True
        self.stop()

    def _apply_batch(self, mirror: Mirror, batch: Batch) -> None:
        try:
            self._apply_events(mirror, batch)
        except BaseException:
            # else the session would wait for a thread that has ended
            self._coordinator.call("proceed", True)
            raise

    def _apply_events(self, mirror: Mirror, batch: Batch) -> None:
        for event in batch.events():
            self._history.apply(event)
            try:
                self._apply(event, mirror)
            except BaseException as error:  # noqa: BLE001 - from a callback: it ends the study and is raised by optimize
                self._raised = self._raised or error
                self._callbacks = ()
                self._end()
            if isinstance(event, Ended) and self._hold:
                self._coordinator.call("proceed")
        if self._ends or time.monotonic() >= self._deadline:
            self._end()

    def _apply(self, event: AnyEvent, mirror: Mirror) -> None:
        if isinstance(event, Opened) and event.by == "driver" and self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout
        if not isinstance(event, Ended):
            return
        trial = self._history.trials[event.trial]
        if not trial.state.final:
            return
        if trial.state is State.FAILED and CAUGHT not in trial.attributes and self._failure is None:
            self._failure = trial
            self._end()
        frozen = Trials(self._history, self._store).one(trial)
        mirror.put(frozen)
        self._log_end(frozen, event, trial.attempts[-1].stop)
        for callback in self._callbacks if self._failure is None else ():  # as in Optuna
            callback(copy.deepcopy(frozen))

    def _log_end(self, trial: FrozenTrial, event: Ended, why: str | None) -> None:
        """Log the end of a trial in Optuna's words. `why`: why the scheduler stopped it."""
        match trial.state:
            case TrialState.COMPLETE:
                values = trial.values
                found = f"value: {values[0]}" if len(values) == 1 else f"values: {values}"
                text = "Trial %d finished with %s and parameters: %s."
                self._log.info(text, trial.number, found, trial.params)
            case TrialState.PRUNED:
                self._log.info("Trial %d pruned. %s", trial.number, why or event.message)
            case _:
                text = "Trial %d failed with parameters: %s: %s"
                self._log.warning(text, trial.number, trial.params, event.message)


def raised(function: Callable[[Any], Any], number: int, message: str, trace: str) -> UserCodeError:
    """Make the error of a failed trial, so that an `except KeyError` around `optimize` catches it.
    `message`: the exception's class and text, `trace`: its traceback on the worker.

    It is also an instance of the exception's class if that is a Python builtin or a global name of
    the objective's module; attributes of the exception are not transferred.
    """
    name, text = message.partition(":")[0].strip(), f"trial {number} failed: {message}\n{trace}"
    kind: Any = getattr(function, "__globals__", {}).get(name, getattr(builtins, name, None))
    raises = isinstance(kind, type) and issubclass(kind, Exception)
    if raises and not issubclass(UserCodeError, kind):
        with suppress(Exception):  # a class that cannot be combined, or needs other arguments
            where = {"__module__": UserCodeError.__module__}
            made: UserCodeError = type("UserCodeError", (UserCodeError, kind), where)(text, trace)
            return made
    return UserCodeError(text, trace)
