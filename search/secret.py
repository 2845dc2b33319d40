"""Detects what is likely to be a secret, whose value must be neither shown nor stored."""

from __future__ import annotations

import re

_NAMES = re.compile(
    r"(?:^|[_.-])(?:api)?(?:key|token|pass|pat)(?:$|[_.-])|passw|secret|credential", re.IGNORECASE
)
"""Matches whole words, so that TOKENIZERS_PARALLELISM does not match."""
_VALUES = re.compile(
    r"://[^/@\s]*:[^/@\s]+@|^(?:sk-|ghp_|github_pat_|glpat-|hf_|xox[bp]-|AKIA)\w{8}"
)
"""An address with a password in it, or the beginning of a token of a well-known service."""


def is_secret(name: str) -> bool:
    """Return whether a variable or key of this name is likely to hold a secret."""
    return _NAMES.search(name) is not None


def holds_secret(value: str) -> bool:
    """Return whether a value looks like a secret, whatever its name."""
    return _VALUES.search(value) is not None
