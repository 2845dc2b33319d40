"""Versions that must be equal on all machines of an experiment."""

from __future__ import annotations

import sys
from importlib import metadata


def versions() -> dict[str, str]:
    """Return the versions that must be equal on all machines: of Python, Ray and log writers."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {
        "Python": python,
        **{name: metadata.version(name) for name in ("ray", "regrow", "msgspec")},
    }
