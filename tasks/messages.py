"""What an attempt and the coordinator say to each other, and the port over which they say it."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from regrow.search.events import Ended, Row, Saved


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What all attempts of an experiment share. Sent to each worker once.

    `code` is (store key, sha256) of a pickled trainable, None where `trainable` is an import path. `objective` is the
    metric's name. `every_steps` and `every_seconds` are the rhythm of checkpoints, None where not given.
    """

    experiment: str
    trainable: str
    objective: str
    max_steps: int | None
    every_steps: int | None
    every_seconds: float | None
    folder: str | None = None
    code: tuple[str, str] | None = None


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to run. (trial, attempt) is its lease; `config` is nested as the user wrote the space.

    `until` is the step of the first decision, None for none; `checkpoints` are manifests to restore, newest first.
    """

    trial: int
    attempt: int
    config: dict[str, Any]
    seed: int
    until: int | None
    checkpoints: tuple[str, ...] = ()


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt runs: where, from which step, in which Prefect task run, and why newer checkpoints were passed over."""

    node: str
    task_run: str
    restored: int = 0
    skipped: tuple[str, ...] = ()


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """News of an attempt since its last message; an empty one renews the lease.

    Sent again after a lost answer, it changes nothing. With `ended` it is the last message; `carry_on` then asks for
    another trial to run in the same place.
    """

    trial: int
    attempt: int
    began: Arrival | None = None
    rows: tuple[Row, ...] = ()
    saved: tuple[Saved, ...] = ()
    ended: Ended | None = None
    carry_on: bool = False


Reason = Literal["", "stopped", "paused", "fenced"]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a Progress: go on until the step `until` (None: to the end), or end for `reason`.

    `stopped`: a decision; `paused`: the experiment is being interrupted, a checkpoint now saves work; `fenced`: the lease
    is not held any more, nothing that the attempt does counts. `drop`: checkpoints to delete, `keep`: those that stay.
    """

    until: int | None = None
    reason: Reason = ""
    why: str = ""
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    next: Assignment | None = None


class Desk(Protocol):
    """Where an attempt reports: the coordinator, seen from a worker."""

    def tell(self, progress: Progress) -> Order:
        """Delivers news; returns once they are durable. Raises DeskGone when nobody answers any more."""
        ...


class DeskGone(Exception):
    """The coordinator does not answer and will not come back: the attempt ends, its work since the last news is lost."""
