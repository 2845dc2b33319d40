"""The thread that makes checkpoints durable while training continues."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from regrow.tasks.checkpoint.manifests import CorruptCheckpoint, manifest_key
from regrow.tasks.checkpoint.saving import clone, discard, restore, save, sweep
from regrow.tasks.checkpoint.writer import CheckpointWriter
from regrow.tasks.ports.store import Missing, Unavailable
from tests.memory_store import MemoryStore
from tests.unit.checkpointed import plant, text
from tests.unit.stores import Away


class Gated(MemoryStore):
    """Blobs wait at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.waiting = threading.Semaphore(0)

    def create(self, key: str, data: bytes | Path) -> None:
        if key.startswith("blobs/"):
            self.waiting.release()
            assert self.gate.acquire(timeout=30)
        super().create(key, data)


def snapshot(tmp: Path, step: int) -> Path:
    return plant(tmp / f"snapshot-{step}", {"w": text(f"step {step}"), "frozen/w": text("same")})


def test_checkpoints_become_durable_in_order_and_their_snapshots_go(tmp_path: Path) -> None:
    store = MemoryStore()
    writer = CheckpointWriter(store, trial=1, attempt=2)
    for step in (1, 2, 3):
        writer.submit(snapshot(tmp_path, step), step)
    assert writer.drain(timeout=30)
    saved = writer.results()
    assert [s.step for s in saved] == [1, 2, 3]
    assert [s.uploaded for s in saved] == [len("step 1same"), len("step 2"), len("step 3")]
    assert writer.results() == []
    assert writer.errors() == []
    assert list(tmp_path.iterdir()) == []
    assert restore(store, [saved[-1].manifest], tmp_path / "r").step == 3
    writer.close()


def test_submit_returns_at_once_until_one_is_queued_behind_the_one_in_flight(
    tmp_path: Path,
) -> None:
    store = Gated()
    writer = CheckpointWriter(store, trial=1, attempt=1)
    for step in (1, 2):
        writer.submit(plant(tmp_path / f"{step}", {"w": text(f"{step}")}), step)
        if step == 1:
            assert store.waiting.acquire(timeout=30)  # in flight
    third = threading.Thread(
        target=writer.submit, args=(plant(tmp_path / "3", {"w": text("3")}), 3)
    )
    third.start()
    third.join(timeout=0.05)
    assert third.is_alive()
    assert not writer.drain(timeout=0.01)
    assert writer.results() == []
    store.gate.release()  # the first becomes durable, the second goes in flight
    third.join(timeout=30)
    assert not third.is_alive()
    store.gate.release(2)
    writer.close()
    assert [s.step for s in writer.results()] == [1, 2, 3]


def test_a_failed_checkpoint_is_kept_for_the_caller_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    class Flaky(MemoryStore):
        def create(self, key: str, data: bytes | Path) -> None:
            if key == manifest_key(1, 1, 2):
                raise PermissionError(key)
            super().create(key, data)

    writer = CheckpointWriter(Flaky(), trial=1, attempt=1)
    for step in (1, 2, 3):
        writer.submit(snapshot(tmp_path, step), step)
    writer.submit(tmp_path / "never made", 4)
    writer.close()
    assert [s.step for s in writer.results()] == [1, 3]
    assert [(f.step, type(f.error)) for f in writer.errors()] == [
        (2, PermissionError),
        (4, FileNotFoundError),
    ]
    assert writer.errors() == []
    assert list(tmp_path.iterdir()) == []


def test_a_clone_is_one_more_manifest_over_the_same_blobs(tmp_path: Path) -> None:
    store = MemoryStore()
    original = save(store, snapshot(tmp_path, 4), trial=1, attempt=2, step=4)
    before = store.list("blobs/")
    copy = clone(store, original.manifest, trial=7, attempt=1, step=4)
    assert (copy.size, copy.files, copy.uploaded) == (original.size, original.files, 0)
    assert store.list("blobs/") == before
    assert discard(store, [original.manifest], keep=[copy.manifest]) == []
    restored = restore(store, [copy.manifest], tmp_path / "restored")
    assert (restored.manifest, restored.step) == (copy.manifest, 4)
    assert sweep(store, [copy.manifest], [(1, 2), (7, 1)]).blobs == []
    assert clone(store, copy.manifest, trial=7, attempt=1, step=4) == copy, (
        "again, as after a lost answer"
    )


