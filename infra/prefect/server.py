"""The Prefect server: the user's own, or an embedded one that all processes with the same folder share.

Only starting, finding and leaving a server live here; what runs in its process is in `prefect_process`, what its folder tells
in `prefect_home`.
Nothing imports Prefect at the top: starting must cost the caller nothing while the server boots.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from regrow.infra.machine import addresses, locks
from regrow.infra.prefect import home as homes
from regrow.infra.prefect.home import TICK, is_leaving, read_record
from regrow.infra.prefect.server_settings import CLIENT_ENVIRONMENT, server_environment, template
from regrow.tasks.addresses import redacted
from regrow.tasks.errors import RegrowError, UserError

BOOT_SECONDS = 60.0
"""How long a server may take to answer; 2.3 s are normal, 9 s with all migrations, more on a busy machine."""
ADOPTION_SECONDS = 5.0
"""How long a server that the user configured may take to answer."""
DYING_SECONDS = 1.0
"""How long a killed process may take to let go of its files."""
LEAVING_SECONDS = 3.0
"""How long to wait for the server's process after its last user has left."""
_WATCH_SECONDS = 0.5
"""Between two looks at whether an embedded server is still there."""
_outliving: list[subprocess.Popen[bytes]] = []
"""Servers that this process started and others still use; kept, or Python complains about a forgotten child."""

@dataclass(frozen=True, slots=True, kw_only=True)
class PrefectServer:
    """A server that answers. `embedded` is False for one that the user configured."""

    api_url: str
    ui_url: str
    embedded: bool
    auth: str | None = field(default=None, repr=False)
    """USER:PASSWORD of an embedded one; None: it asks for none."""

    def environment(self) -> dict[str, str]:
        """The variables with which a process talks to this server and to no other."""
        auth = {} if self.auth is None else {"PREFECT_API_AUTH_STRING": self.auth}
        return {**CLIENT_ENVIRONMENT, "PREFECT_API_URL": self.api_url, **auth}


