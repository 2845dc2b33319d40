"""`import regrow.tune as tune`: Ray Tune's names, with a Tuner, and a `run`, that are durable; all others are Ray's own.

What `regrow tune script.py` puts in the place of Ray's while it runs a script is here, too. Nothing of Tune's controller runs:
a Tuner is translated (`translation.py`), its trainable wrapped (`trainables.py`), and what comes back are views of the log.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
    theirs = import_module("ray.tune")
    import_module("regrow.tune.recorded").begin()
    return getattr(theirs, name)
