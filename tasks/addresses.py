"""Addresses as they may be shown."""

from __future__ import annotations

import re


def redacted(text: str) -> str:
    """An address, or a text with some in it, without passwords: for messages and logs."""
    return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:***@", text)
