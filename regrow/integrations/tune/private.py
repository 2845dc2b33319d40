"""Private names of Ray Tune that we use. They are in the canary test, with what breaks without
them.

Ray is imported inside of functions: importing `ray.tune` takes more than a second.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from regrow.integrations.tune.session import BESIDE
from regrow.tasks.errors import UserError

MINOR = "2.60"
"""The release of Ray that has these names."""


def check_version() -> None:
    """Raise UserError if another minor release of Ray is installed, or Tune is not."""
    try:
        importlib.import_module("ray.tune")
    except ImportError as error:
        raise UserError(
            f"Ray Tune cannot be imported ({error}); pip install 'regrow[tune]'"
        ) from None
    found = version("ray")
    if found.split(".")[:2] != MINOR.split("."):
        way = f"pip install 'ray[tune]~={MINOR}.0'"
        raise UserError(
            f"Ray {found} is installed, and Ray Tune's scripts run here with Ray {MINOR}: {way}"
        )


@contextmanager
def in_session(session: Any) -> Iterator[None]:
    """Within the block, `tune.report` and `tune.get_checkpoint` of this process use `session`."""
    place: Any = importlib.import_module("ray.train._internal.session")
    name = "_session"
    before = getattr(place, name)
    setattr(place, name, session)
    try:
        yield
    finally:
        setattr(place, name, before)


def restored(checkpoint: Any, folder: Path | None) -> Any:
    """Return the argument of `Trainable.restore`: a checkpoint, with its iteration and time."""
    made: Any = importlib.import_module("ray.train._internal.session")._TrainingResult  # noqa: SLF001 - the purpose of this module
    beside = json.loads((folder / BESIDE).read_text()) if folder is not None else {}
    return made(checkpoint=checkpoint, metrics=beside)


TRIAL_INDEX = "__trial_index__"
"""Key of a configuration in which a Repeater tells the place among trials of the same."""
TRIAL_INFO = "__trial_info__"
"""Key of a configuration from which a class trainable takes what it knows of its trial."""


def in_folder(cls: Any, folder: str) -> Any:
    """Return the class trainable with `folder` as its logdir; else each object makes one below the
    user's home, which nobody deletes.
    """

    def place(self: Any) -> None:
        self._logdir = folder

    return type(cls)(cls.__name__, (cls,), {"_setup_logdir": place, "__module__": cls.__module__})


def tune_run() -> Any:
    """Return Ray's own `tune.run`, also while a script finds ours under that name."""
    return importlib.import_module("ray.tune.impl.tuner_internal").run


def default_storage() -> Path:
    """Return the folder in which Tune keeps experiments of scripts that name none."""
    place: Any = importlib.import_module("ray.train.constants")
    return Path(place.DEFAULT_STORAGE_PATH)


def tells_index(repeater: Any) -> bool:
    """Return whether a Repeater writes TRIAL_INDEX into the configurations."""
    return bool(getattr(repeater, "_set_index"))  # noqa: B009 - by its name, which is private


def parts(stopper: Any) -> list[Any]:
    """Return the Stoppers of a combined one; else the Stopper itself."""
    found = getattr(stopper, "_stoppers", None)
    return [stopper] if found is None else [inner for one in found for inner in parts(one)]


def timeout(stopper: Any) -> float:
    """Return the seconds of a TimeoutStopper."""
    return float(getattr(stopper, "_timeout_seconds"))  # noqa: B009 - by its name, which is private


RESOURCES = "_resources"
"""Attribute in which `tune.with_resources` stores a function's resources."""


def asked_for(trainable: Any) -> Any:
    """Return what `tune.with_resources` was given: bundles, or a function; None for neither."""
    return getattr(trainable, RESOURCES, None)
