"""What of Ray Tune is used that its documentation does not promise. In the canary test, with what breaks without it.

Ray is imported inside of functions: `ray.tune` takes a second and more.
"""

from __future__ import annotations

import importlib
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
    """Raises UserError where another minor release of Ray is installed, or Tune is not."""
    try:
        importlib.import_module("ray.tune")
    except ImportError as error:
        raise UserError(f"Ray Tune cannot be imported ({error}); pip install 'regrow[tune]'") from None
    found = version("ray")
    if found.split(".")[:2] != MINOR.split("."):
        way = f"pip install 'ray[tune]~={MINOR}.0'"
        raise UserError(f"Ray {found} is installed, and Ray Tune's scripts run here with Ray {MINOR}: {way}")


@contextmanager
def in_session(session: Any) -> Iterator[None]:
    """Within the block `tune.report` and `tune.get_checkpoint` of this process are those of `session`."""
    place: Any = importlib.import_module("ray.train._internal.session")
    name = "_session"
    before = getattr(place, name)
    setattr(place, name, session)
    try:
        yield
    finally:
        setattr(place, name, before)


def restored(checkpoint: Any, folder: Path | None) -> Any:
    """What `Trainable.restore` takes: a checkpoint, and the iteration and the time at which it was taken."""
    made: Any = importlib.import_module("ray.train._internal.session")._TrainingResult  # noqa: SLF001 - this module is for such
    beside = json.loads((folder / BESIDE).read_text()) if folder is not None else {}
    return made(checkpoint=checkpoint, metrics=beside)


def parts(stopper: Any) -> list[Any]:
    """The Stoppers of which one is combined; itself where it is not."""
    found = getattr(stopper, "_stoppers", None)
    return [stopper] if found is None else [inner for one in found for inner in parts(one)]


def timeout(stopper: Any) -> float:
    """The seconds of a TimeoutStopper."""
    return float(getattr(stopper, "_timeout_seconds"))  # noqa: B009 - by its name, which is private


RESOURCES = "_resources"
"""The attribute in which `tune.with_resources` leaves a function's."""


def asked_for(trainable: Any) -> Any:
    """What `tune.with_resources` was given for a function: bundles, or a function of a configuration; None for neither."""
    return getattr(trainable, RESOURCES, None)
