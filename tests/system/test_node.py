"""The supervisor of a cluster's machine, with a real Ray under it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from regrow.infra.clusters.node import MARK, Node
from regrow.infra.machine.processes import marked
from tests.system.hosts import await_


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    node = Node(f"t{os.getpid()}")
    node.folder.mkdir(parents=True)
    (node.folder / "token").write_text("x" * 64)
    (node.folder / "environment").write_text("")
    yield node
    node.stop()
    assert node.left() == []


def test_a_machine_that_ray_has_drained_ends(here: Node, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    # Short, as Ray's sockets lie below it. A head of its own: what is looked at is the machine, not
    # what it joins.
    own = [
        "--head",
        "--port=0",
        "--num-cpus=1",
        "--include-dashboard=false",
        f"--temp-dir=/tmp/r{os.getpid()}",
    ]
    start = ["start", "worker", "--then", f"touch {ended}", "--", *own]
    subprocess.run(
        [sys.executable, "-m", "regrow.infra.clusters.node", here.name, *start],
        check=True,
        timeout=120,
    )
    raylets = [
        process
        for process in map(psutil.Process, marked(f"{MARK}={here.name}"))
        if process.name() == "raylet"
    ]
    assert len(raylets) == 1
    assert here.running() is not None
    # it drains and ends with 0, as when the autoscaler has it go
    raylets[0].send_signal(signal.SIGTERM)
    await_(ended.exists, "what the machine does at its end", seconds=120)
    await_(lambda: not here.left(), "end of the supervisor")
    assert here.running() is None
