"""Checkpoints: what is restored is what was saved, byte for byte, or it is not restored at all."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.infra.stores.local import LocalStore
from regrow.infra.stores.memory import MemoryStore
from regrow.tasks.checkpoints import CheckpointWriter, Restored, Saved, clone, discard, restore, save, sweep
from regrow.tasks.errors import UserError
from regrow.tasks.manifests import File, Manifest, Unsound, blob_key, manifest_key, seal, unseal
from regrow.tasks.ports import Exists, Missing, Unavailable

Tree = dict[str, tuple[bytes, bool] | None]
"""Path to content and execute bit; None for an empty folder."""


def plant(folder: Path, tree: Tree) -> Path:
    folder.mkdir(parents=True)
    for path, entry in tree.items():
        target = folder / path
        if entry is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(entry[0])
        target.chmod(0o755 if entry[1] else 0o644)
    return folder


def tree_of(folder: Path) -> Tree:
    tree: Tree = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_file():
            tree[name] = (path.read_bytes(), os.access(path, os.X_OK) and bool(path.stat().st_mode & 0o100))
        elif not any(path.iterdir()):
            tree[name] = None
    return tree


def put(store: MemoryStore, tmp: Path, tree: Tree, *, trial: int = 1, attempt: int = 1, step: int = 1) -> Saved:
    folder = plant(tmp / f"saved-{trial}-{attempt}-{step}", tree)
    return save(store, folder, trial=trial, attempt=attempt, step=step)


def text(content: str) -> tuple[bytes, bool]:
    return content.encode(), False


def replace(store: MemoryStore, key: str, data: bytes) -> None:
    store.delete([key])
    store.create(key, data)


# Saving and restoring

names = st.text(
    st.characters(codec="utf-8", exclude_characters="/\\\0", exclude_categories=["Cs"]),
    min_size=1,
    max_size=20,
).filter(lambda name: name not in {".", ".."} and name[1:2] != ":")
paths = st.lists(names, min_size=1, max_size=3).map("/".join)
entries = st.none() | st.tuples(st.binary(max_size=200), st.booleans())


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    tree: Tree = {}
    for path, entry in draw(st.dictionaries(paths, entries, max_size=8)).items():
        in_the_way = any(p == path or p.startswith(path + "/") or path.startswith(p + "/") for p in tree)
        if not in_the_way:
            tree[path] = entry
    return tree


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
    assert save(store, first, trial=1, attempt=1, step=1, known=known).uploaded == len("same" + "one")
    assert save(store, second, trial=1, attempt=1, step=2, known=known).uploaded == len("two!!")
    assert save(store, second, trial=1, attempt=1, step=3).uploaded == 0
    assert set(known) == set(store.list("blobs/1/1/"))
    assert save(store, second, trial=1, attempt=2, step=3).uploaded == len("same" + "two!!")  # another lease


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


def test_saving_the_same_again_is_fine_and_something_else_at_that_step_is_not(tmp_path: Path) -> None:
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
    assert tree_of(tmp_path / "r") == {"real/x": text("x"), "file": text("x"), "folder/x": text("x")}


def test_a_folder_that_cannot_be_saved_is_the_users_error_and_names_the_entry(tmp_path: Path) -> None:
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
    folder = plant(tmp_path / "fifo", {"sub/x": text("x")})
    os.mkfifo(folder / "bad")
    cases.append((folder, "'bad' is neither a file nor a folder"))
    for name, why in ((b"\xffbad", "UTF-8"), (b"C:bad", "Windows"), (b"back\\bad", "not a plain one")):
        folder = plant(tmp_path / f"{len(os.listdir(tmp_path))}", {"sub/x": text("x")})
        Path(os.fsdecode(os.path.join(os.fsencode(folder), name))).write_bytes(b"")
        cases.append((folder, f"bad.*{why}"))
    store = MemoryStore()
    for folder, why in cases:
        with pytest.raises(UserError, match=why):
            save(store, folder, trial=1, attempt=1, step=1)
    assert store.list("") == []


# Damage


def three(store: MemoryStore, tmp: Path) -> list[str]:
    """Manifests of three checkpoints, newest first."""
    return [
        put(store, tmp, {"w": text(f"weights {i}"), "sub/o": text(f"optimizer {i}")}, step=i).manifest for i in (3, 2, 1)
    ]


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
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("saved")) == ["r"]


def test_a_store_out_of_reach_is_no_reason_to_fall_back(tmp_path: Path) -> None:
    class Away(MemoryStore):
        def fetch(self, key: str, path: Path) -> None:
            raise Unavailable(key, "network")

    store = Away()
    with pytest.raises(Unavailable):
        restore(store, three(store, tmp_path), tmp_path / "r")
    assert not (tmp_path / "r").exists()


# Manifests that mean harm

EVIL = [
    "/etc/passwd", "../out", "a/../../out", "..", ".", "", "a//b", "a/", "/", "./a", "C:\\x", "C:x", "c:/x",
    "\\\\host\\share", "..\\out", "a\0b", "x" * 256, "x/" * 600 + "x",
]


def forged(store: MemoryStore, files: list[str], folders: Iterable[str] = (), key: str | None = None) -> str:
    data = b"evil"
    digest = hashlib.sha256(data).hexdigest()
    blob = blob_key(1, 1, digest)
    if blob not in store.list("blobs/"):
        store.create(blob, data)
    entries = [File(path=path, key=key or blob, sha256=digest, size=len(data), executable=True) for path in files]
    name = manifest_key(1, 1, len(store.list("manifests/")) + 1)
    step = int(name[-15:-5])
    store.create(name, seal(Manifest(trial=1, attempt=1, step=step, files=entries, folders=list(folders))))
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


@pytest.mark.parametrize("key", ["log/0000000001.jsonl", "manifests/1/1/0000000001.json", "blobs/1/1/" + "0" * 64])
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


# Deleting


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


def test_discard_leaves_the_blobs_of_other_attempts_and_those_a_clone_refers_to(tmp_path: Path) -> None:
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
            super().delete(keys)

    deleted: list[str] = []
    store = Recording()
    manifests = three(store, tmp_path)
    discard(store, manifests[:1], keep=manifests[1:])
    sweep(store, [], [(1, 1)])
    kinds = [key.split("/")[0] for key in deleted]
    assert kinds == ["manifests"] + ["blobs"] * 2 + ["manifests"] * 2 + ["blobs"] * 4


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
    swept = sweep(store, {manifests[1], manifest_key(5, 5, 5)}, [(1, 1), (9, 9)])
    assert swept.manifests == sorted([manifests[0], manifests[2]])
    assert orphan in swept.blobs
    kept = [manifests[1], *(file.key for file in unseal(manifests[1], store.read(manifests[1])).files)]
    assert store.list("") == sorted(["log/0000000001.jsonl", foreign, *kept])


def test_what_is_no_manifest_is_never_deleted_as_one() -> None:
    store = MemoryStore()
    store.create("log/0000000001.jsonl", b"")
    with pytest.raises(ValueError, match="no manifest"):
        discard(store, ["log/0000000001.jsonl"], keep=[])
    assert store.list("") == ["log/0000000001.jsonl"]


def test_unsound_says_which_trial_it_found(tmp_path: Path) -> None:
    store = MemoryStore()
    manifest = put(store, tmp_path, {}, trial=4, attempt=2, step=9).manifest
    with pytest.raises(Unsound, match="trial 4, attempt 2, step 9"):
        unseal(manifest_key(4, 3, 9), store.read(manifest))


# The writer


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


def test_submit_returns_at_once_until_one_is_queued_behind_the_one_in_flight(tmp_path: Path) -> None:
    store = Gated()
    writer = CheckpointWriter(store, trial=1, attempt=1)
    for step in (1, 2):
        writer.submit(plant(tmp_path / f"{step}", {"w": text(f"{step}")}), step)
        if step == 1:
            assert store.waiting.acquire(timeout=30)  # in flight
    third = threading.Thread(target=writer.submit, args=(plant(tmp_path / "3", {"w": text("3")}), 3))
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


def test_a_failed_checkpoint_is_kept_for_the_caller_and_the_next_one_goes_on(tmp_path: Path) -> None:
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
    assert [(f.step, type(f.error)) for f in writer.errors()] == [(2, PermissionError), (4, FileNotFoundError)]
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
    assert clone(store, copy.manifest, trial=7, attempt=1, step=4) == copy, "again, as after a lost answer"


def test_what_cannot_be_restored_cannot_be_cloned(tmp_path: Path) -> None:
    store = MemoryStore()
    with pytest.raises(Missing):
        clone(store, manifest_key(1, 1, 1), trial=2, attempt=1, step=1)
    store.create(manifest_key(1, 1, 1), b"{}")
    with pytest.raises(Unsound):
        clone(store, manifest_key(1, 1, 1), trial=2, attempt=1, step=1)
    assert store.list("manifests/2") == []


class Away(MemoryStore):
    """A store that is out of reach until `back` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.back, self.asked = threading.Event(), threading.Event()

    def create(self, key: str, data: bytes | Path) -> None:
        if not self.back.is_set():
            self.asked.set()
            raise Unavailable(key, "network")
        super().create(key, data)


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
        "checkpoints cannot be saved", "checkpoints can be saved again"
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


def test_dropping_never_takes_a_blob_from_a_checkpoint_that_is_still_on_its_way(tmp_path: Path) -> None:
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
