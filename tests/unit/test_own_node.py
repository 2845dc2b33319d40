"""Turns of a machine's agents to start their nodes of Ray."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from regrow.infra.ray.own_node import turn


def test_as_many_nodes_as_cpus_start_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    asked = 0

    def enough() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    with ExitStack() as first, turn(unless=lambda: False) as second:
        assert first.enter_context(turn(unless=lambda: False))
        assert second
        with turn(unless=enough) as third:
            assert not third
        first.close()
        with turn(unless=lambda: False) as third:
            assert third
