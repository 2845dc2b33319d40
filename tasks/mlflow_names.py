"""Under which names the points of a user's own MLflow metrics are written: not under one that the trial reports as well.

Whether a name is reported is known once it was. So the first points of a new name wait for a moment: a script that logs a
metric and reports it does so right afterwards.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable

from mlflow.entities import Metric
from mlflow.utils.validation import _validate_metric

PREFIX = "logged."
HOLD_SECONDS = 1.0
"""How long they wait, at most; they are written when the attempt ends, too, and when the script asks for its run."""
MOST_HELD = 1000
"""Points that wait at most."""
_SYSTEM = "system/"
"""What the names of MLflow's own measurements of the machine begin with."""


class Names:
    """The names of one attempt's metrics. Thread-safe."""

    def __init__(
        self, reported: Callable[[], Collection[str]], own: Iterable[str], write: Callable[[list[Metric]], None]
    ) -> None:
        """`reported`: names that the trial is known to report, by now. `own`: those that it is known not to. `write`: given
        points that have waited, each under the name that it gets; raises nothing.
        """
        self._reported, self._own, self._write = reported, set(own), write
        self._held: list[Metric] = []
        self._timer: threading.Timer | None = None
        self._lock = threading.RLock()
        self._writing = threading.RLock()
        self._pid = os.getpid()

    def sorted_out(self, metrics: Iterable[Metric]) -> list[Metric]:
        """Those of the points that are written now, under their names; the others wait.

        Raises MlflowException where MLflow would refuse one.
        """
        now: list[Metric] = []
        if os.getpid() != self._pid:  # a forked child has neither the timer's thread nor, for sure, the lock
            reported = self._reported()
            return [_named(metric, reported) for metric in metrics]
        with self._lock:
            reported = self._reported()
            for metric in metrics:
                # MLflow's own check, which nothing else would make of a point that waits, or of one while MLflow is away.
                _validate_metric(metric.key, metric.value, metric.timestamp, metric.step)  # type: ignore[no-untyped-call]  # mlflow's
                if metric.key in reported or metric.key in self._own or metric.key.startswith(_SYSTEM):
                    now.append(_named(metric, reported))
                else:
                    self._held.append(metric)
            if self._held and self._timer is None:
                self._timer = threading.Timer(HOLD_SECONDS, self.release)
                self._timer.daemon = True
                self._timer.start()
            full = len(self._held) >= MOST_HELD
        if full:
            self.release()
        return now

    def release(self) -> None:
        """Writes what waits; a name that is not reported by now is the user's own for the rest of the attempt.

        Returns when all that has waited is written, also by another thread.
        """
        if os.getpid() == self._pid:
            with self._writing:
                self._release()

    def _release(self) -> None:
        with self._lock:
            held, self._held = self._held, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            reported = self._reported()
            self._own.update(metric.key for metric in held if metric.key not in reported)
        if held:
            self._write([_named(metric, reported) for metric in held])


def _named(metric: Metric, reported: Collection[str]) -> Metric:
    return Metric(**(dict(metric) | {"key": PREFIX + metric.key})) if metric.key in reported else metric
