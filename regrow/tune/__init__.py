"""`import regrow.tune as tune`: Ray Tune's names, with a Tuner, and a `run`, that are durable; all others are Ray's own.

What `regrow tune script.py` puts in the place of Ray's while it runs a script is here, too. Nothing of Tune's controller runs:
a Tuner is translated (`translation.py`), its trainable wrapped (`trainables.py`), and what comes back are views of the log.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import ray

from regrow.tune.recorded import begin

_OURS = {
    "Tuner": "tuner", "run": "tuner", "register_trainable": "tuner", "with_parameters": "tuner", "ResultGrid": "results",
    "Result": "results", "ExperimentAnalysis": "analysis",
}


def __getattr__(name: str) -> Any:
    """A name of ours, else Ray Tune's (PEP 562)."""
    if name in _OURS:
        return getattr(import_module(f"regrow.tune.{_OURS[name]}"), name)
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(import_module("ray.tune"), name)


if not ray.is_initialized():  # in a script; a trial, which is a process of Ray's, has no use for it, nor for what it imports
    begin()
