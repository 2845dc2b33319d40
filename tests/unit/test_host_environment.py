"""What is set for our own processes on a machine with a proxy, a long TMPDIR or few files, and what
is left alone.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError
from rich.console import Console

import regrow as rg
from regrow.infra.machine.capacity import little_memory
from regrow.infra.machine.host_environment import (
    FILES,
    a_home,
    check_tasks,
    direct,
    exhausted,
    ray_folder,
)
from regrow.infra.prefect import settings
from regrow.infra.ray import cluster, probing
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.show.live import Live
from regrow.show.live.terminal import Events
from regrow.tasks.errors import UserError
from regrow.tasks.process import temporary
from tests.unit.fresh import fresh, printed
from tests.unit.refusing import TEXT, Refused

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "all_proxy"])
def test_loopback_goes_to_no_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {name: PROXY, **direct({name: PROXY})}.items():
        monkeypatch.setenv(variable, value)
    assert all(urllib.request.proxy_bypass(host) for host in ("127.0.0.1", "localhost"))
    assert not urllib.request.proxy_bypass("example.com"), "the user's proxy is for all else"


def test_the_users_own_exceptions_stay() -> None:
    found = direct({"http_proxy": PROXY, "no_proxy": "intern.example, 127.0.0.1"})
    assert found["no_proxy"] == found["NO_PROXY"] == "intern.example,127.0.0.1,localhost,::1"


@pytest.mark.parametrize("loopback", ["[::1]", "::1/128", "[::1]/128", "::1"])
def test_the_loopback_of_ipv6_is_written_as_prefects_client_takes_it(
    loopback: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"NO_PROXY": f"10.0.0.0/8,{loopback}"}
    for variable, value in {**given, **direct(given)}.items():
        monkeypatch.setenv(variable, value)
    assert os.environ["no_proxy"] == "10.0.0.0/8,::1,127.0.0.1,localhost"
    settings.refuse_settings(Places.at(str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks4://u:secret@h:1"),
        ("https_proxy", "http://u:se#cret@h"),
        ("NO_PROXY", "fd00::/8"),
    ],
)
def test_a_proxy_that_prefects_client_does_not_take_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")  # which it takes
    settings.refuse_settings(Places.at(str(tmp_path)))
    monkeypatch.delenv("ALL_PROXY")
    monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=f"cannot be made with {name}: httpx takes") as told:
        settings.refuse_settings(Places.at(str(tmp_path)))
    assert "secret" not in str(told.value)


def test_nothing_is_set_without_a_proxy_or_where_none_is_used_for_anything() -> None:
    assert (
        direct({})
        == direct({"http_proxy": ""})
        == direct({"http_proxy": PROXY, "NO_PROXY": "*"})
        == {}
    )


def in_room(folder: Path, base: str) -> bool:
    """Whether it lies in a room of this process below `base`, where only this user may enter."""
    rooms = folder.parents[1]
    return (folder.name, rooms) == (
        "ray",
        Path(base, f"regrow-{os.getuid()}"),
    ) and rooms.stat().st_mode & 0o777 == 0o700


def test_rays_folder_is_this_users_alone_and_a_long_tmpdir_is_not_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, session = (
        tmp_path / "a-long-name-of-a-job",
        "session_2026-11-22_13-43-00_123456_1234567/sockets/plasma_store.9",
    )
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert in_room(ray_folder({}), "/tmp")
    monkeypatch.setattr("os.getuid", lambda: 4_294_967_294)
    assert len("/tmp/ray/" + session) + temporary.longest("/tmp") - len("/tmp") <= 107, (
        "also for the longest of numbers"
    )


def test_a_ray_tmpdir_of_the_users_stays_and_is_refused_where_it_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/x" * 40)
    with tempfile.TemporaryDirectory(prefix="r-files-", dir="/tmp") as mine:
        own = Path(mine)
        assert own.stat().st_mode & 0o777 == 0o700
        assert temporary.longest(mine) > 36, "there is no room in it for a room"
        assert ray_folder({"RAY_TMPDIR": mine}) == own / "ray"
        own.chmod(0o755)
        with pytest.raises(
            UserError,
            match=r"RAY_TMPDIR is '/tmp/r.* of at most \d+ bytes, or of \d+ that only you may enter",
        ):
            ray_folder({"RAY_TMPDIR": mine})
    assert in_room(ray_folder({"RAY_TMPDIR": "/tmp"}), "/tmp")
    with pytest.raises(UserError, match="RAY_TMPDIR is '/x"):
        ray_folder({"RAY_TMPDIR": "/x" * 40})


def test_as_many_files_as_the_system_allows() -> None:
    code = (
        "import resource as r; from regrow.infra.machine.host_environment import raise_file_limit as f;"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (256, hard)); f(); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    soft, hard = map(int, printed(code).split())
    assert soft == min(hard, FILES)


def test_too_few_files_are_said_at_once() -> None:
    code = (
        "import resource as r; from regrow.infra.machine.host_environment import raise_file_limit as f;"
        "r.setrlimit(r.RLIMIT_NOFILE, (64, 64)); f()"
    )
    done = fresh(code)
    assert "UserError: only 64 files may be open at a time here" in done.stderr


def test_too_few_processes_and_threads_are_said_at_once(tmp_path: Path) -> None:
    code = (
        "import os, resource as r; from regrow.infra.machine.host_environment import check_tasks as f;"
        f"os.setuid({os.getuid() or 65534}); r.setrlimit(r.RLIMIT_NPROC, (99, 99)); f()"
    )
    done = fresh(code)
    assert "threads may be started here (a limit of `ulimit -u`)" in done.stderr
    check_tasks(cgroups(tmp_path / "roomy", most="max", now="80"))
    with pytest.raises(UserError, match=r"only 20 more .* \(a limit of the cgroup /.*/above\)"):
        check_tasks(cgroups(tmp_path / "full", most="100", now="80"))


@pytest.mark.parametrize(("letter", "most"), [("v", 10_000_000), ("f", 100)])
def test_too_little_address_space_and_too_short_files_are_said_at_once(
    letter: str, most: int, tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(TEXT)
    (tmp_path / "work.py").write_text("def train(trial): ...")
    for words in ("run s.yaml", "join s.yaml"):
        script = f"ulimit -{letter} {most}; exec {sys.executable} -m regrow {words}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert f"(`ulimit -{letter}`), and Ray needs" in done.stderr


def test_a_setting_that_prefect_does_not_take_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import Settings

    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "nonsense")
    with pytest.raises(ValidationError) as caught:
        Settings()
    assert settings.refused_setting(caught.value).startswith(
        "Prefect does not take the value of PREFECT_LOGGING_LEVEL: Input should be 'DEBUG'"
    )
    assert settings.refused_setting(ValueError("of another")) == ""


def test_a_cluster_whose_folder_was_deleted_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = SimpleNamespace(head=None, vital={}, folder=tmp_path)
    monkeypatch.setattr(cluster, "_owned", owned)
    monkeypatch.setattr(cluster, "_ray", lambda: SimpleNamespace(is_initialized=lambda: True))
    assert cluster.lost() is None
    owned.folder = tmp_path / "ray"  # by a cleaner of /tmp, or a user's `rm`
    assert cluster.lost() == f"its files in {tmp_path}/ray were deleted"


def test_an_empty_address_of_ray_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    asked = []
    monkeypatch.setattr(probing, "probe", lambda address, **_: asked.append(address))
    monkeypatch.setattr(cluster, "_connected", lambda target, *_, **__: asked.append(target))
    cluster.connect(env={})
    assert asked == [None]


@pytest.mark.parametrize(
    "command",
    [("run", "s.yaml"), ("join", "s.yaml", "--labels", "=")],
)
def test_no_session_and_no_agent_begins_with_too_few_processes_and_threads(
    command: tuple[str, ...], refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the check, no server and these labels would be found instead, and nothing be started.
    full = cgroups(tmp_path / "full", most="100", now="80")
    monkeypatch.setattr(check_tasks, "__defaults__", (full,))  # in place of this machine's groups
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    Path("s.yaml").write_text(TEXT)
    line = refused(*command, "--state", "state")
    assert line.startswith("only 20 more processes and threads may be started here"), line


@pytest.mark.parametrize(("name", "most"), [("RLIMIT_NPROC", 1), ("RLIMIT_NOFILE", 3)])
def test_what_a_machine_runs_out_of_later_is_named(name: str, most: int) -> None:
    code = (
        "import os, resource as r, subprocess, sys, threading\n"
        "from regrow.infra.machine.host_environment import exhausted\n"
        f"os.setuid({os.getuid() or 65534}); r.setrlimit(r.{name}, ({most}, {most}))\n"
        "for what in (lambda: subprocess.run(['true']), threading.Thread(target=print).start):\n"
        "    try:\n        what()\n"
        "    except Exception as error:\n"
        "        try:\n            raise ValueError from error\n"
        "        except ValueError as outer:\n            print(exhausted(outer))\n"
    )
    done = fresh(code)
    many = ["no more processes or threads may be started here (`ulimit -u`, a cgroup's limit)"] * 2
    files = ["no more files may be open here (`ulimit -n`)", ""]
    assert done.stdout.splitlines() == (many if name == "RLIMIT_NPROC" else files), done.stderr
    assert exhausted(BlockingIOError(errno.EAGAIN, "a lock")) == ""


@pytest.mark.parametrize(
    ("do", "words"),
    [
        ("open(locked / 'x')", "LOCKED/x: Permission denied"),
        ("os.rename(locked, home / 'b')", "LOCKED -> HOME/b: Permission denied"),
        ("Path('y' * 300).is_file()", f"{'y' * 300}: File name too long"),
        ("open(home / 'missing')", ""),
        ("os.kill(1, 0)", ""),
        ("parsed(locked / 'x.py')", "LOCKED/x.py: cannot be read: Permission denied"),
        ("service_files.folder(locked)", None),
        ("list(sources.walk(home))", None),
        ("confidential.confidential(home)", None),
    ],
)
def test_a_path_that_is_refused_is_the_users(do: str, words: str | None, tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from regrow.infra.machine import confidential\n"
        "from regrow.infra.machine.host_environment import refused_path\n"
        "from regrow.infra.state import service_files, sources\n"
        "from regrow.tasks.attempt.trainable import parsed\n"
        "from regrow.tasks.errors import UserError\n"
        "home = Path(sys.argv[1]); locked = home.with_name('locked')\n"
        f"os.setuid({os.getuid() or 65534})\n"
        f"try:\n    {do}\n    print(None)\n"
        "except UserError as error:\n    print(error)\n"
        "except OSError as error:\n    print(refused_path(error))\n"
    )
    with tempfile.TemporaryDirectory() as place:  # pytest's own are closed to others
        os.chmod(place, 0o755)
        home, locked = Path(place, "home"), Path(place, "locked")
        home.mkdir()
        locked.mkdir(mode=0o700)
        (locked / "x.py").touch()
        for name, target in (("itself.py", "itself.py"), ("closed.py", locked / "x.py")):
            (home / name).symlink_to(target)
        if os.getuid():
            locked.chmod(0)
        done = fresh(code, home)
        locked.chmod(0o700)
        seen = done.stdout.strip().replace(str(home), "HOME").replace(str(locked), "LOCKED")
    assert seen == str(words), done.stderr


def test_a_pipe_that_another_program_has_made_non_blocking_gets_all_of_the_output() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # as Node.js does, and leaves it to whoever shares the pipe
    words = [sys.executable, "-m", "regrow", "schema"]
    with subprocess.Popen(words, stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        time.sleep(3.0)  # the pipe, of 64 KiB, is full by then
        with open(reader, "rb") as file:
            assert len(json.loads(file.read())["properties"]) > 20
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_events_wait_for_their_reader_at_the_end_too(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    events, lines = Events(writer), [b'{"n": %d}' % n for n in range(20_000)]
    live = Live(Console(), events=events)
    live._thread = threading.Thread(target=events.write, args=(lines,))
    live._thread.start()
    while not events.writing:
        time.sleep(0.01)
    read: list[bytes] = []

    def read_all() -> None:
        with open(reader, "rb") as file:
            read.append(file.read())

    late = threading.Timer(0.5, read_all)
    late.start()
    live.finish(LocalStore(tmp_path))  # as the session's end does
    assert not live._thread.is_alive()
    os.close(writer)
    late.join()
    assert read[0].splitlines() == lines


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"rmdir {gone}; exec {sys.executable} -m regrow up --compose"
    done = subprocess.run(
        ["sh", "-c", script], cwd=gone, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (
        2,
        "regrow: the folder in which you are is gone; go to another\n",
    )


def test_little_memory_is_said_at_the_start(tmp_path: Path) -> None:
    root = cgroups(tmp_path, most="max", now="1")
    assert little_memory({}, root) is None
    (root / "cg/above/own/memory.max").write_text("524288000")
    assert (little_memory({}, root) or "").startswith("regrow may use 524 MB of memory here")


def cgroups(root: Path, *, most: str, now: str) -> Path:
    """A machine with control groups of version 2, where the group above this process's has a limit."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/above/own\n")
    (root / "proc/self/mountinfo").write_text("1 0 0:1 / /cg rw - cgroup2 cgroup rw\n")
    for name, limit in (("above", most), ("above/own", "max")):
        (root / "cg" / name).mkdir(parents=True)
        (root / "cg" / name / "pids.max").write_text(limit)
        (root / "cg" / name / "pids.current").write_text(now)
    return root


