"""Deleting checkpoints: what is kept, or may be somebody else's, stays."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from regrow.tasks.checkpoint.manifests import (
    CorruptCheckpoint,
    blob_key,
    manifest_key,
    seal,
    unseal,
)
from regrow.tasks.checkpoint.saving import discard, restore, sweep
from tests.memory_store import MemoryStore
from tests.unit.checkpointed import Tree, put, text, three, tree_of
from tests.unit.stores import replace


def test_discard_deletes_what_no_kept_manifest_refers_to(tmp_path: Path) -> None:
    store = MemoryStore()
    trees: list[Tree] = [{"w": text(f"{i}"), "frozen": text("same")} for i in range(4)]
    manifests = [put(store, tmp_path, tree, step=i).manifest for i, tree in enumerate(trees)]
    gone = discard(store, manifests[:2], keep=manifests[2:])
    assert len(gone) == 2
    assert store.list("manifests/") == manifests[2:]
    for i in (2, 3):
        assert restore(store, [manifests[i]], tmp_path / f"r{i}").manifest
        assert tree_of(tmp_path / f"r{i}") == trees[i]
    discard(store, manifests, keep=[])
    assert store.list("") == []


def test_discard_leaves_the_blobs_of_other_attempts_and_those_a_clone_refers_to(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    origin = put(store, tmp_path, {"w": text("w")}).manifest
    source = unseal(origin, store.read(origin))
    clone = manifest_key(2, 1, 1)
    store.create(clone, seal(msgspec.structs.replace(source, trial=2)))
    assert discard(store, [origin], keep=[clone]) == []
    assert restore(store, [clone], tmp_path / "r").manifest == clone
    assert discard(store, [clone], keep=[]) == []  # not its own: a sweep's to delete
    assert sweep(store, [], [(1, 1)]).blobs == [file.key for file in source.files]


def test_manifests_go_before_their_blobs(tmp_path: Path) -> None:
    class Recording(MemoryStore):
        def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
            keys = list(keys)
            deleted.extend(keys)
            together.append(not ordered)
            super().delete(keys)

    deleted: list[str] = []
    together: list[bool] = []
    store = Recording()
    manifests = three(store, tmp_path)
    discard(store, manifests[:1], keep=manifests[1:])
    sweep(store, [], [(1, 1)])
    kinds = [key.split("/")[0] for key in deleted]
    assert kinds == ["manifests"] + ["blobs"] * 2 + ["manifests"] * 2 + ["blobs"] * 4
    assert together == [True] * 4, "a bucket takes a request for each of these"


def test_a_kept_manifest_that_does_not_verify_protects_every_blob(tmp_path: Path) -> None:
    store = MemoryStore()
    newest, older, oldest = three(store, tmp_path)
    replace(store, older, b"{}")
    blobs = store.list("blobs/")
    assert discard(store, [newest], keep=[older]) == []
    swept = sweep(store, [older], [(1, 1)])
    assert (swept.manifests, swept.blobs, swept.unsure) == ([oldest], [], [older])
    assert store.list("blobs/") == blobs


def test_sweep_leaves_exactly_the_live_checkpoints(tmp_path: Path) -> None:
    store = MemoryStore()
    store.create("log/0000000001.jsonl", b"")
    manifests = three(store, tmp_path)
    orphan = blob_key(9, 9, "0" * 64)
    store.create(orphan, b"of an upload that was never committed")
    foreign = blob_key(1, 2, "1" * 64)
    store.create(foreign, b"of an attempt that a driver after this one started")
    others = ["manifests/.DS_Store", "manifests/1/1/.nfs0000000000c0ffee"]
    for other in others:
        store.create(other, b"of a file manager, of a file system")
    swept = sweep(store, {manifests[1], manifest_key(5, 5, 5)}, [(1, 1), (9, 9)])
    assert swept.manifests == sorted([manifests[0], manifests[2]])
    assert orphan in swept.blobs
    kept = [
        manifests[1],
        *(file.key for file in unseal(manifests[1], store.read(manifests[1])).files),
    ]
    assert store.list("") == sorted(["log/0000000001.jsonl", foreign, *others, *kept])


def test_what_is_no_manifest_is_never_deleted_as_one() -> None:
    store = MemoryStore()
    store.create("log/0000000001.jsonl", b"")
    with pytest.raises(ValueError, match="no manifest"):
        discard(store, ["log/0000000001.jsonl"], keep=[])
    assert store.list("") == ["log/0000000001.jsonl"]


def test_unsound_says_which_trial_it_found(tmp_path: Path) -> None:
    store = MemoryStore()
    manifest = put(store, tmp_path, {}, trial=4, attempt=2, step=9).manifest
    with pytest.raises(CorruptCheckpoint, match="trial 4, attempt 2, step 9"):
        unseal(manifest_key(4, 3, 9), store.read(manifest))
