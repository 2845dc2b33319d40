"""Whether less or more of a metric is better, and the sign that follows from it."""

from __future__ import annotations

from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["min", "max"]
"""Whether less or more is better."""


def sign_of(mode: Mode) -> float:
    """Return the factor that makes a metric a cost, of which less is better."""
    return -1.0 if mode == "max" else 1.0
