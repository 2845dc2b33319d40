"""Checkpoints that several ranks have written, each a part: one manifest commits all of them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from regrow.tasks.checkpoint.manifests import unseal
from regrow.tasks.checkpoint.saving import clone, commit, discard, restore, sweep, upload
from regrow.tasks.errors import UserError
from regrow.tasks.ports.uploads import CheckpointPart
from tests.memory_store import MemoryStore
from tests.unit.checkpointed import Tree, plant, put, text, tree_of

RANKS: list[Tree] = [
    {".metadata": text("plan"), "shards/0": text("zero"), "logs": None},
    {"shards/1": text("one"), "vocabulary": text("the same"), "logs": None},
    {"shards/2": text("two"), "vocabulary": text("the same"), "empty": None},
]


def uploaded(store: MemoryStore, tmp: Path, trees: list[Tree]) -> list[CheckpointPart]:
    return [
        upload(store, plant(tmp / f"rank-{rank}", tree), trial=1, attempt=1, rank=rank)
        for rank, tree in enumerate(trees)
    ]


def test_the_parts_of_all_ranks_are_restored_as_one_folder(tmp_path: Path) -> None:
    store = MemoryStore()
    parts = uploaded(store, tmp_path, RANKS)
    assert store.list("manifests/") == [], "nothing is committed by an upload"

    saved = commit(
        store, [pickle.loads(pickle.dumps(part)) for part in parts], trial=1, attempt=1, step=4
    )  # ranks send them
    assert (saved.files, saved.size) == (5, len("planzeroonetwothe same"))
    assert saved.uploaded == saved.size, "what two ranks wrote alike was sent once"
    ranks = {
        file.path: file.rank for file in unseal(saved.manifest, store.read(saved.manifest)).files
    }
    assert ranks == {".metadata": 0, "shards/0": 0, "shards/1": 1, "vocabulary": 1, "shards/2": 2}

    assert restore(store, [saved.manifest], tmp_path / "restored").step == 4
    assert tree_of(tmp_path / "restored") == RANKS[0] | RANKS[1] | RANKS[2]


def test_what_is_lost_of_one_part_is_named_with_its_rank_and_the_checkpoint_before_is_taken(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    before = put(store, tmp_path, {"w": text("before")}).manifest
    saved = commit(store, uploaded(store, tmp_path, RANKS), trial=1, attempt=1, step=4)
    (lost,) = [
        f.key
        for f in unseal(saved.manifest, store.read(saved.manifest)).files
        if f.path == "shards/1"
    ]
    store.delete([lost])

    restored = restore(store, [saved.manifest, before], tmp_path / "restored")
    assert restored.manifest == before
    assert restored.skipped[0][1].startswith("shards/1, of rank 1:")


def test_two_ranks_that_wrote_different_files_at_one_path_are_named(tmp_path: Path) -> None:
    store = MemoryStore()
    parts = uploaded(
        store, tmp_path, [{"shared": text("plan")}, {"w": text("w")}, {"w": text("another")}]
    )
    with pytest.raises(
        UserError, match=r"ranks 1 and 2 wrote different files at 'w'; put the rank into the name"
    ):
        commit(store, parts, trial=1, attempt=1, step=1)
    assert store.list("manifests/") == []


def test_a_file_of_one_rank_below_a_file_of_another_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    parts = uploaded(store, tmp_path, [{"w": text("w")}, {"w/1": text("w")}])
    with pytest.raises(UserError, match="'w/1' lies below a file, in the files of all ranks"):
        commit(store, parts, trial=1, attempt=1, step=1)


def test_the_files_of_all_ranks_are_cloned_kept_and_deleted_together(tmp_path: Path) -> None:
    store = MemoryStore()
    saved = commit(store, uploaded(store, tmp_path, RANKS), trial=1, attempt=1, step=4)
    other = clone(store, saved.manifest, trial=2, attempt=1, step=9)
    assert discard(store, [saved.manifest], keep=[other.manifest]) == []
    assert sweep(store, [other.manifest], [(1, 1)]).blobs == []
    assert restore(store, [other.manifest], tmp_path / "restored").step == 9
    assert len(sweep(store, [], [(1, 1), (2, 1)]).blobs) == 5
    assert store.list("") == []


def test_the_manifest_of_one_rank_is_written_as_it_was_before_there_were_ranks(
    tmp_path: Path,
) -> None:
    """So that a manifest whose creation was not heard of is known again by another version, and
    read by both.
    """
    store = MemoryStore()
    saved = put(store, tmp_path, {"w": text("w")})
    (file,) = json.loads(store.read(saved.manifest))["manifest"]["files"]
    assert sorted(file) == ["executable", "key", "path", "sha256", "size"]
