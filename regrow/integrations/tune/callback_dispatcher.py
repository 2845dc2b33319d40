"""Calls Ray Tune callbacks in the driver from the log: each event at least once, in the log's
order.

A session replays the whole log, also earlier sessions' events, because a callback starts without
state in each process. Calls may be a second late.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from regrow.infra.log.follower import Follower
from regrow.infra.log.subscription import Batch, Subscription
from regrow.infra.state.experiments import request_order, request_stop, withdraw_stop
from regrow.infra.state.places import Places
from regrow.integrations.tune.session import UNREPORTED, reported
from regrow.integrations.tune.stopping import UNKNOWN
from regrow.integrations.tune.templates import render
from regrow.search.events import Began, Ended, Proposed, Reported, Row, Saved
from regrow.search.history import History
from regrow.search.planning.planner import seed_for
from regrow.search.spec import Spec
from regrow.tasks.ports.store import Store, StoreError
from regrow.tasks.process import temporary

if TYPE_CHECKING:
    from regrow.integrations.tune.translation import Translation

LOOK_SECONDS = (0.5, 0.5)


def named_wrongly(message: str) -> bool:
    """Return whether a trial failed since the script names a metric of `stop` that is not reported:
    all of its trials will.
    """
    return message.startswith(UNKNOWN)


@contextmanager
def dispatching(
    spec: Spec, found: Translation, callbacks: Sequence[Any]
) -> Iterator[CallbackDispatcher]:
    """Within the block, tell callbacks, and Stoppers that consider all trials, of the events."""
    store = Places.at(spec.state).store(spec.name)
    feed = CallbackDispatcher(spec, found, callbacks, store)
    stopping = found.stopping
    if not (callbacks or stopping.whole or stopping.named or found.scheduler):
        try:
            yield feed
        finally:
            feed.close()
        return
    try:
        log = Subscription(Follower(store), LOOK_SECONDS)
        with log.in_background(feed.dispatch, "tune-callbacks"):
            yield feed
    finally:
        feed.call("on_experiment_end")
        feed.close()


@dataclass(eq=False, kw_only=True)
class TrialSeen:
    """A trial as callbacks see it. `local_path`: a folder for callbacks, which is not kept."""

    trial_id: str
    config: dict[str, Any]
    local_path: str
    status: str = "PENDING"
    last_result: dict[str, Any] = field(default_factory=dict)
    checkpoint: Any = None

    @property
    def evaluated_params(self) -> dict[str, Any]:
        return self.config

    @property
    def path(self) -> str:
        return self.local_path

    def init_local_path(self) -> None:
        """Do nothing: the folder exists."""

    def __str__(self) -> str:
        return self.trial_id


class CallbackDispatcher:
    """Dispatches the log of one experiment to callbacks. `stopped`: whether a Stopper ended it."""

    def __init__(
        self, spec: Spec, found: Translation, callbacks: Sequence[Any], store: Store
    ) -> None:
        self._spec, self._found, self._callbacks, self._store = spec, found, callbacks, store
        self._folder = tempfile.TemporaryDirectory(
            prefix="tune-", dir=temporary.process_temp_dir(), ignore_cleanup_errors=True
        )
        self._trials: dict[int, Any] = {}
        self._history = History(spec.name)
        self.stopped = False
        self._request: str | None = None
        for callback in callbacks:
            callback.setup()

    def dispatch(self, batch: Batch) -> None:
        for event in batch.events():
            self._dispatch_event(event)

    def call(self, name: str, **more: Any) -> None:
        """Call a method of each callback. An exception is printed, and does not end anything."""
        trials = list(self._trials.values())
        for callback in self._callbacks:
            try:
                if name == "on_experiment_end":
                    callback.on_experiment_end(trials=trials)
                else:
                    getattr(callback, name)(iteration=len(trials), trials=trials, **more)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001 - the user's callback may raise anything
                traceback.print_exc()

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of the user's scheduler; None without one. An exception is printed."""
        if self._found.scheduler is None:
            return None
        controller = SimpleNamespace(get_trials=lambda: list(self._trials.values()))
        try:
            return getattr(self._found.scheduler, name)(controller, *arguments)
        except Exception:  # noqa: BLE001 - the user's scheduler may raise anything
            traceback.print_exc()
            return None

    def _dispatch_event(self, event: Any) -> None:
        self._history.apply(event)
        if isinstance(event, Proposed):
            self._trials[event.trial] = added = self._trial(event.trial)
            self._ask("on_trial_add", added)
        trial: Any = self._trials.get(getattr(event, "trial", -1))
        if isinstance(event, Began):
            trial.status = "RUNNING"
            trial.config = self._config(event.trial)
            self.call("on_trial_restore" if event.restored else "on_trial_start", trial=trial)
        elif isinstance(event, Reported):
            for row in event.rows:
                self._dispatch_report(event, row)
        elif isinstance(event, Saved):
            self.call("on_trial_save", trial=trial)
            trial.checkpoint = SimpleNamespace(path=event.manifest)
            self.call("on_checkpoint", trial=trial, checkpoint=trial.checkpoint)
        elif isinstance(event, Ended):
            self._ended(trial, event)

    def _dispatch_report(self, event: Reported, row: Row) -> None:
        number, trial = event.trial, self._trials[event.trial]
        if UNREPORTED in event.reported(row):
            return
        trial.last_result = result = reported(event, row, trial.config, trial.trial_id)
        if self._ask("on_trial_result", trial, result) == "STOP":
            request_order(self._store, [number], "stop")
        self.call("on_trial_result", trial=trial, result=result)
        for stopper in self._found.stopping.whole:
            stopper(trial.trial_id, result)  # its verdict on the trial is requested in the trial
        if any(stopper.stop_all() for stopper in self._found.stopping.whole):
            self._stop()

    def close(self) -> None:
        """Withdraw the request to stop, which could end the next session, and remove the folder."""
        self._folder.cleanup()
        if self._request is not None:
            with suppress(StoreError):
                withdraw_stop(self._store, self._request)

    def _stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._request = request_stop(self._store)

    def _ended(self, trial: Any, event: Ended) -> None:
        state = self._history.trials[event.trial].state.value
        if state in ("done", "stopped"):
            self._ask("on_trial_complete", trial, trial.last_result)
            self.call("on_trial_complete", trial=trial)  # in Tune, too, it is still RUNNING
            trial.status = "TERMINATED"
        elif state == "failed":
            trial.status = "ERROR"
            self._ask("on_trial_error", trial)
            self.call("on_trial_error", trial=trial)
            if named_wrongly(event.message):
                self._stop()
        elif event.cause:
            trial.status = "PENDING"
            self.call("on_trial_recover", trial=trial)

    def _trial(self, number: int) -> Any:
        name = f"{self._spec.name}_{number:05d}"
        folder = Path(self._folder.name, name)
        folder.mkdir()
        return TrialSeen(trial_id=name, config=self._config(number), local_path=str(folder))

    def _config(self, number: int) -> dict[str, Any]:
        nested = self._spec.space.nest(self._history.trials[number].config)
        return render(
            self._found.trainable.template, nested, seed_for(self._spec.seed, number, "trial")
        )
