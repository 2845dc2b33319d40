"""What tests of several folders share: one S3 server for the session, started when the first test
asks for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from absl import logging as absl_logging

from regrow.infra.local import s3_server
from regrow.infra.machine.processes import ProcessGuard
from tests.distribution import pytest_collection_modifyitems, pytest_xdist_make_scheduler

# hooks: pytest finds them here
__all__ = ["pytest_collection_modifyitems", "pytest_xdist_make_scheduler"]

# started in the background of a script: processes of tests inherit it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# TensorBoard's logging closes the stream that it has, unless that is sys.stderr at that moment. It
# would have pytest's, and close it within a test with `capsys` in which Prefect sets logging up
# anew: no later test of the process would run.
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__


@contextmanager
def guarded_s3_server(folder: Path) -> Iterator[s3_server.S3Server]:
    """A real S3 server on loopback with an empty bucket; it ends with this process, however that
    ends.

    One that the test starts in its place is found by its folder, and ended as well.
    """
    # a name of its own: servers may be nested
    name, value = (f"REGROW_S3_TEST_{uuid.uuid4().hex}", "1")
    guard = ProcessGuard(f"{name}={value}")
    os.environ[name] = value  # inherited by the servers that are started meanwhile
    try:
        yield s3_server.start(folder)[0]
    finally:
        os.environ.pop(name, None)
        s3_server.stop(folder, at_once=True)
        guard.finish()


@pytest.fixture(scope="session")
def s3_server_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.S3Server]:
    """One server for all tests that do it no harm."""
    with guarded_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3(s3_server_of_session: s3_server.S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty state root on the session's server, to which this process's variables
    point.
    """
    server = s3_server.running(s3_server_of_session.folder)
    assert server is not None, "a test before this one has ended the session's S3 server"
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server_of_session.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3_server_of_session.bucket}/{uuid.uuid4().hex}"


@contextmanager
def disk_of(megabytes: int, place: Path) -> Iterator[Path]:
    """A real disk of that size, mounted at `place`. Skips the test where mounting is not
    permitted.
    """
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(place)]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"mounting is not permitted here: {made.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> Path:
    """Takes all the room that there is on a disk; returns the file that has it."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast
