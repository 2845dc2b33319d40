"""The module `wandb` for a program in a trial of a sweep file: its logs become reports. Nothing is
sent anywhere.

With REGROW_WANDB_PACKAGE=real it is replaced by W&B's package, which then reports here, too
(`regrow/integrations/wandb/real.py`).
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import types
import uuid
from pathlib import Path
from typing import Any

# For a program with another interpreter: it finds what is imported here, but no other package
# next to regrow.
sys.path.append(str(Path(__file__).parents[4]))
from regrow.integrations.wandb.artifacts import Artifact
from regrow.integrations.wandb.config import Config
from regrow.integrations.wandb.media import (
    Audio,
    Graph,
    Histogram,
    Html,
    Image,
    Molecule,
    Object3D,
    Plotly,
    Plots,
    Table,
    Video,
)
from regrow.integrations.wandb.messages import WAY_OUT, Error, print_once
from regrow.integrations.wandb.run import Run, swept

sys.path.pop()

__all__ = [
    "AlertLevel",
    "Artifact",
    "Audio",
    "CommError",
    "Error",
    "Graph",
    "Histogram",
    "Html",
    "Image",
    "Molecule",
    "Object3D",
    "Plotly",
    "Run",
    "Settings",
    "Table",
    "UsageError",
    "Video",
    "config",
    "finish",
    "init",
    "login",
    "plot",
    "setup",
    "teardown",
]
__path__: list[str] = []
"""It has no submodules; `_Absent` reports that."""
__version__ = "0.31.0+regrow"
"""The W&B release whose interface this is."""

config = Config(swept())
_begun: Run | None = None
"""The run of this process; `wandb.run` from `init` to `finish`, None otherwise."""
_process = 0
"""Id of the process in which it began."""
UsageError = CommError = Error
plot = Plots()
plot_table = plot.plot_table


class Settings:
    """Settings, none of which has an effect here."""

    def __init__(self, **_: Any) -> None:
        pass


class AlertLevel:
    """Severity of an alert."""

    INFO, WARN, ERROR = "INFO", "WARN", "ERROR"


def init(
    entity: Any = None,  # noqa: ARG001 - W&B's parameter
    project: Any = None,  # noqa: ARG001 - W&B's parameter
    dir: Any = None,  # noqa: A002, ARG001 - W&B's parameter
    id: Any = None,  # noqa: A002, ARG001 - W&B's parameter
    name: str | None = None,
    notes: Any = None,
    tags: Any = None,
    config: Any = None,
    **settings: Any,
) -> Run:
    """Return the run of this trial, with `config` as defaults below the sweep's values. Another
    call in the same process returns the same run.
    """
    global _begun, _process
    ours: Config = globals()["config"]
    ours.update(config or {})
    settings |= {"name": name, "notes": notes, "tags": tags}
    if _begun is None or _process != os.getpid():  # a forked child is another process of the trial
        _begun, _process = Run(ours, settings), os.getpid()
        atexit.register(_begun.finish)
        globals()["summary"] = _begun.summary
    elif _begun.over or settings.get("reinit") in (True, "finish_previous"):
        print_once(
            "init: a trial is one run; what is logged after the first one's end are further steps"
            " of it"
        )
        _begun.begin_again(settings)
    return _begun


def finish(*_: Any, **__: Any) -> None:
    """Report what is left, and end the run."""
    if _begun is not None:
        _begun.finish()


join = finish


def setup(*_: Any, **__: Any) -> None:
    """Do nothing: there is no service."""


teardown = require = ensure_configured = termsetup = setup


def login(*_: Any, **__: Any) -> bool:
    """Return True: there are no accounts here."""
    return True


def termlog(text: str = "", *_: Any, **__: Any) -> None:
    """Print a message to the trial's log."""
    print_once(text)


termwarn = termerror = termlog
_OF_RUN = (
    "log",
    "save",
    "restore",
    "define_metric",
    "watch",
    "unwatch",
    "alert",
    "log_artifact",
    "log_model",
    "log_code",
    "mark_preempting",
)
_ELSEWHERE = {
    "sweep": "`regrow run sweep.yaml` makes the sweep",
    "agent": "`regrow run sweep.yaml` starts the trials",
    "controller": "the sweep's method is regrow's",
    "Api": "nothing is asked of W&B",
    "use_artifact": "nothing is fetched from W&B",
    "use_model": "nothing is fetched from W&B",
}


def __getattr__(name: str) -> Any:
    """Return attributes of the run; for missing names, raise with the reason."""
    run = None if _begun is None or _begun.over else _begun
    if name == "run":
        return run
    if name in _OF_RUN:
        if run is None:
            raise Error(f"You must call wandb.init() before wandb.{name}()")
        return getattr(run, name)
    if name == "summary":
        raise Error("You must call wandb.init() before wandb.summary")
    if name.startswith("__"):
        raise AttributeError(name)
    why = _ELSEWHERE.get(name, "it is not in regrow's stand-in")
    raise AttributeError(f"wandb.{name}: {why}; {WAY_OUT}")


class RunDisabled:
    """A run that is off: there is none here, as frameworks find by its class."""


def _of_keras(name: str) -> Any:
    if name.startswith("Wandb"):
        return getattr(importlib.import_module("regrow.integrations.wandb.keras_callbacks"), name)
    raise AttributeError(name)


_SUBMODULES: dict[str, dict[str, Any]] = {
    "wandb.errors": dict.fromkeys(
        ("Error", "UsageError", "CommError", "AuthenticationError"), Error
    ),
    "wandb.util": {"generate_id": lambda length=8: uuid.uuid4().hex[:length]},
    "wandb.wandb_run": {"Run": Run},
    "wandb.sdk": {},
    "wandb.sdk.wandb_run": {"Run": Run},
    "wandb.sdk.lib": {"RunDisabled": RunDisabled},
    "wandb.sdk.lib.config_util": {"ConfigError": Error},
    "wandb.integration": {},
    "wandb.integration.keras": {"__getattr__": _of_keras},
    "wandb.keras": {"__getattr__": _of_keras},
}
"""What scripts, Lightning's logger, the Trainer of Hugging Face and Keras import by these names."""


def _modules() -> None:
    """Create the submodules, packages that have no others."""
    for name, members in _SUBMODULES.items():
        module = types.ModuleType(name)
        vars(module).update({"__path__": [], **members})
        sys.modules[name] = module
        outer, _, last = name.rpartition(".")
        setattr(sys.modules[outer], last, module)


class _Absent:
    """Last import finder, for submodules of this module (wandb.keras, wandb.sklearn)."""

    @staticmethod
    def find_spec(name: str, *_: Any) -> None:
        """Raise ModuleNotFoundError for those, and find no others."""
        if name.startswith("wandb."):
            raise ModuleNotFoundError(
                f"No module named {name!r} in regrow's stand-in for wandb; {WAY_OUT}", name=name
            )


if os.environ.get("REGROW_WANDB_PACKAGE") == "real":
    from regrow.integrations.wandb.real import make_way

    make_way()
else:
    sys.meta_path.append(_Absent)
    _modules()
