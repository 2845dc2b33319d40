"""What every store promises. A new adapter joins by a line in `ADAPTERS`."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from regrow.infra.stores.keys import RESERVED
from regrow.infra.stores.local import STALE_S, LocalStore
from regrow.infra.stores.s3 import S3Store, open_s3
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Exists, Missing, Store, StoreError, Unavailable
from tests.memory_store import MemoryStore

ADAPTERS: dict[str, Callable[[str], Store]] = {
    "memory": lambda _: MemoryStore(),
    "local": lambda folder: LocalStore(Path(folder)),
    "local-without-hard-links-or-renames": lambda folder: LocalStore(Path(folder)),
    "local-over-two-disks": lambda folder: LocalStore(Path(folder)),
    "s3": open_s3,
}


@pytest.fixture(params=ADAPTERS)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    root = request.getfixturevalue("s3") if request.param == "s3" else str(tmp_path / "state")
    if request.param == "local-without-hard-links-or-renames":
        monkeypatch.setattr(os, "link", refuse_links)
        monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace())
    with other_disk() if request.param == "local-over-two-disks" else nullcontext() as disk:
        if disk is not None:
            (tmp_path / "state").mkdir()
            (tmp_path / "state" / RESERVED).symlink_to(disk)
        yield ADAPTERS[request.param](root)


def refuse_links(*_: object) -> None:
    raise OSError(errno.EPERM, "as FAT answers")


@contextmanager
def other_disk() -> Iterator[Path]:
    """A folder on another file system than that of pytest's folders, which each Linux has."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="regrow-test-") as folder:
        yield Path(folder)


def test_an_object_reads_back_as_it_was_created(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"from a file" * 200_000)
    store.create("a/b/bytes", b"\0\xff")
    store.create("a/file", source)
    store.create("empty", b"")
    assert store.read("a/b/bytes") == b"\0\xff"
    assert store.read("a/file") == source.read_bytes()
    assert store.read("empty") == b""


def test_fetch_streams_to_a_file_and_replaces_it(store: Store, tmp_path: Path) -> None:
    store.create("k", b"new")
    target = tmp_path / "target"
    target.write_bytes(b"older and longer")
    store.fetch("k", target)
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("size", [0, 1, (16 << 20) - 1, 16 << 20, (16 << 20) + 1, 40 << 20])
def test_objects_of_any_size_travel_whole(store: Store, size: int, tmp_path: Path) -> None:
    data = os.urandom(size)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(data)
    store.create("file", source)
    store.create("bytes", data)
    for key in ("file", "bytes"):
        assert store.read(key) == data
        store.fetch(key, target)
        assert target.read_bytes() == data
        with pytest.raises(Exists):
            store.create(key, source)


