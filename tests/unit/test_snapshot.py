"""The snapshot of an experiment's code: what it has, how it is read back, and when it is used."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from regrow.infra.log.log import Log
from regrow.infra.state import snapshot
from regrow.infra.state.experiments import prepare
from regrow.infra.state.places import Places
from regrow.infra.state.spec_file import changed_spec
from regrow.search.events import encode
from regrow.tasks.errors import UserError
from tests.memory_store import MemoryStore
from tests.unit.simulated import created, opened


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    for name, text in {
        "work.py": "import lib.model\n",
        "lib/model.py": "x = 1\n",
        "table.csv": "1,2\n",
        "ignored.bin": "made by a run",
        ".env": "KEY=secret",
        "secrets.yaml": "password: secret",
        ".gitignore": "*.bin\n",
        "large.json": "0" * (snapshot.MOST_BYTES + 1),
    }.items():
        (folder / name).write_text(text)
    (folder / "lib" / "run.sh").write_text("exit 0\n")
    (folder / "lib" / "run.sh").chmod(0o755)
    (folder / "out").symlink_to("/etc/hostname")
    return folder


def taken(store: MemoryStore, folder: Path) -> tuple[str, list[str]]:
    key, left_out = snapshot.save(store, str(folder), None)
    assert key is not None
    return key, left_out


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_it_has_what_git_knows_without_secrets_links_and_large_files(
    project: Path, tmp_path: Path
) -> None:
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    store = MemoryStore()
    key, left_out = taken(store, project)
    assert left_out == ["large.json"]
    restored = snapshot.restore(store, key, tmp_path / "code")
    assert files(restored) == {"work.py", "lib/model.py", "lib/run.sh", "table.csv"}
    assert (restored / "lib" / "run.sh").stat().st_mode & 0o777 == 0o700
    assert (restored / "work.py").stat().st_mode & 0o777 == 0o600
    assert snapshot.restore(store, key, tmp_path / "code") == restored
    assert snapshot.save(store, str(project), key) == (key, left_out), "the same code, the same key"
    (project / "work.py").write_text("changed\n")
    assert taken(store, project)[0] != key


def test_without_git_it_has_the_source_files(project: Path, tmp_path: Path) -> None:
    store = MemoryStore()
    key, _ = taken(store, project)
    restored = snapshot.restore(store, key, tmp_path / "code")
    assert files(restored) == {"work.py", "lib/model.py", "lib/run.sh"}


def test_what_is_not_what_its_hash_says_is_refused(project: Path, tmp_path: Path) -> None:
    store = MemoryStore()
    key, _ = taken(store, project)
    some = next(one for one in store.list(snapshot.PREFIX) if one != key)
    store.delete([some])
    store.create(some, b"import os")
    with pytest.raises(UserError, match=r"does not match|damaged"):
        snapshot.restore(store, key, tmp_path / "code")
    store.delete([some])
    with pytest.raises(UserError, match="damaged"):
        snapshot.restore(store, key, tmp_path / "code")
    assert list((tmp_path / "code").iterdir()) == [], "nothing is left of it"


@pytest.mark.parametrize("path", ["../work.py", "/work.py", "a/../../work.py", "", "a\\b", "a//b"])
def test_no_path_leaves_its_folder(path: str, tmp_path: Path) -> None:
    store, content = MemoryStore(), b"x"
    digest = hashlib.sha256(content).hexdigest()
    listed = msgspec.json.encode([[path, digest, False]])
    key = f"{snapshot.PREFIX}{hashlib.sha256(listed).hexdigest()}.json"
    store.create(snapshot.PREFIX + digest, content)
    store.create(key, listed)
    with pytest.raises(UserError, match="damaged"):
        snapshot.restore(store, key, tmp_path / "code")
    assert not (tmp_path / "work.py").exists()


@pytest.mark.parametrize("key", ["snapshot/{}.json", "snapshot/../{}.json", "snapshot/x.json"])
def test_no_key_leads_out_of_the_folder(key: str, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    with pytest.raises(UserError, match="none of regrow's"):
        snapshot.restore(MemoryStore(), key.format(tmp_path / "outside"), tmp_path / "code")


def test_a_restored_file_that_was_changed_is_not_used(project: Path, tmp_path: Path) -> None:
    store = MemoryStore()
    key, _ = taken(store, project)
    restored = snapshot.restore(store, key, tmp_path / "code")
    (restored / "work.py").write_text("import os\n")
    with pytest.raises(UserError, match=r"work\.py was changed"):
        snapshot.restore(store, key, tmp_path / "code")


def test_resuming_takes_the_current_folder_before_the_snapshot(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places.at(str(tmp_path / "elsewhere" / "state")).writable()
    store = places.store("x")
    key, _ = snapshot.save(store, str(project), None)
    gone = str(tmp_path / "gone" / "project")
    first = encode(created(name="x", working_dir=gone))
    second = encode(msgspec.structs.replace(opened(0.0), environment={"snapshot": key}))
    Log.open(store).claim([first, second])
    monkeypatch.chdir(tmp_path / "elsewhere")
    prepared = prepare(places, "x", None, trials=None, code=None)
    assert prepared.folder is not None
    assert files(Path(prepared.folder)) >= {"work.py", "lib/model.py"}
    [line] = prepared.changes
    assert line.startswith(f"code: {gone} is not here; used is the snapshot in the state")
    monkeypatch.chdir(project.parent)  # a checkout of it
    here = prepare(places, "x", None, trials=None, code=None)
    assert here.folder == str(project)
    assert replace(here, stored=None).changes == []
    monkeypatch.chdir(tmp_path / "elsewhere")
    named = changed_spec(places, "x", {"working_dir": str(project)})  # by --code
    given = prepare(places, "x", named, trials=None, code=None)
    assert (given.folder, given.restored) == (str(project), None)
