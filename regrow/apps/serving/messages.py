"""Messages between the supervisor and the answering processes: a line of JSON each, over a socket
that both hold.

The socket also shows each side that the other has ended. No I/O here.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from regrow.search.numbers import readable
from regrow.tasks.errors import RegrowError, UserCodeError, UserError

Role = Literal["main", "canary"]
TOKEN = "REGROW_SERVE_TOKEN"  # noqa: S105 - the variable's name
"""Variable with the token, set by the process that starts a server; each process removes it before
the user's code is imported.
"""
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Variable in which the Prometheus client looks for a folder that all processes share."""


class Chosen(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """A checkpoint to load.

    Attributes:
        metric: the objective's name.
        mode: min or max.
        value: the objective's value at the step.
        folder: folder with its files.
        config: configuration at the step, nested.
        since: when it was chosen, seconds since the epoch.
        experiment: its experiment, empty for the one that is served by its name.

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

    @property
    def text(self) -> str:
        """Its description for people."""
        return f"trial {self.trial}, step {self.step}, {self.metric} {readable(self.value)}"


class OnRay(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for Ray Serve.

    Attributes:
        host: address of its proxies.
        port: port of its proxies.
        least: minimum number of replicas; Ray chooses by load.
        most: maximum number of replicas.
        state: state root from which they restore checkpoints.
        version: replicas of the same version are given another checkpoint; others are restarted.

    """

    host: str
    port: int
    least: int
    most: int
    state: str
    version: str


class Setup(msgspec.Struct, frozen=True, kw_only=True, tag="setup"):
    """The first message to a process.

    Attributes:
        model: the user's class, FILE.py:CLASS relative to `code`.
        code: folder of the user's code.
        sockets: descriptors on which to answer; none: the process only tries `chosen` and ends.
        metrics: folder for the counters that all processes share.
        share: fraction of the requests that goes to the canary, 0 to 1.
        chosen: checkpoints to load before answering.
        sample: input for the warm-up if the class has no example, as JSON; None for none.
        ray: settings for Ray Serve; None: this process answers.
        gate: conditions for checkpoints, empty for none.
        beyond: whether it listens on more than the loopback.

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
    beyond: bool = False


class Switch(msgspec.Struct, frozen=True, kw_only=True, tag="switch"):
    """All processes have loaded the checkpoint: use it from now on, and answer `Loaded` again."""

    role: Role
    manifest: str


class Withdraw(msgspec.Struct, frozen=True, kw_only=True, tag="withdraw"):
    """Stop answering with the model in that role."""

    role: Role


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Request for what was answered so far (`SampleAnswered`)."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The process answers requests, or has tried what it had to try."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """The checkpoint is loaded and was tried."""

    manifest: str


class Wrong(msgspec.Struct, frozen=True, kw_only=True, tag="wrong"):
    """The user's class cannot be used at all, and the process ends: the reason in one line, and the
    traceback of the user's code, empty for none.
    """

    why: str
    trace: str = ""

    def error(self, begin: str = "") -> RegrowError:
        """Return it as an exception; `begin`: of its text."""
        why = f"{begin}{self.why}"
        return UserCodeError(why, self.trace) if self.trace else UserError(why)


class Refused(Wrong, frozen=True, kw_only=True, tag="refused"):
    """The checkpoint cannot be used, for a reason as in `Wrong`."""

    manifest: str


class SampleAnswered(msgspec.Struct, frozen=True, kw_only=True, tag="answered"):
    """What the process has answered.

    Attributes:
        sample: the last input, as JSON; None if there is none, or if it is large.
        counts: by role: how many requests its model has answered, and how many of these failed.

    """

    sample: str | None = None
    counts: dict[Role, tuple[int, int]] = {}


ChildCommand = Setup | Chosen | Switch | Withdraw | Ask
ChildMessage = Ready | Loaded | Refused | Wrong | SampleAnswered
COMMANDS: msgspec.json.Decoder[ChildCommand] = msgspec.json.Decoder(ChildCommand)
"""Decodes what the supervisor sends."""
MESSAGES: msgspec.json.Decoder[ChildMessage] = msgspec.json.Decoder(ChildMessage)
"""Decodes what an answering process sends."""