def test_of_racing_large_objects_exactly_one_wins(store: Store) -> None:
    start = threading.Barrier(6)
    won: list[bytes] = []

    def race(me: int) -> None:
        data = b"%d" % me * (9 << 20)
        start.wait()
        with suppress(Exists):
            store.create("race", data)
            won.append(data)

    threads = [threading.Thread(target=race, args=(me,)) for me in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.read("race") == won[0]


def test_a_large_file_created_by_several_at_once_is_whole(store: Store, tmp_path: Path) -> None:
    """As two blobs of one name are, with one content; of different ones SeaweedFS lets several
    win.
    """
    source = tmp_path / "source"
    source.write_bytes(os.urandom(40 << 20))

    def create(_: int) -> bool:
        with suppress(Exists):
            store.create("blob", source)
            return True
        return False

    with ThreadPoolExecutor(4) as pool:
        assert any(pool.map(create, range(4)))
    assert store.read("blob") == source.read_bytes()


def test_an_object_is_written_once(store: Store) -> None:
    store.create("k", b"first")
    with pytest.raises(Exists, match="k exists already"):
        store.create("k", b"second")
    assert store.read("k") == b"first"


def test_a_missing_object_is_named(store: Store, tmp_path: Path) -> None:
    store.create("folder/k", b"")
    for key in ("nothing", "folder", "folder/k/below"):
        with pytest.raises(Missing, match=key):
            store.read(key)
        with pytest.raises(Missing, match=key):
            store.fetch(key, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_list_is_sorted_by_code_point_and_takes_any_prefix(store: Store) -> None:
    keys = ["log/1-2", "log/1.x", "log/10", "log/2/deep/er", "logs", "z", "Z", "é"]
    for key in reversed(keys):
        store.create(key, b"")
    assert store.list("") == sorted(keys)
    assert store.list("log/") == ["log/1-2", "log/1.x", "log/10", "log/2/deep/er"]
    assert store.list("log") == ["log/1-2", "log/1.x", "log/10", "log/2/deep/er", "logs"]
    assert store.list("log/1") == ["log/1-2", "log/1.x", "log/10"]
    assert store.list("none/at/all/") == []


def test_delete_takes_missing_keys_and_frees_the_name(store: Store) -> None:
    store.create("a/k", b"old")
    store.create("a/kept", b"")
    store.delete(["a/k", "a/never", "other/never", "a/k"])
    assert store.list("") == ["a/kept"]
    store.create("a/k", b"new")
    assert store.read("a/k") == b"new"


def test_more_keys_than_a_page_are_listed_and_deleted_in_any_order_where_that_does_not_matter(
    store: Store,
) -> None:
    keys = [f"{n % 3}/{n:04d}" for n in range(1100)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.create(key, b""), [*keys, "kept"]))
    assert store.list("") == [*sorted(keys), "kept"]
    assert store.list("1/") == sorted(key for key in keys if key.startswith("1/"))
    store.delete([*keys, "never", "0/0000"], ordered=False)
    assert store.list("") == ["kept"]
    with pytest.raises(ValueError, match="key"):
        store.delete(["kept", "../x"], ordered=False)
    assert store.list("") == ["kept"]


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        "..",
        "a/../b",
        ".",
        "a/./b",
        "a\\b",
        "a\0",
        ".tmp/x",
        "x" * 256,
        "x/" * 600 + "x",
    ],
)
def test_a_key_that_is_no_plain_relative_path_is_refused(
    store: Store, key: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="key"):
        store.create(key, b"")
    with pytest.raises(ValueError, match="key"):
        store.read(key)
    with pytest.raises(ValueError, match="key"):
        store.fetch(key, tmp_path / "x")
    with pytest.raises(ValueError, match="key"):
        store.delete(["good", key])


@pytest.mark.parametrize("prefix", ["/", "/a", "..", "a/../", "a//", "a\\"])
def test_a_prefix_that_begins_no_key_is_refused(store: Store, prefix: str) -> None:
    with pytest.raises(ValueError, match=r"key|prefix"):
        store.list(prefix)


