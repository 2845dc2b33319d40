"""Detects a user's file that hides a library of its name, such as `six.py` by a trainable."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import traceback
from contextlib import suppress
from pathlib import Path


def hidden_module(error: BaseException) -> str:
    """Return a message about such a file if it caused the error, else "". Raises nothing."""
    with suppress(Exception):  # entries of sys.modules may be anything
        seen = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
        for name, module in sorted(sys.modules.items()):
            file = module.__dict__.get("__file__")
            if "." in name or not file or _of_a_library(file):
                continue
            lacks = isinstance(error, AttributeError) and error.obj is module
            lacks |= isinstance(error, ImportError) and (error.name or "").partition(".")[0] == name
            if (lacks or file in seen) and _is_a_library(name, Path(file)):
                return (
                    f"{file} is imported in place of the library {name!r}, which others need; give"
                    " it another name"
                )
    return ""


def _is_a_library(name: str, file: Path) -> bool:
    """Return whether there is a library of this name elsewhere."""
    folder = (file.parent if file.name == "__init__.py" else file).parent.resolve()
    found = importlib.machinery.PathFinder.find_spec(
        name, [entry for entry in sys.path if Path(entry).resolve() != folder]
    )
    return found is not None and found.origin is not None and _of_a_library(found.origin)


def _of_a_library(file: str) -> bool:
    places = {Path(sys.prefix), Path(importlib.__file__).parents[1]}
    return not places.isdisjoint(Path(file).parents) or not {
        "site-packages",
        "dist-packages",
    }.isdisjoint(Path(file).parts)
