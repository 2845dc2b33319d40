"""Bounds of what a log may hold. Standard library only, because programs that run under another
interpreter import it.
"""

from __future__ import annotations

MOST = 2**53
"""Largest count of steps or bytes. Up to it a float represents every integer, and so does any
reader of JSON.
"""
LAST_TIME = 32_503_680_000.0
"""The year 3000, seconds since the epoch. A later time cannot be displayed."""
