"""All that listens while regrow runs, who gets in there, and how a stranger asks. No test lives
here.

`python -m tests.system.strangers` prints the table of docs/how-to/security.md; a test compares the
two, another one what listens.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc  # type: ignore[import-untyped]  # its stubs are a package of their own
import psutil

LOOP, MAPPED = r"127\.0\.0\.1", "::ffff:"
"""The loopback, and the sign of an address of IPv4 on a socket of IPv6 (RFC 4291): Ray's servers
alone, of all that listens, have those.
"""
PASSWORD = "the user `regrow` with its password, or a browser that opened a link of `regrow ui`"
TOKEN_OF_RAY = "who has Ray's token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What listens: by its `program` (in the command line) and its `address`, both regular
    expressions.

    `where`, `who` and `until` are for readers. `asks`: how it is asked here; None: that is another
    test's, named in `why`.
    """

    what: str
    program: str
    address: str = LOOP
    where: str
    who: str
    until: str
    asks: Literal["account", "bearer", "ray", "ray's http", "raw"] | None
    why: str = ""


HOST = "127.0.0.1, with `regrow up --host HOST` also HOST;"
DOORS = (
    Door(
        what="Prefect's server",
        program=r"regrow\.infra\.prefect\.process",
        asks="account",
        who=f"{PASSWORD}; anyone at `/api/health`, `/api/ready`",
        where=f"{HOST} a free port, or `--prefect-port`",
        until="an experiment of the state root, `regrow ui` or the station ends",
    ),
    Door(
        what="MLflow's server",
        program=r"regrow\.infra\.mlflow\.server",
        asks="account",
        who=f"{PASSWORD}; anyone at `/health`",
        where=f"{HOST} a free port, or `--mlflow-port`",
        until="`regrow ui` or the station ends",
    ),
    Door(
        what="regrow's page, with the webhooks",
        program=r"regrow\.apps\.page",
        asks="account",
        where=f"{HOST} a free port",
        who=f"{PASSWORD}; at `/hooks/NAME` who has that hook's secret; anyone at `/health`",
        until="`regrow ui` or the station ends",
    ),
    Door(
        what="`regrow serve`, and `serve:` on a station",
        program=r"regrow\.apps\.serving\.replica|regrow serve|regrow\.apps\.station\.server",
        where="127.0.0.1, with `--host HOST` also HOST; port 8000, or `--port`",
        asks="bearer",
        who="who has its token: `REGROW_SERVE_TOKEN`, else in the file `serve-token`; anyone at `/healthz`, `/readyz`",
        until="it is interrupted (Ctrl-C, SIGTERM)",
    ),
    Door(
        what="the station's drivers that wait",
        program=r"regrow\.apps\.station\.driver",
        where="127.0.0.1, a free port",
        asks="raw",
        who="who has the token in the driver's file",
        until="it is given a session",
    ),
    Door(
        what="Ray: its servers, and each of its workers and drivers",
        address=MAPPED + LOOP,
        asks="ray",
        program=r"gcs_server|raylet/raylet|^ray::|regrow\.apps\.station\.(head|driver)|regrow (run|resume)",
        who=TOKEN_OF_RAY,
        where="127.0.0.1, on the machines of a cluster all addresses; free ports",
        until="the experiment or the station ends",
    ),
    Door(
        what="Ray: its agent for environments",
        program=r"^ray::RuntimeEnvAgent",
        asks="ray's http",
        where="the node's address (127.0.0.1 without a cluster), a free port",
        who=TOKEN_OF_RAY,
        until="the experiment or the station ends",
    ),
    Door(
        what="a trial of several workers: its rank 0",
        program=r"^ray::(?!RuntimeEnvAgent)",
        asks="raw",
        where="the node's address (127.0.0.1 without a cluster), a free port",
        who="who proves that it knows the attempt's key",
        until="the attempt ends",
    ),
    Door(
        what="PyTorch's process group of such a trial",
        program=r"^ray::",
        address=r".*",
        asks=None,
        why="PyTorch's own: it has no password",
        where="all addresses, free ports, where your code joins one",
        who="**anyone who reaches it**: PyTorch asks for nothing",
        until="the attempt ends",
    ),
    Door(
        what="`regrow serve --ray`: Ray Serve",
        program=r"ray::ProxyActor",
        asks=None,
        why="tests/system/test_serve_on_ray.py",
        where="as `regrow serve`, on each node",
        who="as `regrow serve`; anyone at `/-/healthz`, `/-/routes`",
        until="it is interrupted (Ctrl-C, SIGTERM)",
    ),
    Door(
        what="`regrow join`: the leader's call",
        program=r"regrow join",
        asks=None,
        why="tests/system/test_agents.py",
        where="the machine's address, a free port, or the first of `--ports`",
        who="anyone may speak, and gets no answer; what counts is the agent's number in the state",
        until="the agent ends",
    ),
    Door(
        what="`regrow up --s3`: the S3 port",
        program=r"weed",
        asks=None,
        why="tests/contract/test_s3_ports.py",
        where="127.0.0.1, a free port, or `--port`",
        who="who has its credentials, in `credentials` in its folder",
        until="`regrow down --s3`",
    ),
    Door(
        what="`regrow up --s3`: its inner ports",
        program=r"weed",
        asks=None,
        why="tests/contract/test_s3_ports.py",
        where="127.0.0.1, free ports",
        who="who has the server's own certificate",
        until="`regrow down --s3`",
    ),
)


