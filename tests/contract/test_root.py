"""What every state root promises. A new adapter joins by a line in `ROOTS`."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from regrow.infra.state.places import Places
from regrow.infra.stores import Root, open_root
from regrow.infra.stores.local import LocalStore
from regrow.infra.stores.s3 import open_s3
from regrow.tasks.errors import UserError
from tests.memory_store import MemoryRoot

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("search", "tasks", "infra", "flows", "regrow/show", "regrow/apps", "regrow/cli")
ROOTS: dict[str, Callable[[pytest.FixtureRequest], Root]] = {
    "memory": lambda _: MemoryRoot(),
    "local": lambda request: open_root(str(request.getfixturevalue("tmp_path") / "state")),
    "s3": lambda request: open_root(request.getfixturevalue("s3")),
}
REGISTERED = [name for name in ROOTS if name != "memory"]


@pytest.fixture(params=ROOTS)
def root(request: pytest.FixtureRequest) -> Root:
    return ROOTS[request.param](request)


@pytest.fixture(params=REGISTERED)
def registered(request: pytest.FixtureRequest) -> Root:
    """A root that another process can open."""
    return ROOTS[request.param](request)


def test_a_root_that_is_not_there_is_empty(root: Root) -> None:
    assert root.experiments() == []
    assert not root.has("none")
    assert root.size("none") == (0, 0)
    assert root.store("none").list("") == []


def test_experiments_are_those_with_a_log(root: Root) -> None:
    for name in ("b", "a", "b-2"):
        root.store(name).create("log/1", b"")
    root.store("notes").create("notes/1", b"")
    assert root.experiments() == ["a", "b", "b-2"]
    assert root.experiments(known=["a"]) == ["a", "b", "b-2"]
    assert [name for name in ("a", "b", "notes", "log", "none") if root.has(name)] == ["a", "b"]
    root.store("a").delete(["log/1"])
    assert root.experiments() == ["b", "b-2"]
    assert not root.has("a")


def test_experiments_know_nothing_of_each_other(root: Root) -> None:
    for name in ("a", "ab"):
        root.store(name).create("log/1", name.encode())
    root.store("a").delete(root.store("a").list(""))
    assert root.store("ab").read("log/1") == b"ab"


def test_foreign_objects_in_a_bucket_are_no_experiments_and_no_keys(s3: str) -> None:
    root, place = open_root(s3), open_s3(s3)
    for name in ("a/", "a/log/", "a/notes/", "b/log/", ".tmp/log/x", f"{'c' * 256}/log/x"):
        place._run("", place._objects.put(f"{place._above}{name}", b""))
    root.store("a").create("log/1", b"")
    assert root.experiments() == ["a"]
    assert not root.has("b")
    assert root.store("a").list("") == root.store("a").list("log/") == ["log/1"]
    root.store("a").delete(root.store("a").list(""))
    assert root.experiments() == []


def test_a_file_whose_name_is_no_key_is_not_listed(tmp_path: Path) -> None:
    (store := LocalStore(tmp_path)).create("notes/1", b"")
    for name in (b"a\\b", b"\xff"):
        Path(os.fsdecode(bytes(tmp_path / "notes") + b"/" + name)).touch()
    assert store.list("notes/") == ["notes/1"]


@pytest.mark.parametrize("name", ["", "..", "../x", "/x", "x\\y"])
def test_a_name_that_is_no_key_is_no_experiment(root: Root, name: str) -> None:
    root.store("x").create("log/1", b"")
    assert not root.has(name)


def test_the_size_is_that_of_all_objects(root: Root) -> None:
    store = root.store("a")
    store.create("log/1", b"12345")
    store.create("blobs/0/1/x", b"123")
    root.store("b").create("log/1", b"1")
    assert root.size("a") == (2, 8)


def test_a_proof_leaves_nothing_behind_and_may_be_repeated(root: Root) -> None:
    root.check_writable()
    root.store("a").create("log/1", b"")
    root.check_writable()
    assert root.experiments() == ["a"]


def test_the_canonical_address_opens_the_same_root(registered: Root) -> None:
    registered.store("a").create("log/1", b"x")
    again = open_root(registered.url)
    assert (again.url, again.experiments()) == (registered.url, ["a"])


def test_a_store_goes_to_other_processes_by_pickle(registered: Root) -> None:
    registered.store("a").create("log/1", b"x")
    assert pickle.loads(pickle.dumps(registered.store("a"))).read("log/1") == b"x"


def test_opening_takes_paths_and_urls_and_creates_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "my state"
    for address in (str(folder), folder.as_uri(), f"{tmp_path}/./my state/"):
        assert open_root(address).url == str(folder)
        assert open_root(address).experiments() == []
    assert not folder.exists()
    assert open_root("s3://bucket//some/prefix/").url == "s3://bucket/some/prefix"


def test_a_package_brings_a_store_by_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "toy-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[regrow.stores]\ntoy = tests.memory_store:MemoryRoot\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    places = Places.at("toy://host/some/place?option=1")
    assert places.root == "toy://host/some/place?option=1"
    assert places.address("x", "log/1") == "toy://host/some/place/x/log/1?option=1"
    assert places.folder is None
    places.store("x").create("log/1", b"x")
    assert places.experiments() == ["x"]
    assert pickle.loads(pickle.dumps(places)) == places, "without the adapter"
    with pytest.raises(UserError, match=r"give a local path, file:// or s3:// or .*toy://"):
        open_root("gs://bucket")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "is empty; give a folder"),
        ("gs://bucket", "no store for 'gs'; give a local path, file:// or s3://"),
        ("memory://", "no store for 'memory'"),
        ("gs://me:hush@bucket", r"gs://me:\*\*\*@bucket: no store"),
        ("file://host/x", "three slashes"),
        ("file://[host/x", "is no address"),
        ("s3://[bucket/x", "is no address"),
        ("s3://bucket/x?endpoint_url=http://host:99999", "99999 is no address"),
        ("s3:/bucket/x", "a bucket has two slashes"),
    ],
)
def test_an_address_that_no_store_serves_is_refused_in_words(url: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        open_root(url)


def test_no_other_module_asks_for_a_scheme() -> None:
    """What differs between stores is a property of `Root`."""
    sources = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    assert len(sources) > 300
    asks = re.compile(
        r"""(startswith|endswith|removeprefix|partition)\(["'](s3|file)://|[=!]= *["']s3["']"""
    )
    assert [
        str(file.relative_to(ROOT))
        for file in sources
        if "infra/stores" not in str(file) and asks.search(file.read_text())
    ] == []