def test_of_32_threads_racing_for_a_key_exactly_one_wins(store: Store) -> None:
    # SeaweedFS lets the losers queue for a lock that they ask for once a second: 12 s for 32 of
    # them.
    rounds = 1 if isinstance(store, S3Store) else 10
    start = threading.Barrier(32)
    won: list[list[int]] = [[] for _ in range(rounds)]

    def race(me: int) -> None:
        for turn in range(rounds):
            start.wait()
            try:
                store.create(f"race/{turn}", b"%d" % me * 1000)
            except Exists:
                continue
            won[turn].append(me)

    threads = [threading.Thread(target=race, args=(me,)) for me in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for turn, winners in enumerate(won):
        assert len(winners) == 1
        assert store.read(f"race/{turn}") == b"%d" % winners[0] * 1000


@pytest.mark.parametrize("error", [Exists("k"), Missing("k"), Unavailable("k", "disk full")])
def test_errors_survive_pickling(error: StoreError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.key) == (type(error), str(error), "k")


WRITER = """
import hashlib, os, pickle, sys
store = pickle.loads(bytes.fromhex(sys.argv[1]))
while True:
    data = os.urandom(8 << 20)
    key = "o/" + hashlib.sha256(data).hexdigest()
    print("writing", flush=True)
    store.create(key, data)
    print(key, flush=True)
"""


@pytest.mark.parametrize(
    "store",
    # not those that are changed in this process alone
    [name for name in ADAPTERS if name != "memory" and not name.startswith("local-")],
    indirect=True,
)
def test_a_killed_writer_leaves_no_torn_object_and_loses_no_acknowledged_one(store: Store) -> None:
    for turn in range(12):
        command = [sys.executable, "-c", WRITER, pickle.dumps(store).hex()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n"
            with suppress(subprocess.TimeoutExpired):
                # so that the kill falls into every phase of a write
                writer.wait(timeout=turn * 0.006)
            writer.send_signal(signal.SIGKILL)
            acknowledged = {line.strip() for line in writer.stdout if line.startswith("o/")}
        keys = store.list("")
        assert acknowledged <= set(keys)
        for key in keys:
            assert hashlib.sha256(store.read(key)).hexdigest() == key.removeprefix("o/")
        store.delete(keys)


def test_a_writer_killed_in_the_middle_of_an_object_leaves_none(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "state")
    source = tmp_path / "source"
    os.mkfifo(source)
    code = (
        "import sys; from pathlib import Path; from regrow.infra.stores.local import LocalStore; "
        "LocalStore(Path(sys.argv[1])).create('k', Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "state"), str(source)]
    with subprocess.Popen(command) as writer, source.open("wb", buffering=0) as pipe:
        pipe.write(b"half" * (1 << 20))  # returns when all but a pipe's 64 KB has been taken
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert store.list("") == []
    store.create("k", b"whole")
    assert store.read("k") == b"whole"


def test_leftovers_of_dead_writers_are_never_listed_and_go_after_a_day(tmp_path: Path) -> None:
    root = tmp_path / "state" / "experiment"
    old, young = root / ".tmp" / "old", root / ".tmp" / "young"
    old.parent.mkdir(parents=True)
    for leftover in (old, young):
        leftover.write_bytes(b"half")
    os.utime(old, (old.stat().st_mtime - STALE_S - 60,) * 2)
    store = LocalStore(root)
    assert store.list("") == []
    store.create("k", b"")
    assert (old.exists(), young.exists()) == (False, True)
    assert LocalStore(root.parent).list("") == ["experiment/k"]


def test_a_folder_on_another_disk_is_listed_and_what_appears_in_it_is_whole(tmp_path: Path) -> None:
    with other_disk() as disk:
        (tmp_path / "blobs").mkdir()
        (tmp_path / "blobs" / "0").symlink_to(disk)
        (disk / "upwards").symlink_to(tmp_path)
        store = LocalStore(tmp_path)
        store.create("blobs/0/1", b"first")
        os.mkfifo(disk / "source")
        writer = threading.Thread(target=store.create, args=("blobs/0/2", disk / "source"))
        writer.start()
        with (disk / "source").open("wb", buffering=0) as pipe:
            pipe.write(b"half" * (1 << 20))  # returns when all but a pipe's 64 KB has been taken
            assert store.list("") == store.list("blobs/0/") == ["blobs/0/1"]
        writer.join()
        assert store.read("blobs/0/2") == b"half" * (1 << 20)
        assert list((disk / RESERVED).iterdir()) == []


def test_a_file_in_the_place_of_the_state_folder_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "state"):
        with pytest.raises(UserError, match=str(root)):
            LocalStore(root).create("k", b"")


def test_an_unwritable_folder_is_the_users_error(tmp_path: Path) -> None:
    root = tmp_path / "state"
    root.mkdir(mode=0o500)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may write anywhere
    try:
        with pytest.raises(UserError, match=str(root)):
            LocalStore(root).create("k", b"")
    finally:
        os.seteuid(user)