def test_what_cannot_be_restored_cannot_be_cloned(tmp_path: Path) -> None:
    store = MemoryStore()
    with pytest.raises(Missing):
        clone(store, manifest_key(1, 1, 1), trial=2, attempt=1, step=1)
    store.create(manifest_key(1, 1, 1), b"{}")
    with pytest.raises(CorruptCheckpoint):
        clone(store, manifest_key(1, 1, 1), trial=2, attempt=1, step=1)
    assert store.list("manifests/2") == []


def test_a_checkpoint_waits_for_a_store_that_is_out_of_reach_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Away()
    writer = CheckpointWriter(store, trial=1, attempt=1)
    writer.submit(snapshot(tmp_path, 1), 1)
    assert store.asked.wait(20)
    store.back.set()
    assert writer.drain(timeout=20)
    assert [s.step for s in writer.results()] == [1]
    assert [r.message.partition(":")[0] for r in caplog.records] == [
        "checkpoints cannot be saved",
        "checkpoints can be saved again",
    ]
    writer.close()


def test_one_that_is_given_up_waits_no_longer(tmp_path: Path) -> None:
    store = Away()
    writer = CheckpointWriter(store, trial=1, attempt=1)
    writer.submit(snapshot(tmp_path, 1), 1)
    assert store.asked.wait(20)
    writer.give_up()
    assert writer.drain(timeout=20)
    assert [type(f.error) for f in writer.errors()] == [Unavailable]
    writer.close()


def test_dropping_never_takes_a_blob_from_a_checkpoint_that_is_still_on_its_way(
    tmp_path: Path,
) -> None:
    store = Gated()
    store.gate.release(2)
    writer = CheckpointWriter(store, trial=1, attempt=1)
    writer.submit(snapshot(tmp_path, 1), 1)
    writer.drain()
    (first,) = writer.results()
    writer.submit(snapshot(tmp_path, 2), 2)  # shares a blob with the first
    writer.drop([first.manifest], keep=[])  # by one who doesn't know of the second yet
    store.gate.release(100)
    writer.close()
    (second,) = writer.results()
    assert store.list("manifests/") == [second.manifest]
    assert restore(store, [second.manifest], tmp_path / "r").step == 2


def test_a_blob_that_was_dropped_is_sent_again_when_it_comes_back(tmp_path: Path) -> None:
    store = MemoryStore()
    writer = CheckpointWriter(store, trial=1, attempt=1)
    writer.submit(plant(tmp_path / "1", {"w": text("w")}), 1)
    writer.drop([manifest_key(1, 1, 1)], keep=[])
    writer.submit(plant(tmp_path / "2", {"w": text("w")}), 2)
    writer.close()
    assert restore(store, [manifest_key(1, 1, 2)], tmp_path / "r").step == 2


def test_a_drop_that_fails_does_not_stop_the_writer(tmp_path: Path) -> None:
    class Sticky(MemoryStore):
        def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
            raise Unavailable("blobs", "network")

    store = Sticky()
    writer = CheckpointWriter(store, trial=1, attempt=1)
    writer.drop([manifest_key(1, 1, 1)], keep=[])
    writer.submit(snapshot(tmp_path, 2), 2)
    writer.close()
    assert [s.step for s in writer.results()] == [2]


def test_a_closed_writer_takes_nothing_more(tmp_path: Path) -> None:
    writer = CheckpointWriter(MemoryStore(), trial=1, attempt=1)
    writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        writer.submit(tmp_path, 1)
    with pytest.raises(Missing):
        MemoryStore().read(manifest_key(1, 1, 1))


def test_where_no_thread_can_be_started_that_is_said_and_nobody_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CheckpointWriter(MemoryStore(), trial=1, attempt=1)
    with monkeypatch.context() as patched:
        patched.setattr(
            "sys.excepthook", None
        )  # Python then starts none, as at a limit of the system
        with pytest.raises(RuntimeError, match=r"excepthook"):
            writer.submit(snapshot(tmp_path, 1), 1)
    assert writer.drain(timeout=30)
    writer.submit(snapshot(tmp_path, 2), 2)
    assert writer.drain(timeout=30)
    assert [saved.step for saved in writer.results()] == [2]
    writer.close()
