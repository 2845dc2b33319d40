"""Writing through MLflow's public client: tracking servers, Databricks, plug-ins, other databases.

Three requests per short trial (create, batch, end), several trials at a time. Imports mlflow at the
top: import this module lazily, as `sink.py` does.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import requests
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType
from mlflow.exceptions import MlflowException

from regrow.infra.machine.outage import is_outage
from regrow.infra.mlflow.experiment import open_experiment
from regrow.infra.mlflow.updates import (
    CURSOR_TAG,
    EXPERIMENT_TAG,
    KEY_TAG,
    RUN_NAME_TAG,
    SUPERSEDED_TAG,
    RunUpdate,
    Target,
    cut_params,
    cut_tags,
    every_page,
    first_tags,
    legal_name,
    refusal,
    unavailable,
)


@dataclass(slots=True)
class _Known:
    run_id: str
    status: str
    deleted: bool
    params: set[str] = field(default_factory=set)
    """Names of its parameters. MLflow refuses other values, and a session's settings may differ."""


class PublicWriter:
    """Writes each run's update with as few public calls as possible, the cursor last."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._runs: dict[str, _Known] = {}
        with self._errors():
            self._client = MlflowClient(target.tracking_uri)
            self.mlflow_experiment_id: str = open_experiment(self._client, target).experiment_id
        # Over a link with 50 ms per round trip, a short trial took 332 ms with one thread, 122 with
        # 4, 106 with 8.
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="mlflow")

    def load(self) -> int | None:
        """See `MlflowSink.load`.

        A request that created a run may have been repeated because its answer got lost, so one key
        may have two runs. The one with data is kept, the other is soft-deleted.
        """
        found: dict[str, list[Run]] = defaultdict(list)
        with self._errors():
            for run in self._ours():
                found[run.data.tags[KEY_TAG]].append(run)
            kept = {key: max(runs, key=_amount) for key, runs in found.items()}
            for key, runs in found.items():
                for run in runs:
                    if run is not kept[key] and run.info.lifecycle_stage == "active":
                        self._client.set_tag(run.info.run_id, SUPERSEDED_TAG, "true")
                        self._client.delete_run(run.info.run_id)
        self._runs = {
            key: _Known(
                run_id=run.info.run_id,
                status=run.info.status,
                deleted=run.info.lifecycle_stage != "active",
                params=set(run.data.params),
            )
            for key, run in kept.items()
        }
        cursor = kept["experiment"].data.tags.get(CURSOR_TAG) if "experiment" in kept else None
        return None if cursor is None else int(cursor)

    def write(self, updates: Sequence[RunUpdate], cursor: int) -> None:
        """See `MlflowSink.write`."""
        by_run: dict[str, list[RunUpdate]] = defaultdict(list)
        for update in updates:
            by_run[update.key].append(update)
        parent_updates = by_run.pop("experiment", [])
        with self._errors():
            if "experiment" not in self._runs:
                if not parent_updates:
                    raise ValueError(
                        "the first write must contain the update whose key is 'experiment'"
                    )
                self._create(parent_updates[0])
            # list(): the first failure is raised after all threads have finished.
            list(self._pool.map(self._write_run, by_run.values()))
            self._write_run(parent_updates)
            parent = self._runs["experiment"]
            with self._while_active(parent):
                self._client.set_tag(parent.run_id, CURSOR_TAG, str(cursor))

    def run_id(self, key: str) -> str | None:
        """See `MlflowSink.run_id`."""
        known = self._runs.get(key)
        return known.run_id if known is not None else None

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _ours(self) -> Iterator[Run]:
        ours = f"tags.`{EXPERIMENT_TAG}` = '{self._target.experiment_id}'"
        found = every_page(
            self._client.search_runs,
            [self.mlflow_experiment_id],
            ours,
            ViewType.ALL,
            max_results=1000,
        )
        return (run for run in found if KEY_TAG in run.data.tags)

    def _write_run(self, updates: Sequence[RunUpdate]) -> None:
        for update in updates:
            tags = cut_tags(update) if update.key in self._runs else {}
            known = self._runs.get(update.key) or self._create(update)
            if known.deleted and update.deleted:  # deletion comes last, so everything was written
                continue
            with self._while_active(known):
                self._write_data(known, update, tags)
            if update.deleted:
                self._client.delete_run(known.run_id)
                known.deleted = True

    def _create(self, update: RunUpdate) -> _Known:
        parent = None if update.parent else self._runs["experiment"].run_id
        tags = first_tags(update, self._target, parent)
        run = self._client.create_run(
            self.mlflow_experiment_id, update.start_ms, tags, run_name=tags[RUN_NAME_TAG]
        )
        known = self._runs[update.key] = _Known(run.info.run_id, "RUNNING", deleted=False)
        return known

    def _write_data(self, known: _Known, update: RunUpdate, tags: dict[str, str]) -> None:
        points = iter(update.metrics)
        values = cut_params(update)
        params = [Param(*one) for one in values.items() if one[0] not in known.params]
        marks = [RunTag(key, value) for key, value in tags.items()]
        first = True
        while (part := list(islice(points, 10_000))) or first:  # the client sends 1,000 per request
            metrics = [
                Metric(legal_name(key), value, at_ms, step) for key, value, step, at_ms in part
            ]
            self._client.log_batch(
                known.run_id, metrics, params if first else [], marks if first else []
            )
            first = False
        known.params |= values.keys()
        if update.status is None or update.status == known.status:
            return
        if update.status == "RUNNING" or update.end_ms is None:
            self._client.update_run(known.run_id, status=update.status)
        else:
            self._client.set_terminated(known.run_id, update.status, update.end_ms)
        known.status = update.status

    @contextmanager
    def _while_active(self, known: _Known) -> Iterator[None]:
        # MLflow refuses to write to a deleted run. A run that a user deleted in the UI is still
        # recorded, and stays deleted.
        if known.deleted:
            self._client.restore_run(known.run_id)
        yield
        if known.deleted:
            self._client.delete_run(known.run_id)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except MlflowException as error:
            # Connection failures arrive as INTERNAL_ERROR, which counts as 500.
            status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]  # mlflow's
            if is_outage(status):
                raise unavailable(self._target, error) from error
            raise refusal(self._target, error) from error
        except (OSError, requests.RequestException) as error:
            raise unavailable(self._target, error) from error


def _amount(run: Run) -> tuple[bool, int, str]:
    return (
        run.info.lifecycle_stage == "active",
        len(run.data.params) + len(run.data.metrics),
        run.info.run_id,
    )