@pytest.mark.skipif(
    shutil.which("unshare") is None or os.geteuid() != 0,
    reason="no right to make a network namespace",
)
def test_a_machine_that_cannot_reach_itself_is_said_at_once() -> None:
    code = "from regrow.infra.machine.host_environment import check_loopback as f; f()"
    for command in ([], ["unshare", "--net"]):
        done = subprocess.run(
            [*command, sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert ("UserError: this machine cannot reach itself" in done.stderr) is bool(command)


def test_the_embedded_prefect_server_starts_where_few_files_may_be_open(tmp_path: Path) -> None:
    code = (
        "import fcntl, resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, (256, 256));"
        # without a user, it may end before it has printed
        "user = open(sys.argv[1], 'w'); fcntl.flock(user, fcntl.LOCK_SH);"
        "from pathlib import Path; from regrow.infra.prefect.process import ServerUsers; ServerUsers(Path(sys.argv[1])); print('held')"
    )
    done = fresh(code, tmp_path / "users")
    assert done.stdout == "held\n", done.stderr


def test_a_user_without_a_home_and_a_place_for_files_has_one_in_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_294_967_294)
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    assert a_home({}) == {"HOME": "/"}
    assert a_home({"HOME": "/mine"}) == {}
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("tempfile._candidate_tempdir_list", list)
    with pytest.raises(
        UserError, match=r"No usable temporary directory found in .*; name one in TMPDIR"
    ):
        ray_folder({})


def test_an_experiment_of_another_thread_is_refused_before_anything_starts(tmp_path: Path) -> None:
    experiment = rg.Experiment(
        lambda _trial: None,
        name="threaded",
        space={"x": rg.uniform(0, 1)},
        metric="loss",
        mode="min",
        trials=1,
        max_steps=1,
        state=str(tmp_path / "state"),
    )
    with ThreadPoolExecutor(1) as pool, pytest.raises(UserError, match="main thread alone"):
        pool.submit(experiment.run, quiet=True).result()
    assert not Places.at(str(tmp_path / "state")).prefect_home.exists()
