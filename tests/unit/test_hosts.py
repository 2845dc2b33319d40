"""A state root on a file system that several hosts share: each has its services where no other
one's are.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regrow.infra.state.places import Places

USES = """
import sys
import regrow.infra.state.service_files as hosts
from regrow.infra.state.places import Places
places = Places.at(sys.argv[1])
hosts._name = lambda: sys.argv[2]
if sys.argv[3] == "write":
    places.writable()
print(places.services, flush=True)
sys.stdin.read()
"""
Use = Callable[..., tuple[Path, subprocess.Popen[str]]]


@pytest.fixture
def use(tmp_path: Path) -> Iterator[Use]:
    """A process on a host of this name, which uses the root until it is killed: its services'
    folder, itself.
    """
    started: list[subprocess.Popen[str]] = []

    def begin(host: str, how: str = "write") -> tuple[Path, subprocess.Popen[str]]:
        command = [sys.executable, "-c", USES, str(tmp_path), host, how]
        started.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        stdout = started[-1].stdout
        assert stdout is not None
        return Path(stdout.readline().strip()), started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_two_hosts_at_a_time_have_a_folder_each_and_know_of_each_others_experiments(
    use: Use, tmp_path: Path
) -> None:
    common = tmp_path / ".services"
    assert use("one")[0] == use("one")[0] == common
    assert use("two", "read")[0] == common / "on" / "two", (
        "what is said there of 127.0.0.1 is another's"
    )
    assert not (common / "on").exists()
    assert use("two")[0] == common / "on" / "two"
    assert use("three")[0] == common / "on" / "three"
    assert Places.at(str(tmp_path)).common == common, "the lock of an experiment is one for all"


def test_a_folder_that_nobody_uses_is_that_of_whoever_comes_next(use: Use, tmp_path: Path) -> None:
    common = tmp_path / ".services"
    for name in ("container-1", "container-2"):
        folder, process = use(name)
        assert folder == common
        assert use("container-0", "read")[0] == common / "on" / "container-0"
        process.kill()
        process.wait()
        assert use(name, "read")[0] == use("container-0", "read")[0] == common


def test_a_host_stays_with_the_folder_of_its_own(use: Use, tmp_path: Path) -> None:
    _, first = use("one")
    own, second = use("two")
    for process in (first, second):
        process.kill()
        process.wait()
    assert use("two")[0] == own, "what it began is there"
    assert use("one")[0] == tmp_path / ".services"


def test_a_server_that_another_host_has_left_running_is_not_taken_for_ones_own(
    use: Use, tmp_path: Path
) -> None:
    common, process = use("one")
    (common / "prefect").mkdir()
    process.kill()
    process.wait()
    with (common / "prefect" / "server.lock").open("a") as server:
        fcntl.flock(server, fcntl.LOCK_EX)
        assert use("two")[0] == common / "on" / "two"


def test_threads_of_one_process_may_begin_at_the_same_time(tmp_path: Path) -> None:
    """Each made a file of one name and removed it: "the state root cannot be written"."""
    with ThreadPoolExecutor(16) as threads:
        begun = [threads.submit(Places.at(str(tmp_path)).writable) for _ in range(400)]
    for one in begun:
        one.result()
