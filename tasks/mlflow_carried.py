"""What the user's own calls logged before a trial was taken back to a checkpoint, carried over into the run that goes on.

The run of before keeps all of it, and is deleted in MLflow's sense. What the trial itself reports the recorder carries over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag

from regrow.tasks.addresses import shown
from regrow.tasks.mlflow_port import Tracked

_LOG = logging.getLogger("regrow.trial")
_BATCH = 1000
"""Points in a request, at most: MLflow's own limit."""
_OTHERS = ("mlflow.", "regrow.")
"""What the names of tags begin with that are not the user's."""

Write = Callable[[list[Metric], list[Param], list[RunTag]], None]


class Carried(threading.Thread):
    """Curves beside the training, parameters and tags at the end: what an attempt logs itself comes first, as MLflow keeps one
    value of a parameter. To do it again, in a later attempt, changes nothing.
    """

    def __init__(self, client: MlflowClient, tracked: Tracked, write: Write) -> None:
        """`write` is given at most `_BATCH` points at a time."""
        super().__init__(name="regrow-mlflow-carried", daemon=True)
        self._client, self._tracked, self._write = client, tracked, write
        self._sources: list[tuple[Run, int]] = [(client.get_run(run_id), until) for run_id, until in tracked.superseded]

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
        if missing or left:
            self._write([], missing, left)

    def run(self) -> None:
        """See Thread."""
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
            first = shown(str(error)).strip().partition("\n")[0]
            _LOG.warning("what was logged to MLflow before the checkpoint stays in the superseded run: %s", first)

    def _points(self) -> Iterator[Metric]:
        for before, until in self._sources:
            for name in before.data.metrics:
                if name not in self._tracked.reported:
                    for point in self._client.get_metric_history(before.info.run_id, name):
                        if point.timestamp <= until:
                            yield Metric(point.key, point.value, point.timestamp, point.step)
