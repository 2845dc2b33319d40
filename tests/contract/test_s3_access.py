"""What the S3 store does where permissions, credentials or addresses are wrong, and in other
processes.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from regrow.infra.local import s3_server
from regrow.infra.stores import open_root
from regrow.infra.stores.s3 import S3Store
from regrow.infra.stores.s3_session import BucketAddress
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Unavailable
from tests.contract.behind_proxy import OPERATIONS, QUICK, READER, at
from tests.contract.s3_proxy import Proxy, proxied

# ---- whose fault it is


def test_a_missing_bucket_is_named(proxy: Proxy, tmp_path: Path) -> None:
    for operation in OPERATIONS.values():
        with pytest.raises(
            UserError, match=f"bucket 'no-such-bucket' does not exist at {proxy.endpoint}"
        ):
            operation(at(proxy, bucket="no-such-bucket"), tmp_path)


def test_who_may_only_read_is_told_what_is_needed(
    proxy: Proxy, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    allowed = at(proxy)
    allowed.create("k", b"content")
    environment.setenv("AWS_ACCESS_KEY_ID", READER[0])
    environment.setenv("AWS_SECRET_ACCESS_KEY", READER[1])
    # another address: a client of its own, which reads the variables
    with proxied(proxy.server_port) as fresh:
        place = BucketAddress(bucket="regrow", endpoint=fresh.endpoint, region=s3_server.REGION)
        reader = S3Store(place, allowed._prefix, patience=QUICK)
        assert reader.read("k") == b"content"
        for operation in ("create", "create-large", "delete"):
            with pytest.raises(
                UserError,
                match=r"'regrow'.*closed to the credentials.*403 AccessDenied.*s3:PutObject",
            ) as caught:
                OPERATIONS[operation](reader, tmp_path)
            assert READER[1] not in str(caught.value)


def test_a_wrong_secret_and_none_at_all_are_told_apart(
    proxy: Proxy, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("AWS_ACCESS_KEY_ID", READER[0])
    environment.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(
        UserError, match=r"does not accept the credentials \(from env\).*AWS_SECRET_ACCESS_KEY"
    ) as caught:
        at(proxy).list("")
    assert "not-the-secret" not in str(caught.value)
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    with pytest.raises(UserError, match=r"no credentials for the bucket 'regrow'.*AWS_PROFILE"):
        at(proxy).list("")


def test_what_cannot_be_sent_at_all_is_no_cut_connection(
    proxy: Proxy, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("AWS_ACCESS_KEY_ID", "key\nkey")
    environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(UserError, match=r"does not accept the credentials.*header"):
        at(proxy).list("")
    environment.setenv("AWS_CA_BUNDLE", "/nowhere")
    with (
        proxied(proxy.server_port) as another,  # another address: a client of its own
        pytest.raises(UserError, match=r"file of certificates.*AWS_CA_BUNDLE"),
    ):
        at(another).list("")


def test_credentials_that_expire_are_waited_for_once_they_were_good(
    proxy: Proxy, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proxy.harm((400, "ExpiredToken"), times=1)
    with pytest.raises(UserError, match=r"have expired.*renew"):
        at(proxy).list("")
    store = at(proxy)
    store.create("k", b"content")
    proxy.harm((400, "ExpiredToken"), times=1)
    with pytest.raises(Unavailable, match=r"have expired.*renew"):
        store.read("k")
    assert store.read("k") == b"content", "renewed"
    # As on a worker that came later: the store worked for who sent it.
    proxy.harm((400, "ExpiredToken"), times=1)
    with pytest.raises(Unavailable):
        pickle.loads(pickle.dumps(store)).read("k")


def test_renewed_credentials_are_read_by_the_running_process(
    proxy: Proxy, environment: pytest.MonkeyPatch, server: s3_server.S3Server, tmp_path: Path
) -> None:
    file = tmp_path / "credentials"
    file.write_text(server.credentials.read_text())
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    store = at(proxy)
    store.create("k", b"content")
    file.write_text("[default]\naws_access_key_id = OLD\naws_secret_access_key = old\n")
    proxy.harm((400, "ExpiredToken"), times=1)
    for _ in range(2):
        with pytest.raises(Unavailable):
            store.read("k")
    file.write_text(server.credentials.read_text())
    assert store.read("k") == b"content"


def test_an_address_where_nobody_answers_is_wrong_unless_it_was_right_before(
    environment: pytest.MonkeyPatch,
) -> None:
    place = BucketAddress(bucket="regrow", endpoint="http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"no S3 at http://127.0.0.1:9.*AWS_ENDPOINT_URL_S3"):
        S3Store(place, patience=QUICK).list("")
    with pytest.raises(Unavailable, match="no server answers"):
        S3Store(place, patience=QUICK, worked=True).list("")


def test_a_server_that_overwrites_is_refused_before_anything_is_trusted_to_it(proxy: Proxy) -> None:
    at(proxy).check_writable()
    proxy.harm((200, ""), times=2, method="PUT")
    with pytest.raises(UserError, match="cannot create an object on the condition"):
        at(proxy).check_writable()


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///x",
        "s3://b",
        "s3://bucket/../x",
        "s3://bucket/x?y=1",
        "s3://bucket?endpoint_url=host",
    ],
)
def test_a_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=re.escape(url)):
        open_root(url)


def test_a_url_with_a_secret_is_refused_and_not_repeated() -> None:
    for url in ("s3://AKIA:hush@bucket/x", "s3://bucket/x?endpoint_url=http://AKIA:hush@host"):
        with pytest.raises(UserError, match="no credentials") as caught:
            open_root(url)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_an_endpoint_without_its_scheme_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv(name, "minio:9000")
    with pytest.raises(UserError, match=f"{name}=minio:9000 is no address.*http://host:port"):
        open_root("s3://bucket/x")
    monkeypatch.setenv(name, "http://minio:99999")
    with pytest.raises(UserError, match=f"{name}=http://minio:99999 is no address.*range"):
        open_root("s3://bucket/x")
    open_root("s3://bucket/x?endpoint_url=http://minio:9000")


# ---- processes


def test_a_store_goes_to_other_processes_without_credentials(
    proxy: Proxy, server: s3_server.S3Server
) -> None:
    store = at(proxy)
    store.create("k", b"content")
    sent = pickle.dumps(store)
    for line in server.credentials.read_text().splitlines()[1:]:
        assert line.partition(" = ")[2].encode() not in sent
    code = "import pickle, sys; store = pickle.loads(sys.stdin.buffer.read()); assert 's3fs' not in sys.modules; print(store.read('k'))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], input=sent, capture_output=True, check=False
    )
    assert (done.stdout, done.stderr) == (b"b'content'\n", b"")


def test_what_is_larger_than_memory_streams_both_ways(
    server: s3_server.S3Server, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, size = tmp_path / "source", 192 << 20
    with source.open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
    code = (
        "import resource, sys; from pathlib import Path; from regrow.infra.stores.s3 import open_s3\n"
        "store = open_s3(sys.argv[1]); store.create('small', b'')\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = peak(); store.create('k', Path(sys.argv[2])); store.fetch('k', Path(sys.argv[3])); print(peak() - before)"
    )
    url = f"s3://regrow/{uuid.uuid4().hex}?endpoint_url={server.endpoint}"
    target = tmp_path / "target"
    done = subprocess.run(
        [sys.executable, "-c", code, url, source, target],
        text=True,
        capture_output=True,
        check=True,
    )
    assert int(done.stdout) < 160, "megabytes"
    assert digest(source) == digest(target)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
