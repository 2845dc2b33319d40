"""What every place promises that holds pages for browsers. A new adapter joins by a line in
`PLACES`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import s3fs

from regrow.infra.stores.pages import Pages, open_pages
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Missing

PLACES: dict[str, Callable[[pytest.FixtureRequest], str]] = {
    "folder": lambda request: str(request.getfixturevalue("tmp_path") / "pages"),
    "bucket": lambda request: str(request.getfixturevalue("s3")),
}
HTML = "text/html; charset=utf-8"


@pytest.fixture(params=PLACES)
def pages(request: pytest.FixtureRequest) -> Pages:
    return open_pages(PLACES[request.param](request))


def test_a_place_that_is_not_there_is_empty(pages: Pages) -> None:
    assert pages.list() == []
    with pytest.raises(Missing):
        pages.read("index.html")
    pages.delete(["index.html", "a/b"])


def test_a_file_is_replaced_from_bytes_and_from_a_file(pages: Pages, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"0123456789abcdef" * (2 << 20))  # several parts of a bucket
    pages.put("a/index.html", b"old", HTML)
    for _ in range(2):
        pages.put("a/index.html", b"", HTML)
        assert pages.read("a/index.html") == b""
        pages.put("a/index.html", large, HTML)
        assert pages.read("a/index.html") == large.read_bytes()[: 16 << 20]
    assert pages.list("a/") == pages.list() == ["a/index.html"]


def test_files_are_listed_and_deleted_by_prefix(pages: Pages) -> None:
    for key in ("index.html", "checkpoint/1/w.pt", "checkpoint/1/deep/w.pt", "checkpoint/2/w.pt"):
        pages.put(key, b"x", "application/octet-stream")
    assert len(pages.list(most=2)) == 2
    assert pages.list("index", most=2) == ["index.html"]
    pages.delete(pages.list("checkpoint/1/"))
    assert pages.list() == ["checkpoint/2/w.pt", "index.html"]


def test_a_reader_sees_the_old_file_or_the_new_one(pages: Pages) -> None:
    kinds = [letter * 300_000 for letter in (b"a", b"b")]
    pages.put("index.html", kinds[0], HTML)
    over = threading.Event()

    def write() -> None:
        try:
            for place in range(1, 12):
                pages.put("index.html", kinds[place % 2], HTML)
        finally:
            over.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not over.is_set():
        seen.add(pages.read("index.html"))
    writer.join()
    assert seen <= set(kinds)


@pytest.mark.parametrize("key", ["../x", "/x", "a/../../x", "", "a//b"])
def test_no_key_leads_out(pages: Pages, key: str) -> None:
    for act in (
        lambda: pages.put(key, b"x", HTML),
        lambda: pages.read(key),
        lambda: pages.delete([key]),
        lambda: pages.link(key),
    ):
        with pytest.raises(ValueError, match="key"):
            act()


def test_an_object_has_its_content_type_and_is_asked_for_each_time(s3: str, tmp_path: Path) -> None:
    pages = open_pages(s3)
    large = tmp_path / "large"
    large.write_bytes(b"x" * (17 << 20))
    files = s3fs.S3FileSystem()
    for data in (b"page", large):
        pages.put("index.html", data, HTML)
        head = files.call_s3("head_object", **_at(s3, "index.html"))
        assert (head["ContentType"], head["CacheControl"]) == (HTML, "no-cache")
    link = pages.link("a b.html")
    assert link.startswith("http")
    assert link.endswith(f"{s3.removeprefix('s3:/')}/a%20b.html"), "without credentials"


def _at(url: str, key: str) -> dict[str, str]:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Key": f"{prefix}/{key}"}


def test_a_folder_is_written_without_following_links_in_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "page").write_text("theirs")
    pages = open_pages((tmp_path / "pages").as_uri())
    pages.put("index.html", b"x", HTML)
    (tmp_path / "pages" / "sub").symlink_to(outside)
    (tmp_path / "pages" / "best.yaml").symlink_to(outside / "page")
    with pytest.raises(UserError, match="leads elsewhere"):
        pages.put("sub/page", b"x", HTML)
    with pytest.raises(UserError, match="leads elsewhere"):
        pages.delete(["sub/page"])
    pages.put("best.yaml", b"ours", HTML)
    assert (outside / "page").read_text() == "theirs"
    assert pages.list() == ["best.yaml", "index.html"]


@pytest.mark.parametrize("where", ["", "gs://me:hush@bucket", "memory://"])
def test_an_address_that_holds_no_pages_is_refused_in_words(where: str) -> None:
    with pytest.raises(UserError, match="holds no pages; give a folder, or s3://") as refused:
        open_pages(where)
    assert "hush" not in str(refused.value)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is no folder"):
        open_pages(str(tmp_path / "file")).list()