def table(doors: Sequence[Door] = DOORS) -> str:
    """For readers."""
    rows = [
        ("what", "where", "who gets in", "until"),
        ("---",) * 4,
        *((one.what, one.where, one.who, one.until) for one in doors),
    ]
    return "".join(
        f"| {' | '.join(row)} |\n" if row[0] != "---" else "|---|---|---|---|\n" for row in rows
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One that listens, and by whom."""

    address: str
    number: int
    pid: int
    program: str

    @property
    def door(self) -> Door | None:
        """What it is, None for one that nobody has listed."""
        fit = (
            one for one in DOORS if one.asks is not None and re.search(one.program, self.program)
        )
        return next((one for one in fit if re.fullmatch(one.address, self.address)), None)


def of(folder: Path) -> list[psutil.Process]:
    """The processes that were started from a desk's folder, with all that they have started."""
    mark = {"REGROW_TEST_MARK": str(folder)}
    found: dict[int, psutil.Process] = {}
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if mark.items() <= one.environ().items():
                found |= {each.pid: each for each in (one, *one.children(recursive=True))}
    return list(found.values())


def ports(processes: Sequence[psutil.Process]) -> Iterator[Port]:
    """On which they listen, over TCP."""
    for one in processes:
        with contextlib.suppress(psutil.Error):
            for each in one.net_connections(kind="tcp"):
                if each.status == psutil.CONN_LISTEN:
                    yield Port(
                        address=each.laddr.ip,
                        number=each.laddr.port,
                        pid=one.pid,
                        program=" ".join(one.cmdline()),
                    )


def open_sockets(processes: Sequence[psutil.Process]) -> list[str]:
    """Unix sockets of theirs that another user could connect to: abstract ones, and those that no
    folder or mode keeps others from.
    """
    found: list[str] = []
    for one in processes:
        with contextlib.suppress(psutil.Error):
            found += [str(each.laddr) for each in one.net_connections(kind="unix") if each.laddr]
    return [
        name
        for name in found
        if not Path(name).is_absolute() or (Path(name).is_socket() and _is_reached(Path(name)))
    ]


def _is_reached(socket_: Path) -> bool:
    modes = [folder.stat().st_mode & 0o001 for folder in socket_.parents]
    return all(modes) and bool(socket_.stat().st_mode & 0o002)


# ---- asking

JSON = {"Content-Type": "application/json"}
FOREIGN = {"Origin": "http://127.0.0.1:1"}
UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Protocol": "prefect",
}
OTHER_NAME = {"Host": "rebound.example"}


def status(
    port: Port, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
) -> int:
    """What a server of HTTP answers to these headers, and no others."""
    connection = http.client.HTTPConnection(port.address, port.number, timeout=30)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        connection.close()


def let_in(
    port: Port, given: Mapping[str, str], right: tuple[str, str, bytes | None], health: str
) -> dict[str, tuple[int, int]]:
    """What a server with a guard answers to each kind of stranger, and what it should: those for
    which the two differ.

    `given`: the headers of who has the password or the token, with whom all is right but the one
    thing; `right`: what that one may ask; `health`: what anyone may.
    """
    method, path, body = right
    asked: dict[str, tuple[str, str, Mapping[str, str], bytes | None, int]] = {
        "without a password": ("GET", path, {}, None, 401),
        "posts without a password": ("POST", path, JSON, b"{}", 401),
        "by a name of its own": (method, path, {**given, **JSON, **OTHER_NAME}, body, 421),
        "health by a name of its own": ("GET", health, OTHER_NAME, None, 421),
        "from another page": ("POST", path, {**given, **JSON, **FOREIGN}, b"{}", 403),
        "from a page of nowhere": ("POST", path, {**given, **JSON, "Origin": "null"}, b"{}", 403),
        "by a form": (
            "POST",
            path,
            {**given, "Content-Type": "application/x-www-form-urlencoded"},
            b"{}",
            415,
        ),
        "as text": ("POST", path, {**given, "Content-Type": "text/plain"}, b"{}", 415),
        "blindly": ("POST", path, given, b"{}", 415),
        "a WebSocket from another page": (
            "GET",
            "/api/events/out",
            {**given, **UPGRADE, **FOREIGN},
            None,
            403,
        ),
        "as it should": (method, path, {**given, **JSON}, body, 200),
        "health": ("GET", health, {}, None, 200),
    }
    got = {
        who: (status(port, verb, where, headers, sent), wanted)
        for who, (verb, where, headers, sent, wanted) in asked.items()
    }
    return {who: pair for who, pair in got.items() if pair[0] != pair[1]}


RAY_METHODS = (
    "InternalKVGcsService/InternalKVKeys",
    "NodeManagerService/GetNodeStats",
    "ObjectManagerService/Pull",
    "CoreWorkerService/GetCoreWorkerStats",
)
"""One of each kind of Ray's servers; none that would end it."""


def of_ray(port: Port) -> set[str]:
    """What a server of Ray's answers to who has no token, to calls of which one is its own."""
    found = set()
    with grpc.insecure_channel(f"{port.address.removeprefix(MAPPED)}:{port.number}") as channel:
        for method in RAY_METHODS:
            try:
                channel.unary_unary(f"/ray.rpc.{method}")(b"", timeout=20)
                found.add("OK")
            except grpc.RpcError as error:
                found.add(error.code().name)
    return found


def hears(port: Port) -> list[bytes]:
    """What a port that is no server of HTTP says to who knows nothing, to each of some words, until
    it hangs up.
    """
    order = json.dumps({"token": "", "name": "x", "signal": 15}).encode() + b"\n"
    words = (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        order,
        ("ä" * 64).encode() + order,
        b"\0" * 4096,
    )

    def answer(word: bytes) -> bytes:
        with socket.create_connection((port.address, port.number), timeout=30) as connection:
            connection.sendall(word)
            said = b""
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(4096):
                    said += part
        return said

    with ThreadPoolExecutor(len(words)) as pool:
        return list(pool.map(answer, words))


if __name__ == "__main__":
    print(table(), end="")
