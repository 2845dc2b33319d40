"""What a station serves from an experiment. Only the form is checked here; files, hosts and ports
are checked where it is served.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from regrow.search.errors import SpecError
from regrow.search.rollout import Canary, Gate
from regrow.search.spec.parts import IMPORT_PATH, Count, Part

MOST_REPLICAS = 256
"""Most processes that answer requests."""

Text = Annotated[str, Field(min_length=1)]


class Serve(Part):
    """What a station (`regrow up`) serves: the best of the experiment, or of a schedule's newest
    one, and how.
    """

    model: Text | None = None
    """The class that answers requests, `serve.py:Digits`, relative to the YAML file. None: models
    that trials logged to MLflow.
    """
    gate: Text | None = None
    """Serve only checkpoints whose metrics meet it: `accuracy > 0.98 and latency <= 10`. None:
    any.
    """
    canary: Text | None = None
    """A better checkpoint first gets this share of the requests, `10% for 5min` (10 min if no span
    is given), and takes over unless it fails more of them than the others do. None: it takes over
    at once.
    """
    replicas: Annotated[Count, Field(ge=1, le=MOST_REPLICAS)] = 1
    """Processes that answer requests."""
    host: Text | None = None
    """Listen there as well, with a token: a name or address of the station's machine, or 0.0.0.0.
    None: loopback only.
    """
    port: Annotated[Count, Field(ge=1, le=65535)] | None = None
    """The port. None: a free one, which does not change afterwards."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.model is not None and not IMPORT_PATH.fullmatch(self.model):
            raise SpecError(
                "serve.model",
                self.model,
                "names no class",
                "write FILE.py:CLASS, such as serve.py:Digits",
            )
        _ = self.gates, self.share
        return self

    @property
    def gates(self) -> Gate | None:
        """The parsed gate."""
        return None if self.gate is None else Gate.parse(self.gate, "serve.gate")

    @property
    def share(self) -> Canary | None:
        """The parsed canary."""
        return None if self.canary is None else Canary.parse(self.canary, "serve.canary")

    def to_json(self) -> dict[str, object]:
        """Return plain data that makes an equal one."""
        return self.model_dump(mode="json", exclude_defaults=True)
