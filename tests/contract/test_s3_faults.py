"""What the S3 store does when networks, servers, permissions and credentials fail: a real server behind a harmful proxy."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from regrow.infra import s3_server
from regrow.infra.stores import open_store
from regrow.infra.stores.s3 import S3Store
from regrow.infra.stores.s3_session import Patience, Place
from regrow.tasks.errors import UserError
from regrow.tasks.ports import Exists, Missing, Store, Unavailable
from tests.conftest import guarded_s3_server
from tests.contract.s3_proxy import Harm, Proxy, proxied

QUICK = Patience(connect=2.0, read=5.0, base=0.02, cap=0.2, total=60.0)
HASTY = Patience(connect=1.0, read=1.0, tries=2, base=0.02, cap=0.2, total=60.0)
READER = ("READERKEY", "a-reader-s-secret")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.S3Server]:
    """A server of this module's own, which knows a second user who may only read."""
    folder = tmp_path_factory.mktemp("s3")
    s3_server._make_credentials(folder)
    file = folder / "identities.json"
    known = json.loads(file.read_text())
    keys = [{"accessKey": READER[0], "secretKey": READER[1]}]
    known["identities"].append({"name": "reader", "credentials": keys, "actions": ["Read", "List"]})
    file.write_text(json.dumps(known))
    with guarded_s3_server(folder) as started:
        yield started


@pytest.fixture
def environment(server: s3_server.S3Server, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(server.credentials))
    return monkeypatch


@pytest.fixture
def proxy(server: s3_server.S3Server, environment: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxied(server.port) as between:
        yield between


def at(proxy: Proxy, patience: Patience = QUICK, *, bucket: str = "regrow", worked: bool = False) -> S3Store:
    """A store in a folder of its own behind the proxy."""
    place = Place(bucket=bucket, endpoint=proxy.endpoint, region=s3_server.REGION)
    return S3Store(place, uuid.uuid4().hex, patience=patience, worked=worked)


OPERATIONS: dict[str, Callable[[Store, Path], object]] = {
    "create": lambda store, _: store.create("new", b"content"),
    "create-large": lambda store, folder: store.create("large", large(folder)),
    "read": lambda store, _: store.read("k"),
    "fetch": lambda store, folder: store.fetch("k", folder / "fetched"),
    "list": lambda store, _: store.list(""),
    "delete": lambda store, _: store.delete(["k"]),
    "delete-together": lambda store, _: store.delete(["k", "never"], ordered=False),
}
small = pytest.mark.parametrize("operation", [name for name in OPERATIONS if name != "create-large"])


def large(folder: Path) -> Path:
    file = folder / "large"
    file.write_bytes(b"0123456789abcdef" * (40 << 16))  # 40 MB: three parts
    return file


# ---- what passes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [(503, "SlowDown"), (500, "InternalError"), (429, ""), (502, ""), Harm.LOSE_ANSWER], ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_that_passes_is_not_noticed(
    proxy: Proxy, operation: str, fault: Harm | tuple[int, str], tmp_path: Path
) -> None:
    store = at(proxy)
    store.create("k", b"content")
    proxy.harm(fault, times=3)
    OPERATIONS[operation](store, tmp_path)
    assert store.list("") == {"create": ["k", "new"], "create-large": ["k", "large"], "delete": [], "delete-together": []}.get(operation, ["k"])
    if operation == "create":
        assert store.read("new") == b"content"
    if operation == "create-large":
        assert store.read("large") == (tmp_path / "large").read_bytes()
    if operation == "fetch":
        assert (tmp_path / "fetched").read_bytes() == b"content"


@small
def test_retries_are_bounded_and_then_it_is_the_callers_turn(proxy: Proxy, operation: str, tmp_path: Path) -> None:
    store = at(proxy)
    store.create("k", b"content")
    proxy.requests.clear()
    proxy.harm((503, "SlowDown"), times=1000)
    with pytest.raises(Unavailable, match="503 SlowDown") as caught:
        OPERATIONS[operation](store, tmp_path)
    assert caught.value.key == {"create": "new", "list": ""}.get(operation, "k")
    assert len(proxy.requests) == QUICK.tries


