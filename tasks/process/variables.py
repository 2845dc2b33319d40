"""Environment variables that are set temporarily."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def put(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Set variables of this process; return their values before (None if unset), for `put_back`."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    return before


def put_back(variables: Mapping[str, str | None]) -> None:
    """Set variables of this process, and remove those that are None."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def within(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables within the block."""
    before = put(variables)
    try:
        yield
    finally:
        put_back(before)
