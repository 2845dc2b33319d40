"""The simulations of an estimate, in processes of their own; the same whatever their number."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from regrow.infra.state.experiments import make_importable
from regrow.search.options import chosen
from regrow.search.planning.estimating import (
    EstimateInputs,
    Outcome,
    Scenario,
    ScenarioForecast,
    simulated,
    summary,
)

FEWEST, MOST = 12, 200
"""Simulations of a scenario, unless the user says how many."""
SECONDS = 70.0
"""Time of the processor that all simulations together may take, by the costs below."""
EVENT_SECONDS, MODEL_SECONDS = 1e-4, 6e-3
"""Cost of an event, and of a proposal by a sampler with a model (measured on one core)."""
_INLINE_SECONDS = 4.0
"""Seconds of simulation below which no other process is used."""


@dataclass(slots=True)
class Simulations:
    """Runs simulations of one estimate. `count`: of each scenario; None: what the time allows."""

    inputs: EstimateInputs
    count: int | None = None
    _pool: ProcessPoolExecutor | None = field(init=False, default=None)

    def forecasts(self, scenarios: Sequence[Scenario], *, more: int = 0) -> list[ScenarioForecast]:
        """Return the forecast of each scenario. `more`: scenarios that are still to come."""
        tasks = [
            (one, number) for one in scenarios for number in range(self._number(scenarios, more))
        ]
        found = list(self._run(tasks))
        each = len(found) // len(scenarios) if scenarios else 0
        return [
            summary(self.inputs, one, found[place * each : (place + 1) * each])
            for place, one in enumerate(scenarios)
        ]

    def _number(self, scenarios: Sequence[Scenario], more: int) -> int:
        """Return the simulations of each scenario: it follows from the log of the first one, so
        that the same command does the same.
        """
        if self.count is None and scenarios:
            seconds = _seconds(self.inputs, simulated(self.inputs, scenarios[0], 0))
            fitting = SECONDS / (seconds * (len(scenarios) + more))
            self.count = max(FEWEST, min(MOST, int(fitting)))
        return self.count or FEWEST

    def _run(self, tasks: Sequence[tuple[Scenario, int]]) -> Iterator[Outcome]:
        if not tasks:
            return
        first = simulated(self.inputs, *tasks[0])
        yield first
        rest = tasks[1:]
        if self._pool is None or len(rest) * _seconds(self.inputs, first) < _INLINE_SECONDS:
            for scenario, number in rest:
                yield simulated(self.inputs, scenario, number)
            return
        yield from self._pool.map(_simulated, rest, chunksize=max(1, len(rest) // 64))


@contextmanager
def running(inputs: EstimateInputs, count: int | None) -> Iterator[Simulations]:
    """Yield simulations whose processes end with the block."""
    found = Simulations(inputs, count)
    processes = min(8, os.cpu_count() or 1)
    with ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(inputs,),
    ) as pool:
        found._pool = pool  # noqa: SLF001 - its own
        try:
            yield found
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _seconds(inputs: EstimateInputs, outcome: Outcome) -> float:
    # samplers without a model
    model = chosen(inputs.spec.resolved.search) not in ("random", "grid", "qmc")
    return EVENT_SECONDS * outcome.events + (MODEL_SECONDS * outcome.trials if model else 0.0)


_inputs: list[EstimateInputs] = []
"""Of this process, if it is one of a pool."""


def _begin(inputs: EstimateInputs) -> None:
    """Begin a process of the pool: it ends with the command, which alone receives a Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    make_importable(inputs.spec)
    _inputs.append(inputs)


def _simulated(task: tuple[Scenario, int]) -> Outcome:
    return simulated(_inputs[-1], *task)
