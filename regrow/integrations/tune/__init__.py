"""`import regrow.tune as tune`: Ray Tune's names, with a durable Tuner and `run`; all others are
Ray's.

Searchers and schedulers from `regrow.tune.search` and `regrow.tune.schedulers` record their
arguments (`recorded.py`). Ray's own names are replaced only while `regrow tune script.py` runs a
script. Tune's controller never runs: a Tuner is translated (`translation.py`), its trainable
wrapped (`trainables.py`), and the results are views of the log.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from regrow.integrations.tune.recorded import install, recorded
from regrow.integrations.tune.unsupported import refuse

_OURS = {
    "Tuner": "tuner",
    "run": "tuner",
    "register_trainable": "tuner",
    "with_parameters": "tuner",
    "ResultGrid": "results",
    "Result": "results",
    "ExperimentAnalysis": "analysis",
}


def __getattr__(name: str) -> Any:
    """Return our version of a name, else Ray Tune's (PEP 562)."""
    if name in _OURS:
        return getattr(import_module(f"regrow.integrations.tune.{_OURS[name]}"), name)
    if name.startswith("_"):
        raise AttributeError(name)
    refuse(f"ray.tune.{name}")
    if (recording := sys.modules.get(f"regrow.tune.{name}")) is not None:
        return recording
    return recorded(getattr(import_module("ray.tune"), name))


install()
