"""The ports of the S3 server, each asked by who has no key of it."""

from __future__ import annotations

import json
import re
import socket
import ssl
import stat
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from regrow.infra.local import s3_server
from regrow.infra.machine import locks
from regrow.tasks.errors import UserError
from regrow.tasks.process import background
from tests.conftest import guarded_s3_server

ASKED = ("GET /", "GET /buckets/regrow/?limit=9", "GET /regrow/kept", "PUT /buckets/regrow/kept", "DELETE /buckets/regrow/kept", "PUT /regrow/kept",
    "DELETE /regrow/kept", "GET /dir/assign", "GET /status", "POST /?Action=CreateUser&UserName=eve&Version=2010-05-08")  # fmt: skip
# what a client of gRPC says first
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
REFUSED = {400, 403, 405, None}


def status(port: int, request: str, certificate: ssl.SSLContext | None) -> int | None:
    """The status of an answer; None where the connection was refused or ended."""
    said = f"{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\nConnection: close\r\n\r\nevil".encode()
    try:
        plain = socket.create_connection(("127.0.0.1", port), timeout=10.0)
        with plain, certificate.wrap_socket(plain) if certificate is not None else plain as link:
            link.sendall(said)
            found = re.match(rb"HTTP/1.1 (\d+)", link.recv(100))
            return int(found[1]) if found else None
    except (ConnectionError, ssl.SSLError):
        return None


def speaks_grpc(port: int) -> bool:
    """Whether a server of gRPC answers with settings of its own, as it does to everybody whom it
    lets in.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as link:
        link.sendall(HTTP2)
        try:
            return link.recv(9)[3:4] == b"\x04"
        except ConnectionError:
            return False


def with_certificate(folder: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if folder is not None:
        context.load_cert_chain(folder / "inner.crt", folder / "inner.key")
    return context


def listening(pid: int) -> list[int]:
    return sorted(
        one.laddr.port
        for one in psutil.Process(pid).net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    )


def answered(ports: Iterable[int], certificates: Iterable[ssl.SSLContext | None]) -> set[int]:
    """The ports at which something was not refused."""
    certificates = list(certificates)
    asked = {(p, r): [status(p, r, c) for c in certificates] for p in ports for r in ASKED}
    return {port for (port, _), found in asked.items() if not REFUSED.issuperset(found)}


def test_no_inner_port_answers_a_stranger_and_a_folder_of_before_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, theirs = tmp_path / "s3, ours", tmp_path / "theirs"
    theirs.mkdir()
    s3_server.mutual_tls(theirs)
    strangers = [None, with_certificate(None), with_certificate(theirs)]
    with monkeypatch.context() as before:
        before.setattr(s3_server, "mutual_tls", lambda _folder: {})
        with guarded_s3_server(folder) as open_one:
            folder.chmod(0o755)
            inner = {open_one.port + n for n in (1, 2, 3)}
            assert inner <= answered(inner, strangers), "these questions tell an open port"
            assert all(speaks_grpc(open_one.port + 10_000 + n) for n in range(5))
            assert s3_server.request(open_one, "PUT", "/regrow/kept", b"checkpoint")[0] == 200
    with guarded_s3_server(folder) as server:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert s3_server.request(server, "GET", "/regrow/kept") == (200, b"checkpoint"), (
            "a folder of before"
        )
        ports = listening(server.pid)
        assert len(ports) >= 9, "asks all that there are"
        assert answered(ports, strangers) <= {server.port}
        assert not any(speaks_grpc(port) for port in ports)
        for request in ASKED:
            if not request.endswith("/status"):  # it says that it runs
                assert status(server.port, request, None) in REFUSED, request
        assert s3_server.request(server, "GET", "/regrow/kept") == (200, b"checkpoint")
        own = with_certificate(folder)
        assert status(server.port + 3, "GET /buckets/regrow/", own) == 200, (
            "who has the key is let in: the questions arrive"
        )
        made = [path for path in folder.iterdir() if not path.is_dir()]
        sockets = list(
            Path("/tmp").glob(f"seaweedfs-*-grpc-{str(server.port + 10_000)[:-1]}*.sock")
        )
        assert not any(stat.S_IMODE(path.lstat().st_mode) & 0o077 for path in [*made, *sockets])


def test_a_server_of_which_no_record_can_be_kept_is_not_left(tmp_path: Path) -> None:
    (tmp_path / "server.json").mkdir()
    with pytest.raises(UserError, match="cannot be used"):
        s3_server.start(tmp_path)
    assert not locks.is_held(tmp_path / "server.lock")


def test_what_is_no_server_of_http_at_its_port_is_told(tmp_path: Path) -> None:
    pair = {"accessKey": "a", "secretKey": "b"}
    (tmp_path / "identities.json").write_text(json.dumps({"identities": [{"credentials": [pair]}]}))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            with listener.accept()[0] as caller:
                caller.sendall(b"hello\r\n")

        background.start(answer, name="other")
        other = s3_server.S3Server(folder=tmp_path, port=port, pid=1, bucket="b")
        with pytest.raises(OSError, match="BadStatusLine"):
            s3_server.request(other, "GET", "/b")


def test_ports_whose_sockets_another_user_has_taken_are_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_server, "_SOCKETS", str(tmp_path))
    port = s3_server._free_port(None, None)
    (tmp_path / f"seaweedfs-filer-grpc-{port + 10_003}.sock").touch()
    assert s3_server._free_port(port, None) == port, "one's own, of a server that was killed"
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    assert s3_server._free_port(None, port) != port