def test_one_request_is_enough_for_a_small_object(proxy: Proxy, tmp_path: Path) -> None:
    store = at(proxy)
    (tmp_path / "file").write_bytes(b"content")
    works: list[Callable[[], object]] = [
        lambda: store.create("k", b"content"), lambda: store.create("f", tmp_path / "file"), lambda: store.read("k"),
        lambda: store.fetch("k", tmp_path / "x"), lambda: store.list(""), lambda: store.delete(["k"]),
    ]
    for work in works:
        proxy.requests.clear()
        work()
        assert len(proxy.requests) == 1


def test_a_thousand_objects_are_deleted_by_one_request(proxy: Proxy) -> None:
    store = at(proxy, Patience())  # one such request takes this server seconds
    keys = [f"{n % 7}/{n:04d}" for n in range(1200)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: store.create(key, b"x"), keys))
    assert store.size() == (1200, 1200)
    proxy.requests.clear()
    store.delete(keys, ordered=False)
    assert len(proxy.requests) == 2
    assert store.list("") == []


@pytest.mark.parametrize("answer", [(501, "NotImplemented"), (405, "MethodNotAllowed"), (403, "AccessDenied")])
def test_where_many_cannot_be_deleted_by_one_request_it_is_done_one_by_one(proxy: Proxy, answer: tuple[int, str]) -> None:
    store = at(proxy, Patience())  # one such request takes this server seconds
    for key in ("a", "b", "c"):
        store.create(key, b"x")
    proxy.harm(answer, times=1000, method="POST", query="delete")
    store.delete(["a", "b", "c"], ordered=False)
    assert store.list("") == []


def test_a_reset_in_the_middle_of_a_body_leaves_nothing_torn(proxy: Proxy, tmp_path: Path) -> None:
    store, data = at(proxy), os.urandom(3 << 20)
    proxy.harm(Harm.CUT_REQUEST, times=2, method="PUT")
    store.create("k", data)
    reads: list[Callable[[], bytes]] = [lambda: store.read("k"), lambda: fetched(store, "k", tmp_path)]
    for read in reads:
        proxy.harm(Harm.CUT_ANSWER, times=2, method="GET")
        assert read() == data
    file = large(tmp_path)
    proxy.harm(Harm.CUT_REQUEST, times=2, method="PUT", query="partNumber")
    store.create("large", file)
    proxy.harm(Harm.CUT_ANSWER, times=4, method="GET")
    assert fetched(store, "large", tmp_path) == file.read_bytes()


def fetched(store: Store, key: str, folder: Path) -> bytes:
    store.fetch(key, folder / "fetched")
    return (folder / "fetched").read_bytes()


# ---- the answer to a create is lost ---------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["create", "create-large"])
def test_a_create_whose_answer_was_lost_is_known_to_be_ones_own(proxy: Proxy, operation: str, tmp_path: Path) -> None:
    store = at(proxy)
    final = {"create": ("PUT", ""), "create-large": ("POST", "uploadId")}[operation]
    proxy.harm(Harm.LOSE_ANSWER, times=1, method=final[0], query=final[1])
    OPERATIONS[operation](store, tmp_path)  # not Exists: it is this very call's
    (key,) = store.list("")
    with pytest.raises(Exists):
        store.create(key, b"another's")


@pytest.mark.parametrize("operation", ["create", "create-large"])
def test_a_key_that_another_took_is_not_claimed_though_answers_were_lost(
    proxy: Proxy, operation: str, tmp_path: Path
) -> None:
    store = at(proxy)
    store.create({"create": "new", "create-large": "large"}[operation], b"content")  # the same bytes, for "new"
    proxy.harm(Harm.LOSE_ANSWER, times=3)
    with pytest.raises(Exists):
        OPERATIONS[operation](store, tmp_path)


def test_an_upload_that_vanished_is_begun_anew(proxy: Proxy, tmp_path: Path) -> None:
    store = at(proxy)
    proxy.harm((404, "NoSuchUpload"), times=1, method="POST", query="uploadId")
    store.create("large", large(tmp_path))
    assert store.read("large") == (tmp_path / "large").read_bytes()


