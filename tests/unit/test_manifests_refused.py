"""Manifests that mean harm: nothing is ever written outside of the folder, or read that is not the
checkpoint's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.tasks.checkpoint.manifests import Manifest, blob_key, manifest_key, seal, unseal
from regrow.tasks.checkpoint.saving import discard, restore
from regrow.tasks.ports.uploads import CheckpointFile
from tests.memory_store import MemoryStore
from tests.unit.checkpointed import three
from tests.unit.stores import replace

EVIL = [
    "/etc/passwd",
    "../out",
    "a/../../out",
    "..",
    ".",
    "",
    "a//b",
    "a/",
    "/",
    "./a",
    "C:\\x",
    "C:x",
    "c:/x",
    "\\\\host\\share",
    "..\\out",
    "a\0b",
    "x" * 256,
    "x/" * 600 + "x",
]


def forged(
    store: MemoryStore, files: list[str], folders: Iterable[str] = (), key: str | None = None
) -> str:
    data = b"evil"
    digest = hashlib.sha256(data).hexdigest()
    blob = blob_key(1, 1, digest)
    if blob not in store.list("blobs/"):
        store.create(blob, data)
    entries = [
        CheckpointFile(path=path, key=key or blob, sha256=digest, size=len(data), executable=True)
        for path in files
    ]
    name = manifest_key(1, 1, len(store.list("manifests/")) + 1)
    step = int(name[-15:-5])
    store.create(
        name, seal(Manifest(trial=1, attempt=1, step=step, files=entries, folders=list(folders)))
    )
    return name


@pytest.mark.parametrize("path", EVIL)
def test_a_path_out_of_the_folder_is_refused_and_nothing_written(path: str, tmp_path: Path) -> None:
    store = MemoryStore()
    for manifest in (forged(store, ["good", path]), forged(store, ["good"], folders=[path])):
        restored = restore(store, [manifest], tmp_path / "in" / "r")
        assert restored.manifest is None
        assert "path" in restored.skipped[0][1]
    assert list(tmp_path.rglob("*")) == [tmp_path / "in"]


@pytest.mark.parametrize("files", [["a", "a"], ["a", "a/b"], ["a/b", "a"], ["a/b/c", "a"]])
def test_paths_in_each_others_way_are_refused(files: list[str], tmp_path: Path) -> None:
    store = MemoryStore()
    assert restore(store, [forged(store, files)], tmp_path / "r").manifest is None


def test_a_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    assert restore(store, [forged(store, ["a"], folders=["a/b"])], tmp_path / "r").manifest is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.text(st.sampled_from("ab./\\:C\0~ "), max_size=8), max_size=4),
    st.lists(st.text("ab./"), max_size=2),
)
def test_no_manifest_ever_writes_outside_the_folder(files: list[str], folders: list[str]) -> None:
    with TemporaryDirectory() as name:
        tmp = Path(name)
        store = MemoryStore()
        (tmp / "in").mkdir()
        restore(store, [forged(store, files, folders)], tmp / "in" / "r")
        assert [path.name for path in tmp.iterdir()] == ["in"]
        assert [path.name for path in (tmp / "in").iterdir()] in (["r"], [])


@pytest.mark.parametrize(
    "key", ["log/0000000001.jsonl", "manifests/1/1/0000000001.json", "blobs/1/1/" + "0" * 64]
)
def test_a_manifest_refers_to_nothing_but_its_files_blobs(key: str, tmp_path: Path) -> None:
    store = MemoryStore()
    store.create("log/0000000001.jsonl", b"evil")
    manifest = forged(store, ["x"], key=key)
    assert "not its file's blob" in restore(store, [manifest], tmp_path / "r").skipped[0][1]
    discard(store, [manifest], keep=[])
    assert store.list("log/") == ["log/0000000001.jsonl"]


def test_a_manifest_in_another_ones_place_or_of_another_version_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    newest, older, _ = three(store, tmp_path)
    replace(store, newest, store.read(older))
    assert "step 2" in restore(store, [newest], tmp_path / "r").skipped[0][1]
    next_version = msgspec.structs.replace(unseal(older, store.read(older)), version=2)
    replace(store, older, seal(next_version))
    assert "version 2" in restore(store, [older], tmp_path / "r").skipped[0][1]