class PrefectServerHandle:
    """A server that may still be starting. Close it to leave: an embedded server ends with its last user."""

    def __init__(self, server: PrefectServer, home: Path) -> None:
        self._server = server
        self._home = home
        self._users: IO[str] | None = None
        self._pid = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._left = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def server(self) -> PrefectServer:
        """The server's addresses, known before it answers."""
        return self._server

    def wait(self, seconds: float = BOOT_SECONDS) -> PrefectServer:
        """Block until it answers. Raises UserError if the user's own server does not, else RegrowError."""
        if not self._server.embedded:
            _check_adopted(self._server.api_url)
            return self._server
        deadline = time.monotonic() + seconds
        # The socket listens before the server runs: one request simply waits until the server gets to it.
        while not _healthy(self._server.api_url, deadline - time.monotonic()):
            if self._gone():
                raise RegrowError(f"The Prefect server ended while it started: {self._last_words()}")
            if time.monotonic() > deadline:
                raise RegrowError(f"The Prefect server did not answer in {seconds:.0f} s: {self._last_words()}")
            time.sleep(TICK)
        return self._server

    def watch(self) -> None:
        """From now on start an embedded server again, on its port and its database, whenever it is gone."""
        if self._server.embedded and self._watcher is None:
            self._watcher = threading.Thread(target=self._look_after, name="regrow-prefect-watch", daemon=True)
            self._watcher.start()

    def _look_after(self) -> None:
        while not self._left.wait(_WATCH_SECONDS):
            with suppress(OSError, RegrowError):  # its port is not free yet, another user is at it: next time
                if locks.is_held(self._home / "server.lock"):
                    continue
                with homes.start(self._home):
                    lock = None if self._left.is_set() else locks.take(self._home / "server.lock")
                    if lock is None:  # whoever was faster has started it
                        continue
                    with lock:
                        port = listener_port(self._server)
                        again = _spawn(self._home, lock.fileno(), port, port)
                if self._child is not None:
                    self._child.poll()
                self._child, self._pid = again._child, again._pid

    def replace(self) -> None:
        """End the embedded server that runs, for whoever watches it to start the next; returns when it is gone."""
        pid = read_record(self._home).get("pid", self._pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + LEAVING_SECONDS
        while read_record(self._home).get("pid") == pid and time.monotonic() < deadline:
            time.sleep(TICK)

    def close(self) -> None:
        """Stop using the server; if nobody else does, return once its process is gone."""
        if self._users is None:
            return
        self._left.set()
        if self._watcher is not None:
            self._watcher.join()
        self._users.close()
        self._users = None
        if not is_leaving(self._home, self._gone):
            if self._child is not None:
                _outliving.append(self._child)
            return
        deadline = time.monotonic() + LEAVING_SECONDS
        while not self._gone() and time.monotonic() < deadline:
            time.sleep(TICK)

    def _gone(self) -> bool:
        if self._child is not None:
            return self._child.poll() is not None
        try:
            os.kill(self._pid, 0)
        except OSError:
            return True
        return False

    def _last_words(self) -> str:
        log = self._home / "server.log"
        with suppress(OSError):
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            return f"{lines[-1] if lines else 'it said nothing'} (see {log})"
        return f"see {log}"


@contextmanager
def staying(home: Path, *, port: int | None = None, host: str | None = None) -> Iterator[PrefectServerHandle]:
    """The embedded server of `home` within the block, with the services that schedules and automations need; see `begin`.

    One that runs without them, for an experiment under way, is replaced; its users find the next one at the same address.
    `host`: a name or address of this machine at which it listens as well, and then asks everybody for a password.
    Raises UserError also where a station has it already.
    """
    home.mkdir(parents=True, exist_ok=True)
    with homes.stay(home, host):
        handle = begin(home, port=port, adopt=False)
        try:
            handle.wait()
            handle.watch()
            known = read_record(home)
            if not known.get("schedules") or known.get("host") != host:
                handle.replace()
                handle.wait()
            yield handle
        finally:
            handle.close()


@contextmanager
def prefect_server(home: Path, *, port: int | None = None) -> Iterator[PrefectServer]:
    """Use the user's Prefect server or the embedded one of `home`; see `begin`."""
    handle = begin(home, port=port)
    try:
        server = handle.wait()
        handle.watch()
        yield server
    finally:
        handle.close()


def begin(home: Path, *, port: int | None = None, adopt: bool = True) -> PrefectServerHandle:
    """Find or start the server and return at once; `wait` on the handle before using it.

    A URL that the user configured is adopted, unless `adopt` is False. Otherwise all processes with the same `home` share
    one embedded server on loopback, its database and log in `home`. `port` None means the one it had last time, or any
    free one. Raises UserError if `port` is taken or the server of `home` runs on another.
    """
    home = home.expanduser().absolute()
    if adopt and (url := other_api_url(home)) is not None:
        ui_url = os.environ.get("PREFECT_UI_URL") or url.removesuffix("/api")
        return PrefectServerHandle(PrefectServer(api_url=url, ui_url=ui_url, embedded=False), home)
    home.mkdir(parents=True, exist_ok=True)
    users = homes.use(home)  # from here on the server can't leave
    try:
        with homes.start(home):
            known = read_record(home)
            running = _lock_of_the_dead(home, known)
            if running is None:
                handle = _attach(home, known, port)
            else:
                with running:  # the child inherits the lock and keeps it until it ends, however it ends
                    handle = _spawn(home, running.fileno(), port, known.get("port", 0))
    except BaseException:
        users.close()
        raise
    handle._users = users
    return handle


def is_looked_after(handle: PrefectServerHandle) -> bool:
    """Whether there are automations that hear a flow run's heartbeats: on a user's own server, and on a station's."""
    return not handle.server.embedded or homes.stays(handle._home)


def answers(api_url: str, seconds: float) -> bool:
    """Whether the server at a URL answers, or does so within `seconds`. One that wants a key, or is no server, answers too."""
    deadline = time.monotonic() + seconds
    parts = urllib.parse.urlsplit(api_url)
    while True:
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            socket.create_connection((parts.hostname or "", port), timeout=5.0).close()
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_WATCH_SECONDS)
        else:
            return True


def configured_api_url() -> str | None:
    """The API URL that the user set (environment, profile or settings file), or None."""
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    prefect_home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    profiles = Path(os.environ.get("PREFECT_PROFILES_PATH", prefect_home / "profiles.toml")).expanduser()
    # Where Prefect looks, and the word without which it finds nothing there.
    places = {profiles: "api", Path("prefect.toml"): "api", Path("pyproject.toml"): "tool.prefect", Path(".env"): "prefect_api"}
    if not any(file.is_file() and word in file.read_text(errors="replace").lower() for file, word in places.items()):
        return None  # nothing for Prefect to find: importing it only to ask would take 0.8 s
    from prefect.settings import get_current_settings

    return get_current_settings().api.url


def other_api_url(home: Path) -> str | None:
    """The API URL that the user set, unless it is that of the embedded server of `home`, as in a child process; or None."""
    url = (configured_api_url() or "").rstrip("/")
    return url if url and url != read_record(home).get("api_url") else None


