"""Bounds of what a log may hold. Standard library only: other interpreters import it."""

from __future__ import annotations

MOST = 2**53
"""Largest count of steps or bytes: up to it, floats and readers of JSON are exact."""
LARGEST = 2**63 - 1
"""Largest number that a user may write where something is counted: programs that have no word for
"no limit" write this one (`sys.maxsize`), and what is computed from a larger one fits no float.
"""
MOST_TOGETHER = 10_000
"""Most processes of a trial, machines of a group, and machines of a simulation: lists of more take
minutes and gigabytes, and a cloud would be asked for them.
"""
LONGEST = 3_155_760_000.0
"""Longest span that a user may write: 100 years, in seconds. Clocks and timers take no span that is
much longer, and a moment that far from today is before `LAST_TIME`.
"""
MOST_HOURS = 1e9
"""Most hours of a limit on how long something runs; as seconds they are below `MOST`."""
LAST_TIME = 32_503_680_000.0
"""The year 3000, seconds since the epoch. A later time cannot be displayed."""
