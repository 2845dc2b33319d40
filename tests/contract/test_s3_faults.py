"""What the S3 store does when networks and servers fail: a real server behind a harmful proxy."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from regrow.infra.local import s3_server
from regrow.infra.stores.s3 import S3Store
from regrow.infra.stores.s3_session import BucketAddress, Patience
from regrow.tasks.ports.store import Exists, Missing, Store, Unavailable
from tests.contract.behind_proxy import OPERATIONS, QUICK, at, large, small
from tests.contract.s3_proxy import Harm, Proxy, Where

HASTY = Patience(connect=1.0, read=1.0, tries=2, base=0.02, cap=0.2, total=60.0)


# ---- what passes


ANSWERS: list[tuple[int, str] | Harm] = [(503, "SlowDown"), Harm.LOSE_ANSWER]


@pytest.mark.parametrize(
    ("operation", "fault"),
    [(operation, fault) for operation in OPERATIONS for fault in ANSWERS]
    + [("create", (500, "InternalError")), ("read", (429, "")), ("list", (502, ""))],
    ids=str,
)
def test_a_fault_that_passes_is_not_noticed(
    proxy: Proxy, operation: str, fault: Harm | tuple[int, str], tmp_path: Path
) -> None:
    store = at(proxy)
    store.create("k", b"content")
    proxy.harm(fault, times=3)
    OPERATIONS[operation](store, tmp_path)
    assert store.list("") == {
        "create": ["k", "new"],
        "create-large": ["k", "large"],
        "delete": [],
        "delete-together": [],
    }.get(operation, ["k"])
    if operation == "create":
        assert store.read("new") == b"content"
    if operation == "create-large":
        assert store.read("large") == (tmp_path / "large").read_bytes()
    if operation == "fetch":
        assert (tmp_path / "fetched").read_bytes() == b"content"


@small
def test_retries_are_bounded_and_then_it_is_the_callers_turn(
    proxy: Proxy, operation: str, tmp_path: Path
) -> None:
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
        lambda: store.create("k", b"content"),
        lambda: store.create("f", tmp_path / "file"),
        lambda: store.read("k"),
        lambda: store.fetch("k", tmp_path / "x"),
        lambda: store.list(""),
        lambda: store.delete(["k"]),
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
    store.create("one", b"x")
    store.delete(["one"], ordered=False)
    assert proxy.requests[-1].startswith("DELETE "), "which any server takes"


@pytest.mark.parametrize(
    "answer", [(501, "NotImplemented"), (405, "MethodNotAllowed"), (403, "AccessDenied")]
)
def test_where_many_cannot_be_deleted_by_one_request_it_is_done_one_by_one(
    proxy: Proxy, answer: tuple[int, str]
) -> None:
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
    reads: list[Callable[[], bytes]] = [
        lambda: store.read("k"),
        lambda: fetched(store, "k", tmp_path),
    ]
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


# ---- the answer to a create is lost


@pytest.mark.parametrize("operation", ["create", "create-large"])
def test_a_create_whose_answer_was_lost_is_known_to_be_ones_own(
    proxy: Proxy, operation: str, tmp_path: Path
) -> None:
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
    # the same bytes, for "new"
    store.create({"create": "new", "create-large": "large"}[operation], b"content")
    proxy.harm(Harm.LOSE_ANSWER, times=3)
    with pytest.raises(Exists):
        OPERATIONS[operation](store, tmp_path)


@pytest.mark.parametrize(("method", "query"), [("PUT", "partNumber"), ("POST", "uploadId")])
def test_an_upload_that_vanished_is_the_callers_turn(
    proxy: Proxy, tmp_path: Path, method: str, query: str
) -> None:
    store, file = at(proxy), large(tmp_path)
    proxy.harm((404, "NoSuchUpload"), times=1, method=method, query=query)
    with pytest.raises(Unavailable, match="its upload vanished"):
        store.create("large", file)
    store.create("large", file)
    assert store.read("large") == file.read_bytes()


def test_an_object_that_is_deleted_while_it_is_fetched_is_the_callers_turn(
    proxy: Proxy, tmp_path: Path
) -> None:
    store = at(proxy)
    store.create("large", large(tmp_path))
    begun = proxy.hold("GET", "/large", Where.AFTER)
    with ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(store.fetch, "large", tmp_path / "fetched")
        assert begun.came.wait(60.0)
        store.delete(["large"])
        begun.release()
        with pytest.raises(Unavailable, match="deleted or replaced while it was read"):
            fetching.result()
    with pytest.raises(Missing):
        store.fetch("large", tmp_path / "fetched")


# ---- nothing hangs


@small
def test_a_server_that_hangs_is_given_up_in_time(
    proxy: Proxy, operation: str, tmp_path: Path
) -> None:
    store = at(proxy, HASTY)
    store.create("k", b"content")
    proxy.harm(Harm.HANG, times=1)
    OPERATIONS[operation](store, tmp_path)


def test_a_server_that_hangs_for_good_is_the_callers_turn(proxy: Proxy) -> None:
    store = at(proxy, HASTY)
    proxy.harm(Harm.HANG, times=1000)
    with pytest.raises(Unavailable, match="no answer in time"):
        store.read("another")


def test_a_server_that_takes_no_bytes_is_given_up_in_time(environment: pytest.MonkeyPatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:  # accepts by the kernel alone
        place = BucketAddress(bucket="regrow", endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}")
        with pytest.raises(Unavailable):
            S3Store(place, patience=HASTY).create("k", bytes(8 << 10))


def test_an_interrupted_call_ends_and_the_store_can_still_be_used(proxy: Proxy) -> None:
    code = (
        "import os, signal, sys, threading; from regrow.infra.stores.s3 import open_s3\n"
        "store = open_s3(sys.argv[1])\n"
        "threading.Timer(2.0, os.kill, [os.getpid(), signal.SIGINT]).start()\n"
        "try: store.read('k')\n"
        "except KeyboardInterrupt: print('interrupted', store.list(''))"
    )
    store = at(proxy)
    store.create("k", b"")
    proxy.harm(Harm.HANG, times=1, method="GET", query="/k")
    url = f"s3://regrow/{store._prefix}?endpoint_url={proxy.endpoint}"
    done = subprocess.run(
        [sys.executable, "-c", code, url], text=True, capture_output=True, check=False, timeout=120
    )
    assert done.stdout == "interrupted ['k']\n", done.stderr


# ---- the server dies


def test_a_killed_server_loses_nothing_acknowledged_and_each_key_has_one_winner(
    server: s3_server.S3Server, environment: pytest.MonkeyPatch
) -> None:
    store = S3Store(
        BucketAddress(bucket="regrow", endpoint=server.endpoint, region=s3_server.REGION),
        uuid.uuid4().hex,
        patience=QUICK,
    )
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
                        # After an error of ours it may be our own; a server that is away is asked
                        # again.
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
