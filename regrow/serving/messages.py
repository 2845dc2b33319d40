"""What the supervisor and the processes that answer say to each other: a line of JSON each, over a socket that both hold.

The socket is also how each hears of the other's end. No I/O here.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Role = Literal["main", "canary"]
TOKEN = "REGROW_SERVE_TOKEN"  # noqa: S105 - the variable's name
"""In which variable whoever starts a server gives the token; each process takes it out before the user's code is imported."""
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""In which variable the library that counts looks for a folder that all processes share."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """A checkpoint to load: `folder` holds its files. `since`: when it was chosen, seconds since the epoch.

    `experiment`: whose checkpoint it is, empty for the one that is served by its name. `metric` is the objective's name,
    `value` what it was at the step, `mode` min or max.
    """

    role: Role
    trial: int
    step: int
    metric: str
    mode: str
    value: float
    manifest: str
    folder: str
    config: dict[str, Any]
    since: float
    experiment: str = ""


class OnRay(msgspec.Struct, frozen=True, kw_only=True):
    """How Ray Serve is to answer.

    `host` and `port` of its proxies. `least` and `most` replicas: Ray chooses between them by load. `state` is the root from
    which they restore checkpoints. Replicas of the same `version` are given another checkpoint; others are started anew.
    """

    host: str
    port: int
    least: int
    most: int
    state: str
    version: str


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """The first thing that a process hears.

    `model` is the user's class, FILE.py:CLASS relative to `code`. `sockets`: descriptors on which to answer; none: the
    process only tries `chosen` and ends. `share`: the part of the requests that goes to the canary, 0 to 1. `sample`: an
    input for the warm-up where the class has no example, as JSON; None for none. `ray`: Ray Serve is to answer; None: this
    process. `gate`: what checkpoints have to meet, empty for nothing.
    """

    experiment: str
    model: str
    code: str
    sockets: list[int] = []
    metrics: str = ""
    share: float = 0.0
    chosen: list[Chosen] = []
    sample: str | None = None
    ray: OnRay | None = None
    gate: str = ""


class Switch(msgspec.Struct, frozen=True, kw_only=True, tag="switch"):
    """Every process has loaded the checkpoint: it answers from now on, which is said by `Loaded` once more."""

    role: Role
    manifest: str


class Withdraw(msgspec.Struct, frozen=True, kw_only=True, tag="withdraw"):
    """The model in that role answers nobody from now on."""

    role: Role


class Poll(msgspec.Struct, frozen=True, kw_only=True, tag="poll"):
    """It is to say how its models do."""


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """It is to say which input came last."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """It answers requests, or has tried what it was to try."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The checkpoint is loaded and was tried."""

    manifest: str


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """It cannot be used: why, in one line, and the traceback of the user's code, empty for none."""

    manifest: str
    why: str
    trace: str = ""


class Wrong(msgspec.Struct, frozen=True, kw_only=True, tag="wrong"):
    """The user's class cannot be used at all, and the process ends: why, and the traceback of the user's module."""

    why: str
    trace: str = ""


class Sample(msgspec.Struct, frozen=True, kw_only=True, tag="sample"):
    """The last valid input, as JSON; None where none came, or where it is a large one."""

    text: str | None


class Counts(msgspec.Struct, frozen=True, kw_only=True, tag="counts"):
    """By role: how many requests its model has answered, and how many of these it failed."""

    of: dict[Role, tuple[int, int]]


Order = Setup | Chosen | Switch | Withdraw | Poll | Ask
Word = Ready | Loaded | Refused | Wrong | Sample | Counts
_encoder = msgspec.json.Encoder()
_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_words: msgspec.json.Decoder[Word] = msgspec.json.Decoder(Word)


def line(message: Order | Word) -> bytes:
    """The message as a line."""
    return _encoder.encode(message) + b"\n"


def order(text: bytes) -> Order:
    """What the supervisor said."""
    return _orders.decode(text)


def word(text: bytes) -> Word:
    """What a process that answers said."""
    return _words.decode(text)
