"""Checkpoints: what is restored is what was saved, byte for byte, or it is not restored at all."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings

from regrow.infra.stores.local import LocalStore
from regrow.tasks.checkpoint import saving
from regrow.tasks.checkpoint.manifests import unseal
from regrow.tasks.checkpoint.saving import Restored, restore, save
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Exists, Unavailable
from tests.memory_store import MemoryStore
from tests.unit.checkpointed import Tree, plant, put, text, three, tree_of, trees
from tests.unit.stores import replace


@settings(max_examples=40, deadline=None)
@given(trees())
def test_what_is_restored_is_what_was_saved(tree: Tree) -> None:
    with TemporaryDirectory() as name:
        tmp = Path(name)
        store = LocalStore(tmp / "store")
        plant(tmp / "folder", tree)
        saved = save(store, tmp / "folder", trial=3, attempt=2, step=7)
        files = [entry[0] for entry in tree.values() if entry is not None]
        assert (saved.step, saved.files, saved.size) == (7, len(files), sum(map(len, files)))
        assert saved.manifest == "manifests/3/2/0000000007.json"
        assert saved.uploaded == sum(map(len, set(files)))
        assert tree_of(tmp / "folder") == tree
        restored = restore(store, [saved.manifest], tmp / "restored")
        assert restored == Restored(manifest=saved.manifest, step=7, skipped=[])
        assert tree_of(tmp / "restored") == tree
        assert not [path for path in tmp.iterdir() if path.name.startswith(".restored")]


def test_equal_files_of_an_attempt_are_stored_once(tmp_path: Path) -> None:
    store = MemoryStore()
    known: dict[str, int] = {}
    first = plant(tmp_path / "a", {"x": text("same"), "y": text("same"), "z": text("one")})
    second = plant(tmp_path / "b", {"moved/x": text("same"), "z": text("two!!")})
    assert save(store, first, trial=1, attempt=1, step=1, known=known).uploaded == len(
        "same" + "one"
    )
    assert save(store, second, trial=1, attempt=1, step=2, known=known).uploaded == len("two!!")
    assert save(store, second, trial=1, attempt=1, step=3).uploaded == 0
    assert set(known) == set(store.list("blobs/1/1/"))
    # another lease
    assert save(store, second, trial=1, attempt=2, step=3).uploaded == len("same" + "two!!")


def test_a_file_that_is_known_is_not_sent_again(tmp_path: Path) -> None:
    class Counting(MemoryStore):
        created = 0

        def create(self, key: str, data: bytes | Path) -> None:
            self.created += 1
            super().create(key, data)

    store, known = Counting(), dict[str, int]()
    folder = plant(tmp_path / "a", {"x": text("x"), "y": text("y")})
    save(store, folder, trial=1, attempt=1, step=1, known=known)
    store.created = 0
    save(store, folder, trial=1, attempt=1, step=2, known=known)
    assert store.created == 1  # the manifest


def test_saving_the_same_again_is_fine_and_something_else_at_that_step_is_not(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    folder = plant(tmp_path / "a", {"x": text("x")})
    first = save(store, folder, trial=1, attempt=1, step=1)
    assert save(store, folder, trial=1, attempt=1, step=1).manifest == first.manifest
    (folder / "x").write_bytes(b"other")
    with pytest.raises(Exists, match=first.manifest):
        save(store, folder, trial=1, attempt=1, step=1)


def test_nothing_is_committed_when_a_blob_cannot_be_stored(tmp_path: Path) -> None:
    class Full(MemoryStore):
        def create(self, key: str, data: bytes | Path) -> None:
            if key.startswith("blobs/") and isinstance(data, Path) and data.name == "y":
                raise Unavailable(key, "disk full")
            super().create(key, data)

    store = Full()
    with pytest.raises(Unavailable):
        put(store, tmp_path, {"x": text("x"), "y": text("y"), "z": text("z")})
    assert store.list("manifests/") == []


def test_links_within_the_folder_are_saved_as_what_they_point_to(tmp_path: Path) -> None:
    store = MemoryStore()
    folder = plant(tmp_path / "a", {"real/x": text("x")})
    (folder / "file").symlink_to("real/x")
    (folder / "folder").symlink_to(folder / "real")
    saved = save(store, folder, trial=1, attempt=1, step=1)
    restore(store, [saved.manifest], tmp_path / "r")
    assert tree_of(tmp_path / "r") == {
        "real/x": text("x"),
        "file": text("x"),
        "folder/x": text("x"),
    }


def test_a_folder_that_cannot_be_saved_is_the_users_error_and_names_the_entry(
    tmp_path: Path,
) -> None:
    def link(target: str | Path) -> Path:
        folder = plant(tmp_path / f"{len(os.listdir(tmp_path))}", {"sub/x": text("x")})
        (folder / "sub" / "bad").symlink_to(target)
        return folder

    (tmp_path / "secret").write_bytes(b"")
    cases = [
        (link(tmp_path / "secret"), "bad' is a link out of the folder"),
        (link("/etc"), "bad' is a link out of the folder"),
        (link("../../secret"), "bad' is a link out of the folder"),
        (link("nowhere"), "bad' leads nowhere"),
        (link("bad"), "bad' leads nowhere"),
        (link("."), "bad' is a link to a folder that it lies in"),
        (link(".."), "bad' is a link to a folder that it lies in"),
    ]
    other = link("../other")
    (other / "other").mkdir()
    (other / "other" / "back").symlink_to("../sub")
    cases.append((other, "'other/back/bad' is a link to a folder that it lies in"))
    folder = plant(tmp_path / "fifo", {"sub/x": text("x")})
    os.mkfifo(folder / "bad")
    cases.append((folder, "'bad' is neither a file nor a folder"))
    for name, why in (
        (b"\xffbad", "UTF-8"),
        (b"C:bad", "Windows"),
        (b"back\\bad", "not a plain one"),
    ):
        folder = plant(tmp_path / f"{len(os.listdir(tmp_path))}", {"sub/x": text("x")})
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_bytes(b"")
        cases.append((folder, f"bad.*{why}"))
    store = MemoryStore()
    for folder, why in cases:
        with pytest.raises(UserError, match=why):
            save(store, folder, trial=1, attempt=1, step=1)
    assert store.list("") == []


def test_a_file_that_grows_while_it_is_saved_is_refused_and_leaves_no_blob_behind(
    tmp_path: Path,
) -> None:
    folder = plant(tmp_path / "folder", {"log": text("x"), "w": text("w")})

    class Busy(MemoryStore):
        def create(self, key: str, data: bytes | Path) -> None:
            if isinstance(data, Path) and data.name == "log":
                data.write_bytes(data.read_bytes() + b"more")
            super().create(key, data)

    store = Busy()
    with pytest.raises(UserError, match="'log' was written to while it was saved"):
        save(store, folder, trial=1, attempt=1, step=1)
    assert store.list("") == []


@pytest.mark.parametrize("what", ["comes", "goes", "goes before it is read"])
def test_so_is_one_that_comes_or_goes_meanwhile(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = plant(tmp_path / "folder", {"sub/log": text("x"), "w": text("w")})

    def change() -> bool:
        if what == "comes":
            (folder / "sub" / "log.2").write_bytes(b"")
        else:
            (folder / "sub" / "log").unlink(missing_ok=True)
        return False

    class Busy(MemoryStore):
        def create(self, key: str, data: bytes | Path) -> None:
            change()
            super().create(key, data)

    if what == "goes before it is read":
        read = saving.digest_of
        monkeypatch.setattr(saving, "digest_of", lambda path: change() or read(path))
    store = Busy()
    with pytest.raises(UserError, match=r"'sub/log.*' was written to while it was saved"):
        save(store, folder, trial=1, attempt=1, step=1)
    assert store.list("") == []


def test_any_damaged_byte_of_any_blob_or_the_manifest_is_detected_and_the_one_before_restored(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    newest, older, _ = three(store, tmp_path)
    blobs = [file.key for file in unseal(newest, store.read(newest)).files]
    tries = 0
    for key in (newest, *blobs):
        good = store.read(key)
        for at in range(len(good)):
            replace(store, key, good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
            tries += 1
            restored = restore(store, [newest, older], tmp_path / f"r{tries}")
            assert (restored.manifest, restored.step) == (older, 2)
            ((skipped, why),) = restored.skipped
            assert skipped == newest
            assert why
        for damaged in (good[:-1], b"", good + b"\n" * (key != newest)):
            if damaged != good:
                replace(store, key, damaged)
                tries += 1
                assert restore(store, [newest, older], tmp_path / f"r{tries}").manifest == older
        replace(store, key, good)
    assert restore(store, [newest, older], tmp_path / "r").manifest == newest


def test_what_is_missing_falls_back_with_the_reason(tmp_path: Path) -> None:
    store = MemoryStore()
    newest, middle, oldest = three(store, tmp_path)
    store.delete([newest, unseal(middle, store.read(middle)).files[0].key])
    restored = restore(store, [newest, middle, oldest], tmp_path / "r")
    assert restored.manifest == oldest
    assert [key for key, _ in restored.skipped] == [newest, middle]
    assert all("does not exist" in why for _, why in restored.skipped)
    assert tree_of(tmp_path / "r") == {"w": text("weights 1"), "sub/o": text("optimizer 1")}
    assert sorted(
        path.name for path in tmp_path.iterdir() if not path.name.startswith("saved")
    ) == ["r"]


def test_a_store_out_of_reach_is_no_reason_to_fall_back(tmp_path: Path) -> None:
    class Away(MemoryStore):
        def fetch(self, key: str, path: Path) -> None:
            raise Unavailable(key, "network")

    store = Away()
    with pytest.raises(Unavailable):
        restore(store, three(store, tmp_path), tmp_path / "r")
    assert not (tmp_path / "r").exists()
