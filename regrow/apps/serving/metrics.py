"""Prometheus metrics of a server: by trial, summed over all answering processes.

If the variable PROMETHEUS_MULTIPROC_DIR is set before this module is imported, each process counts
in files of that folder: any process can then report the sum, and the counts of a killed process are
kept.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from regrow.apps.serving.messages import METRICS_FOLDER

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RESERVED_BYTES = 256 * 1024
"""Reserved for each file of a process: the counts of about 60 trials."""
INPUTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Counted(Protocol):
    """Counters of answers."""

    content_type: str

    def answered(self, trial: str, status: int, seconds: float) -> None:
        """Count an answered request."""

    def batch(self, trial: str, inputs: int) -> None:
        """Count a call of the model."""

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""


class Metrics:
    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own = self._registry
        self._requests = Counter(
            "regrow_serve_requests",
            "Requests to /predict, by the trial that answered (empty: none did) and the status.",
            ("trial", "status"),
            registry=own,
        )
        self._errors = Counter(
            "regrow_serve_errors", "Those with a status of 500 or more.", ("trial",), registry=own
        )
        self._seconds = Histogram(
            "regrow_serve_seconds",
            "From a request to its answer.",
            ("trial",),
            buckets=SECONDS,
            registry=own,
        )
        self._batches = Histogram(
            "regrow_serve_batch_inputs",
            "Inputs of a call of predict.",
            ("trial",),
            buckets=INPUTS,
            registry=own,
        )

    def reserve(self) -> None:
        """Reserve the space of this process's files: a write to a mapped file on a full disk ends
        the process (SIGBUS). Without space, or without the folder, it counts for itself alone.
        """
        if not (folder := os.environ.get(METRICS_FOLDER)):
            return
        files = [Path(folder, f"{kind}_{os.getpid()}.db") for kind in ("counter", "histogram")]
        try:
            for file in files:
                with file.open("wb") as made:
                    os.posix_fallocate(made.fileno(), 0, RESERVED_BYTES)
        except OSError:
            for file in files:
                file.unlink(missing_ok=True)
            del os.environ[METRICS_FOLDER]
            values.ValueClass = values.MutexValue

    def answered(self, trial: str, status: int, seconds: float) -> None:
        self._requests.labels(trial, str(status)).inc()
        self._seconds.labels(trial).observe(seconds)
        if status >= 500:
            self._errors.labels(trial).inc()

    def batch(self, trial: str, inputs: int) -> None:
        self._batches.labels(trial).observe(inputs)

    def text(self) -> bytes:
        """Return the metrics of all processes in Prometheus' text format."""
        if folder := os.environ.get(METRICS_FOLDER):
            gathered = CollectorRegistry()
            MultiProcessCollector(gathered, path=folder)  # type: ignore[no-untyped-call]  # the library is untyped here
            return generate_latest(gathered)
        return generate_latest(self._registry)
