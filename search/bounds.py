"""Bounds of what a log may hold. Standard library only: other interpreters import it."""

from __future__ import annotations

MOST = 2**53
"""Largest count of steps or bytes: up to it, floats and readers of JSON are exact."""
LAST_TIME = 32_503_680_000.0
"""The year 3000, seconds since the epoch. A later time cannot be displayed."""
