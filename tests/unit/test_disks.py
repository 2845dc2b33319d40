"""Real disks that are full or read-only for a while, and what is said of them."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regrow.infra.machine import locks
from regrow.infra.machine.naming import publish
from regrow.infra.stores.local import LocalStore
from regrow.tasks.checkpoint.writer import CheckpointWriter
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.process import disk
from regrow.tasks.trial import trial as trials
from regrow.tasks.trial.trial import Trial
from tests.conftest import disk_of, fill
from tests.unit.attempting import Attempting, outcome, steps
from tests.unit.office import MakeOffice


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MB."""
    with disk_of(4, tmp_path / "small") as place:
        yield place


def snapshot(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model").write_bytes(bytes(2_000_000))
    return folder


def test_a_checkpoint_that_finds_no_room_says_what_is_full_and_what_it_needs(
    tmp_path: Path, small: Path
) -> None:
    store = LocalStore(small / "state")
    store.create("log/1", b"")
    ballast = fill(small)
    writer = CheckpointWriter(store, trial=0, attempt=1)
    news = threading.Semaphore(0)
    writer.on_news = news.release
    writer.submit(snapshot(tmp_path / "a"), 3)
    assert news.acquire(timeout=20)
    assert writer.trouble == (
        f"no space left on {small}: 0 bytes free of 4.2 MB; the checkpoint of trial 0, step 3, needs 2.0 MB"
    )
    ballast.unlink()
    assert writer.drain(20)
    assert writer.trouble == ""
    assert [saved.step for saved in writer.results()] == [3]
    writer.close()


def test_a_disk_that_becomes_read_only_is_waited_for_and_one_that_always_was_is_a_mistake(
    small: Path,
) -> None:
    store = LocalStore(small)
    store.create("log/1", b"first")
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    with pytest.raises(Unavailable, match=f"{small} is read-only"):
        store.create("log/2", b"second")
    with pytest.raises(UserError, match="can't be used"):
        LocalStore(small).create("log/2", b"second")
    subprocess.run(["mount", "-o", "remount,rw", small], check=True)
    store.create("log/2", b"second")


def test_snapshots_without_room_are_told_and_left_out_once_and_the_last_one_waits(
    make_office: MakeOffice, attempt: Attempting, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "ROOM_SECONDS", 0.05)
    office = make_office(max_steps=4, checkpoint={"every_steps": 2, "keep_last": 9})
    tries: list[int] = []
    told: list[str] = []
    room: list[Path] = []

    def train(trial: Trial) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(small))
        room.append(fill(small))

        def save(folder: Path) -> None:
            tries.append(trial.step)
            if tries.count(4) == 2:
                room.pop().unlink()
            (folder / "model").write_bytes(bytes(1_000_000))

        for step in trial.steps():
            trial.report({"score": step}, checkpoint=save)
            assert isinstance(trial._writer, CheckpointWriter)
            told.append(trial._writer.trouble)

    assert outcome(attempt(office, train))[0] == "done"
    assert tries == [2, 4, 4]
    assert told[1] == told[2]
    assert told[1].startswith(f"no space left on {small}: ")
    assert told[1].endswith(
        f"trial 0, step 2, has no room in {small}, where snapshots are made (TMPDIR)"
    )
    assert told[3] == ""
    assert steps(office) == [1, 2, 3, 4]
    assert list(office.history.trials[0].checkpoints) == [4]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EDQUOT, "the disk quota on / is used up"),
        (errno.EROFS, "/ is read-only"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_other_causes_are_named(number: int, words: str) -> None:
    assert disk.explain(OSError(number, os.strerror(number)), Path("/")) == words


@pytest.mark.parametrize(
    "number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK, errno.EINVAL]
)
def test_without_hard_links_one_file_alone_gets_a_name_all_the_same(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real rename that replaces nothing; `os.link` answers as FAT, exFAT, AFS or a full inode
    do.
    """
    monkeypatch.setattr(os, "link", refusing(number))
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    publish(tmp_path / "a", tmp_path / "c")
    with pytest.raises(FileExistsError, match="c"):
        publish(tmp_path / "b", tmp_path / "c")
    assert [(path.name, path.read_text()) for path in sorted(tmp_path.iterdir())] == [
        ("b", "b"),
        ("c", "a"),
    ]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS])
def test_a_folder_that_cannot_be_synced_is_written_to(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda file: refusing(number)() if stat.S_ISDIR(os.fstat(file).st_mode) else real(file),
    )
    LocalStore(tmp_path / "state").create("log/1", b"first")
    assert LocalStore(tmp_path / "state").read("log/1") == b"first"
    monkeypatch.setattr(os, "fsync", refusing(errno.EIO))
    with pytest.raises(Unavailable, match="Input/output error"):
        LocalStore(tmp_path / "state").create("log/2", b"second")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named_where_one_is_taken(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", refusing(number))
    file = tmp_path / "users.lock"
    with pytest.raises(
        UserError,
        match=rf"^{tmp_path} is on a file system without locks \(flock: {os.strerror(number)}\).*--state",
    ):
        locks.acquire(file)
    assert not locks.is_held(file), "a state that is only looked at needs none"
    error = locks.NoLocks(str(file), "why")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def refusing(number: int) -> Callable[..., None]:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (1_500, "1.5 kB"), (12e6, "12 MB"), (5e10, "50 GB")],
)
def test_sizes_are_short(count: float, said: str) -> None:
    assert disk.size(int(count)) == said