# ---- nothing hangs --------------------------------------------------------------------------------------------------


@small
def test_a_server_that_hangs_is_given_up_in_time(proxy: Proxy, operation: str, tmp_path: Path) -> None:
    store = at(proxy, HASTY)
    store.create("k", b"content")
    proxy.harm(Harm.HANG, times=1)
    OPERATIONS[operation](store, tmp_path)
    proxy.harm(Harm.HANG, times=1000)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="no answer in time"):
        store.read("another")
    assert time.monotonic() - began < 20.0


def test_a_server_that_takes_no_bytes_is_given_up_in_time(environment: pytest.MonkeyPatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:  # accepts by the kernel alone
        place = Place(bucket="regrow", endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}")
        with pytest.raises(Unavailable):
            S3Store(place, patience=HASTY).create("k", bytes(8 << 10))


def test_an_interrupted_call_ends_and_the_store_can_still_be_used(proxy: Proxy) -> None:
    code = (
        "import os, signal, sys, threading; from regrow.infra.stores import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "threading.Timer(2.0, os.kill, [os.getpid(), signal.SIGINT]).start()\n"
        "try: store.read('k')\n"
        "except KeyboardInterrupt: print('interrupted', store.list(''))"
    )
    store = at(proxy)
    store.create("k", b"")
    proxy.harm(Harm.HANG, times=1, method="GET", query="/k")
    url = f"s3://regrow/{store._prefix}?endpoint_url={proxy.endpoint}"
    done = subprocess.run([sys.executable, "-c", code, url], text=True, capture_output=True, check=False, timeout=120)
    assert done.stdout == "interrupted ['k']\n", done.stderr


# ---- whose fault it is ----------------------------------------------------------------------------------------------


def test_a_missing_bucket_is_named(proxy: Proxy, tmp_path: Path) -> None:
    for operation in OPERATIONS.values():
        with pytest.raises(UserError, match=f"bucket 'no-such-bucket' does not exist at {proxy.endpoint}"):
            operation(at(proxy, bucket="no-such-bucket"), tmp_path)


def test_who_may_only_read_is_told_what_is_needed(proxy: Proxy, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    allowed = at(proxy)
    allowed.create("k", b"content")
    environment.setenv("AWS_ACCESS_KEY_ID", READER[0])
    environment.setenv("AWS_SECRET_ACCESS_KEY", READER[1])
    with proxied(proxy.server_port) as fresh:  # another address: a client of its own, which reads the variables
        place = Place(bucket="regrow", endpoint=fresh.endpoint, region=s3_server.REGION)
        reader = S3Store(place, allowed._prefix, patience=QUICK)
        assert reader.read("k") == b"content"
        for operation in ("create", "create-large", "delete"):
            with pytest.raises(UserError, match=r"'regrow'.*closed to the credentials.*403 AccessDenied.*s3:PutObject") as caught:
                OPERATIONS[operation](reader, tmp_path)
            assert READER[1] not in str(caught.value)


def test_a_wrong_secret_and_none_at_all_are_told_apart(proxy: Proxy, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("AWS_ACCESS_KEY_ID", READER[0])
    environment.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    with pytest.raises(UserError, match=r"does not accept the credentials \(from env\).*AWS_SECRET_ACCESS_KEY") as caught:
        at(proxy).list("")
    assert "not-the-secret" not in str(caught.value)
    environment.delenv("AWS_ACCESS_KEY_ID")
    environment.delenv("AWS_SECRET_ACCESS_KEY")
    environment.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    with pytest.raises(UserError, match=r"no credentials for the bucket 'regrow'.*AWS_PROFILE"):
        at(proxy).list("")


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


def test_an_address_where_nobody_answers_is_wrong_unless_it_was_right_before(environment: pytest.MonkeyPatch) -> None:
    place = Place(bucket="regrow", endpoint="http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"no S3 at http://127.0.0.1:9.*AWS_ENDPOINT_URL_S3"):
        S3Store(place, patience=QUICK).list("")
    with pytest.raises(Unavailable, match="nobody answers"):
        S3Store(place, patience=QUICK, worked=True).list("")


def test_a_server_that_overwrites_is_refused_before_anything_is_trusted_to_it(proxy: Proxy) -> None:
    at(proxy).prove()
    proxy.harm((200, ""), times=2, method="PUT")
    with pytest.raises(UserError, match="cannot create an object on the condition"):
        at(proxy).prove()


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "s3://b", "s3://bucket/../x", "s3://bucket/x?y=1", "s3://bucket?endpoint_url=host"])
def test_a_url_that_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=re.escape(url)):
        open_store(url)


def test_a_url_with_a_secret_is_refused_and_not_repeated() -> None:
    for url in ("s3://AKIA:hush@bucket/x", "s3://bucket/x?endpoint_url=http://AKIA:hush@host"):
        with pytest.raises(UserError, match="no credentials") as caught:
            open_store(url)
        assert "hush" not in str(caught.value)


# ---- processes ------------------------------------------------------------------------------------------------------


def test_a_store_goes_to_other_processes_without_credentials(proxy: Proxy, server: s3_server.S3Server) -> None:
    store = at(proxy)
    store.create("k", b"content")
    sent = pickle.dumps(store)
    for line in server.credentials.read_text().splitlines()[1:]:
        assert line.partition(" = ")[2].encode() not in sent
    code = "import pickle, sys; store = pickle.loads(sys.stdin.buffer.read()); assert 's3fs' not in sys.modules; print(store.read('k'))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], input=sent, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"b'content'\n", b"")


def test_what_is_larger_than_memory_streams_both_ways(server: s3_server.S3Server, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source, size = tmp_path / "source", 256 << 20
    with source.open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
    code = (
        "import resource, sys; from pathlib import Path; from regrow.infra.stores import open_store\n"
        "store = open_store(sys.argv[1]); store.create('small', b'')\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "before = peak(); store.create('k', Path(sys.argv[2])); store.fetch('k', Path(sys.argv[3])); print(peak() - before)"
    )
    url = f"s3://regrow/{uuid.uuid4().hex}?endpoint_url={server.endpoint}"
    target = tmp_path / "target"
    done = subprocess.run([sys.executable, "-c", code, url, source, target], text=True, capture_output=True, check=True)
    assert int(done.stdout) < 160, "megabytes"
    assert digest(source) == digest(target)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- the server dies -------------------------------------------------------------------------------------------------


def test_a_killed_server_loses_nothing_acknowledged_and_each_key_has_one_winner(
    server: s3_server.S3Server, environment: pytest.MonkeyPatch
) -> None:
    store = S3Store(Place(bucket="regrow", endpoint=server.endpoint, region=s3_server.REGION), uuid.uuid4().hex, patience=QUICK)
    store.list("")
    won: dict[str, list[bytes]] = {}
    uncertain: set[str] = set()
    done = threading.Event()
    errors: list[BaseException] = []

    def write(me: int) -> None:
        n = 0
        try:
            while not done.is_set():
                key, data = f"o/{n:05d}", b"%d:" % me + os.urandom(20_000)
                while True:
                    try:
                        store.create(key, data)
                        won.setdefault(key, []).append(data)
                    except Exists:
                        # After an error of ours it may be our own; a server that is away is asked again.
                        while key in uncertain:
                            with suppress(Unavailable):
                                if store.read(key) == data:
                                    won.setdefault(key, []).append(data)
                                break
                    except Unavailable:
                        uncertain.add(key)
                        continue
                    break
                n += 1
        except BaseException as error:  # noqa: BLE001 - told by the test
            errors.append(error)

    writers = [threading.Thread(target=write, args=(me,)) for me in range(3)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(2):
            reached = len(won) + 15
            while len(won) < reached and not errors:
                time.sleep(0.01)
            s3_server.stop(server.folder, at_once=True)
            s3_server.start(server.folder)
        reached = len(won) + 15
        while len(won) < reached and not errors:
            time.sleep(0.01)
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert errors == []
    assert uncertain or len(won) > 45
    assert {len(winners) for winners in won.values()} == {1}
    assert set(won) <= set(store.list(""))
    for key, (data,) in won.items():
        assert store.read(key) == data
    with pytest.raises(Missing):
        store.read("never")