def _lock_of_the_dead(home: Path, known: Mapping[str, Any]) -> IO[str] | None:
    """The server's lock if no server runs; None if one runs, which has answered or is still starting.

    A server that was killed a moment ago still holds its lock: so one that does not answer is looked at for a second.
    """
    deadline = time.monotonic() + DYING_SECONDS
    while (lock := locks.take(home / "server.lock")) is None and time.monotonic() < deadline:
        if known and _healthy(known["api_url"], 0.2):
            break
        time.sleep(TICK)
    return lock


def _attach(home: Path, known: Mapping[str, Any], port: int | None) -> PrefectServerHandle:
    if not known:
        raise RegrowError(f"A Prefect server runs on {home} but {home / 'server.json'} is missing; end it and try again")
    if port not in (None, known["port"]):
        raise UserError(
            f"The Prefect server of {home} already runs on port {known['port']}, not {port}: "
            "leave the port out, or wait until its users have finished"
        )
    handle = PrefectServerHandle(_embedded(home, known["port"]), home)
    handle._pid = known["pid"]
    return handle


def _spawn(home: Path, lock: int, port: int | None, last_port: int) -> PrefectServerHandle:
    schedules, host = homes.stays(home), homes.host(home)
    with ExitStack() as stack:
        log = stack.enter_context((home / "server.log").open("ab"))
        listeners = [stack.enter_context(one) for one in _listen(port, last_port, host)]
        numbers = [one.fileno() for one in listeners]
        server = _embedded(home, listeners[0].getsockname()[1])
        command = [sys.executable, "-P", "-m", "regrow.infra.prefect.process"]
        command += ["--home", str(home), "--users", str(home / "users.lock")]
        command += ["--template", str(template()), "--socket", *map(str, numbers)]
        child = subprocess.Popen(
            command,
            pass_fds=(lock, *numbers),
            env=server_environment(
                home, server.api_url, schedules=schedules, host=host, auth=None if host is None else server.auth
            ),
            cwd=home,  # no settings file of the user's folder is meant for this server
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C in the terminal is for the driver, which still has things to tell it
            start_new_session=True,
        )
    record = {
        "pid": child.pid, "port": listener_port(server), "api_url": server.api_url, "schedules": schedules, "since": time.time(),
        "host": host,
    }
    partial = home / "server.json.partial"
    partial.write_text(json.dumps(record))
    partial.replace(home / "server.json")
    handle = PrefectServerHandle(server, home)
    handle._child = child
    handle._pid = child.pid
    return handle


def listener_port(server: PrefectServer) -> int:
    return urllib.parse.urlsplit(server.api_url).port or 0


def _embedded(home: Path, port: int) -> PrefectServer:
    url = f"http://127.0.0.1:{port}"
    return PrefectServer(api_url=f"{url}/api", ui_url=url, embedded=True, auth=homes.auth(home))


def _listen(port: int | None, last_port: int, host: str | None = None) -> list[socket.socket]:
    """Bind before the child starts: a taken port is known at once, and clients may connect while it boots.

    With `host` there as well as on the loopback, where all that runs on this machine finds it.
    """
    for candidate in (port,) if port is not None else (last_port, 0):
        try:
            return list(addresses.listen(host, candidate))
        except OSError as error:
            reason = error
    if port is not None:
        raise UserError(f"Port {port} for the Prefect server can't be used ({os.strerror(reason.errno or 0)}): choose another")
    raise reason


def _healthy(api_url: str, seconds: float) -> bool:
    try:
        with urllib.request.urlopen(f"{api_url}/health", timeout=max(seconds, 0.1)) as answer:
            return bool(answer.status == http.client.OK)
    except (OSError, http.client.HTTPException):
        return False


def _check_adopted(api_url: str) -> None:
    where = f"PREFECT_API_URL is {redacted(api_url)!r}"
    advice = "start that server, correct the URL, or unset it (also in the profile) to use an embedded server"
    parts = urllib.parse.urlsplit(api_url)
    netloc = parts.netloc.rpartition("@")[2]  # whether the password is right is Prefect's to say
    # Prefect Cloud serves no health check below the URL of a workspace.
    path = "/api" if "/accounts/" in parts.path else parts.path
    health = f"{parts.scheme}://{netloc}{path}/health"
    try:
        with urllib.request.urlopen(health, timeout=ADOPTION_SECONDS):
            return
    except urllib.error.HTTPError as error:
        if error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            return  # it is there; whether the key is right is Prefect's to say
        reason = f"{health} answers {error.code} {error.reason} (does the URL end in /api?)"
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = f"nothing answers there ({getattr(error, 'reason', error)})"
    raise UserError(f"{where}, but {reason}: {advice}")
