"""Addresses without secrets, for display."""

from __future__ import annotations

import re


def redacted(text: str) -> str:
    """Remove passwords from an address, or from addresses in a text, for messages and logs."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", text)
