"""What the user's own calls logged before a trial was taken back to a checkpoint, carried over into the run that goes on.

The run of before keeps all of it, and is deleted in MLflow's sense. What the trial itself reports the recorder carries over.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag

from regrow.tasks.addresses import shown
from regrow.tasks.mlflow_port import Tracked

_LOG = logging.getLogger("regrow.trial")
_BATCH, _PORTION = 1000, 100
"""Points in a request, and parameters or tags in one, at most: MLflow's own limits."""
_OTHERS = ("mlflow.", "regrow.")
"""What the names of tags begin with that are not the user's."""

_T = TypeVar("_T")
Write = Callable[[list[Metric], list[Param], list[RunTag]], None]


class Carried(threading.Thread):
    """Curves beside the training, parameters and tags at the end: what an attempt logs itself comes first, as MLflow keeps one
    value of a parameter. To do it again, in a later attempt, changes nothing.
    """

    def __init__(self, client: MlflowClient, tracked: Tracked, write: Write) -> None:
        """`write` is given at most `_BATCH` points at a time."""
        super().__init__(name="regrow-mlflow-carried", daemon=True)
        self._client, self._tracked, self._write = client, tracked, write
        self._sources: list[tuple[Run, int]] = []

    def finish(self, seconds: float) -> None:
        """The attempt ends. Waits so long for the curves, at most."""
        self.join(seconds)
        now = self._client.get_run(self._tracked.run_id).data
        params: dict[str, str] = {}
        tags: dict[str, str] = {}
        for before, _ in reversed(self._sources):  # the last one's are the ones that stood
            params |= before.data.params
            tags |= {key: value for key, value in before.data.tags.items() if not key.startswith(_OTHERS)}
        missing = [Param(*one) for one in params.items() if one[0] not in now.params]
        left = [RunTag(*one) for one in tags.items() if one[0] not in now.tags]
        for some_params, some_tags in itertools.zip_longest(_portions(missing), _portions(left), fillvalue=()):
            try:
                self._write([], list(some_params), list(some_tags))
            except Exception as error:  # noqa: BLE001 - the others are carried over
                _complain(error)

    def run(self) -> None:
        """See Thread."""
        for run_id, until in self._tracked.superseded:
            try:
                self._sources.append((self._client.get_run(run_id), until))
            except Exception as error:  # noqa: BLE001 - such a run may be gone for good
                _complain(error)
        try:
            points = list[Metric]()
            for point in self._points():
                points.append(point)
                if len(points) == _BATCH:
                    self._write(points, [], [])
                    points = []
            if points:
                self._write(points, [], [])
        except Exception as error:  # noqa: BLE001 - the trial goes on without
            _complain(error)

    def _points(self) -> Iterator[Metric]:
        for before, until in self._sources:
            for name in before.data.metrics:
                if name not in self._tracked.reported:
                    for point in self._client.get_metric_history(before.info.run_id, name):
                        if point.timestamp <= until:
                            yield Metric(point.key, point.value, point.timestamp, point.step)


def _portions(values: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (values[start : start + _PORTION] for start in range(0, len(values), _PORTION))


def _complain(error: Exception) -> None:
    first = shown(str(error)).strip().partition("\n")[0]
    _LOG.warning("what was logged to MLflow before the checkpoint stays in the superseded run: %s", first)
