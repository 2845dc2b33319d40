"""What attempts used of their machines, in words, and what follows from it. Pure functions of the
history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from regrow.search.history import Attempt, History, TrialRecord
from regrow.search.measured import Usage
from regrow.search.spec.parts import Resources
from regrow.tasks.process.disk import size
from regrow.tasks.trial.usage_meter import SHORTEST_SECONDS

LEAST_SECONDS = 10.0
"""An attempt shorter than this mostly shows how it starts: no advice comes from it."""
WAITS, FULL = 0.3, 0.85
"""Shares from which on waiting for a disk, and memory in use, are worth a sentence."""
GPU_ROOM = 0.9
"""Share of a GPU that trials may fill together, of its time and of its memory."""
MOST_ON_A_GPU = 8
BUSY = 1.5
"""How many times the CPUs that a trial asked for are too many."""
_SLACK, _ROUNDING = 0.05, 1e-9


class _Measured(NamedTuple):
    trial: int
    used: Usage
    slots: int
    """How many slots of resources it was measured on."""


def of_attempt(attempt: Attempt) -> str:
    """Return what an attempt used, or why that is not known."""
    if attempt.usage is not None:
        measured = in_words(attempt.usage)
        if attempt.usage.workers < attempt.width and attempt.others:
            return f"{measured} (of {attempt.usage.workers} of its {attempt.width} workers)"
        return measured
    if attempt.outcome is None:
        return "measured when it ends"
    if attempt.outcome == "lost":
        return "not measured: the attempt was killed"
    if attempt.seconds is not None and attempt.seconds < 2 * SHORTEST_SECONDS:
        return "not measured: it was too short"
    return "not measured"


def in_words(used: Usage) -> str:
    """Return what was used in a line."""
    disk = f"disk: read {size(used.read)}, wrote {size(used.written)}"
    if used.disk_wait:
        disk += f", waited for {used.disk_wait:.0%} of the time"
    found = [
        f"{used.cpus:.2f} CPUs (at most {max(used.cpus, used.most_cpus):.2f})",
        f"memory {size(used.memory)} (at most {size(used.most_memory)})",
        disk,
    ]
    if used.gpu is not None:
        memory = _of(used.most_gpu_memory, used.gpu_memory)
        found.append(f"GPU {used.gpu:.0%} (at most {used.most_gpu or used.gpu:.0%})")
        found.append(f"GPU memory at most {memory}")
    return "; ".join(found)


def overall(history: History) -> tuple[str, str] | None:
    """Return the mean CPUs of an attempt, and the rest in a line; None if nothing was measured."""
    found = list(_measured(history.trials))
    if not found:
        return None
    more = [f"a trial; memory at most {size(max(one.used.most_memory for one in found))}"]
    if gpu := [one for one in found if one.used.gpu is not None]:
        more.append(f"GPU {_mean(gpu, lambda one: one.used.gpu or 0.0):.0%}")
    return f"{_mean(found, lambda one: one.used.cpus):.2f} CPUs", "; ".join(more)


def sentences(history: History, trials: Sequence[TrialRecord] | None = None) -> Iterator[str]:
    """Yield what to change about the machine's use, a line each; nothing if all is well.

    `trials`: those looked at; None: all.
    """
    every = _measured(history.trials if trials is None else trials)
    found = [one for one in every if one.used.seconds >= LEAST_SECONDS]
    if not found:
        return
    asked = history.spec.resources
    waited = _mean(found, lambda one: one.used.disk_wait)
    if waited >= WAITS:
        yield (
            f"trials waited for the disk {waited:.0%} of the time: read ahead in other processes,"
            " or keep the data on a faster disk"
        )
    yield from _gpu(asked, [one for one in found if one.used.gpu is not None])
    # What Ray actors of a trial use is not measured: nothing is known of all that it asked for.
    if asked.children is None and history.spec.rllib is None:
        yield from _cpu(asked, found)
    yield from _memory(asked, found)


def _gpu(asked: Resources, found: Sequence[_Measured]) -> Iterator[str]:
    if not found or asked.gpu == "auto" or asked.gpu <= 0:
        return
    busy = _mean(found, lambda one: one.used.gpu or 0.0)
    if asked.gpu > 1:
        if busy < 1 / asked.gpu:
            yield f"GPUs {busy:.0%} used: fewer for each trial may do: resources: {{gpu: 1}}"
        return
    now = math.floor(1 / asked.gpu + _ROUNDING)
    # The device is measured with all trials on it, of which there may be fewer at the end.
    full = max(one.used.most_gpu_memory / max(1, one.used.gpu_memory) for one in found)
    fit = min(MOST_ON_A_GPU, math.floor(now * GPU_ROOM / max(busy, full, _ROUNDING) + _ROUNDING))
    if fit > now:
        share = math.floor(100 / fit) / 100
        yield f"GPU {busy:.0%} used: pack {fit} a GPU: resources: {{gpu: {share:g}}}"


def _cpu(asked: Resources, found: Sequence[_Measured]) -> Iterator[str]:
    mean = _mean(found, lambda one: one.used.cpus / one.slots)
    most = max(max(one.used.most_cpus, one.used.cpus) / one.slots for one in found)
    enough = max(1, math.ceil(most - _SLACK))
    if asked.cpu and mean > BUSY * asked.cpu:
        yield (
            f"trials used {mean:.2g} CPUs and asked for {asked.cpu:g}: resources: {{cpu:"
            f" {math.ceil(mean - _SLACK)}}}, or fewer threads"
        )
    elif enough < asked.cpu:
        yield (
            f"trials used {mean:.2g} of their {asked.cpu:g} CPUs, at most {most:.2g}: more run at a"
            f" time with resources: {{cpu: {enough}}}"
        )


def _memory(asked: Resources, found: Sequence[_Measured]) -> Iterator[str]:
    shares = []
    for number, used, slots in found:
        limit = asked.memory * slots or (used.memory_limit if used.workers == 1 else 0)
        # Processes that share memory may seem to have more than there is.
        if limit and (used.most_memory <= limit or used.processes == used.workers):
            shares.append((used.most_memory / limit, used.most_memory, limit, number))
    share, most, limit, number = max(shares, default=(0.0, 0, 0, 0))
    if share >= FULL:
        yield f"peak memory {_of(most, limit)} (trial {number})"


def _of(part: int, whole: int) -> str:
    """Format as '11 of 12 GB'."""
    own, all_ = size(part), size(whole)
    number, _, unit = own.partition(" ")
    return f"{number} of {all_}" if all_.endswith(f" {unit}") else f"{own} of {all_}"


def _measured(trials: Iterable[TrialRecord]) -> Iterator[_Measured]:
    for trial in trials:
        for attempt in trial.attempts:
            if (used := attempt.usage) is not None:
                # Of a group, the workers that were measured; else one process has all slots.
                slots = used.workers if attempt.others else attempt.width
                yield _Measured(trial.number, used, slots)


def _mean(found: Sequence[_Measured], of: Callable[[_Measured], float]) -> float:
    """Return the mean of a quantity over time."""
    return sum(of(one) * one.used.seconds for one in found) / sum(one.used.seconds for one in found)
