"""A user's file that is imported in place of a library of its name: `six.py` beside a trainable."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from pathlib import Path


def hidden_module() -> str:
    """What to tell of the first that there is; empty for none. Slow, for when something went wrong."""
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or not file or name == "__main__":
            continue
        place = Path(file).parent if Path(file).name == "__init__.py" else Path(file)
        others = [entry for entry in sys.path if Path(entry).resolve() != place.parent.resolve()]
        found = importlib.machinery.PathFinder.find_spec(name, others)
        if found is not None and _of_a_library(found.origin) and not _of_a_library(file):
            return f"{place} is imported in place of the library {name!r}, which others need; give it another name"
    return ""


def _of_a_library(file: str | None) -> bool:
    return file is not None and not {Path(sys.prefix), Path(importlib.__file__).parents[1]}.isdisjoint(Path(file).parents)
