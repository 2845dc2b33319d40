"""Environment variables that are set for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def put(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Sets variables of this process; returns what `put_back` takes: their values before, None where there was none."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    return before


def put_back(variables: Mapping[str, str | None]) -> None:
    """Sets variables of this process, and removes those that are None."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def within(variables: Mapping[str, str]) -> Iterator[None]:
    """Has these variables set within the block."""
    before = put(variables)
    try:
        yield
    finally:
        put_back(before)
