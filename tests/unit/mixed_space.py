"""A space with parameters of every kind, and a function over it whose best is known: for samplers
with a model. No test lives here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from regrow.search.space import Space
from regrow.search.space.setting import Setting

MIXED = Space.parse(
    {
        "lr": {"loguniform": [1e-6, 1]},
        "layers": {"int": [1, 9]},
        "kind": {"choice": ["a", "b", "c", "d"]},
        "depth": {"int": [1, 8], "when": {"kind": ["a", "b"]}},
        "width": {"uniform": [0, 1]},
        "g": {"grid": [1, 2, 3]},
    }
)
LINE = Space.parse({"x": {"uniform": [0, 1]}})


def setting(space: Space = LINE, **changes: Any) -> Setting:
    return Setting(space=space, modes=("min",), **changes)


def loss(config: Mapping[str, Any]) -> float:
    """0 at lr 1e-3, 4 layers of kind "d", width 0.5."""
    return float(
        abs(math.log10(config["lr"]) + 3)
        + abs(config["layers"] - 4)
        + 3 * "dbca".index(config["kind"])
        + abs(config["width"] - 0.5)
        + abs(config.get("depth", 4) - 4)
    )
