"""What of Ray Tune is used that its documentation does not promise. In the canary test, with what breaks without it.

Ray is imported inside of functions: `ray.tune` takes a second and more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from regrow.tasks.errors import UserError
from regrow.tune.session import BESIDE

MINOR = "2.60"
"""The release of Ray whose names these are."""


def check_version() -> None:
    """Raises UserError where another minor release of Ray is installed."""
    found = version("ray")
    if found.split(".")[:2] != MINOR.split("."):
        way = f"pip install 'ray[tune]~={MINOR}.0'"
        raise UserError(f"Ray {found} is installed, and Ray Tune's scripts run here with Ray {MINOR}: {way}")


@contextmanager
def in_session(session: Any) -> Iterator[None]:
    """Within the block `tune.report` and `tune.get_checkpoint` of this process are those of `session`."""
    from ray.train._internal import session as place

    before, place._session = place._session, session
    try:
        yield
    finally:
        place._session = before


def restored(checkpoint: Any, folder: Path | None) -> Any:
    """What `Trainable.restore` takes: a checkpoint, and the iteration and the time at which it was taken."""
    from ray.train._internal.session import _TrainingResult

    beside = json.loads((folder / BESIDE).read_text()) if folder is not None else {}
    return _TrainingResult(checkpoint=checkpoint, metrics=beside)
