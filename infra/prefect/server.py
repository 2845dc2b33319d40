"""The Prefect server: the user's, or an embedded one that all processes with the same folder share.

Only starting, finding and leaving a server live here. What runs in its process is in `process.py`,
what its folder contains in `home.py`. Prefect is not imported at the top: starting must not cost
the caller time while the server boots.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from regrow.infra.machine import addresses, locks, private_files
from regrow.infra.machine.awaiting import announced
from regrow.infra.machine.sqlite import damage, is_known, revision, set_aside, url_of
from regrow.infra.machine.supervised import (
    BOOT_SECONDS,
    Supervised,
    await_ready,
    last_line,
    responds,
    spawn,
    until,
)
from regrow.infra.prefect import home as homes
from regrow.infra.prefect.home import MIGRATIONS, TICK, is_leaving, read_record
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.process import background
from regrow.tasks.process.addresses import redacted

ADOPTION_SECONDS = 5.0
"""Seconds for a server that the user configured to answer."""
DYING_SECONDS = 1.0
"""Seconds for a killed process to release its files."""
LEAVING_SECONDS = 3.0
"""Seconds to wait for the end of the server's process after its last user has left."""
_WATCH_SECONDS = 0.5
"""Seconds between two checks whether an embedded server still runs."""
SETTINGS_FILES = {"prefect.toml": "api", "pyproject.toml": "tool.prefect", ".env": "prefect_api"}
"""Files of the current folder that Prefect reads, each with the word without which it has no server
there.
"""
# Required are the recorder of task runs, the stores of events and logs, and the streams that the UI
# follows. A server that lives only while an experiment runs has no deployments, workers or
# automations to handle; that of a station has.
_STATION_SERVICES = (
    "SCHEDULER",
    "LATE_RUNS",
    "CANCELLATION_CLEANUP",
    "CLEANUP_RECONCILER",
    "FOREMAN",
    "PAUSE_EXPIRATIONS",
    "TRIGGERS",
)
CLIENT_ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        # Without a URL every process would start its own server, all with the same sqlite file.
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
)
_outliving: list[Supervised] = []
"""Servers that others still use. Kept, because otherwise Python warns about an abandoned child."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefectServer:
    """A server. `embedded` is False for one that the user configured."""

    api_url: str
    ui_url: str
    embedded: bool
    auth: str | None = field(default=None, repr=False)
    """USER:PASSWORD of an embedded server; that of the user's is in the user's variables."""

    def environment(self) -> dict[str, str]:
        """Return the variables with which a process uses this server and no other."""
        auth = {} if self.auth is None else {"PREFECT_API_AUTH_STRING": self.auth}
        return {**CLIENT_ENVIRONMENT, "PREFECT_API_URL": self.api_url, **auth}


class PrefectServerHandle:
    """A server that may still be starting. An embedded one ends when its last user closes it."""

    def __init__(
        self,
        server: PrefectServer,
        home: Path,
        process: Supervised | None = None,
        remark: str | None = None,
    ) -> None:
        """`process`: None for a server that the user configured. `remark`: what was wrong with the
        former server's database; None: nothing.
        """
        self.server, self.home, self.remark = server, home, remark
        """The server's addresses are known before it answers."""
        self._process = process
        self._users: IO[str] | None = None
        self._left = threading.Event()
        self._watcher: threading.Thread | None = None

    def wait(
        self, seconds: float = BOOT_SECONDS, *, say: Callable[[str], None] = lambda _: None
    ) -> PrefectServer:
        """Block until the server answers. `say` gets a message if that takes long. Raises UserError
        if the user's server does not answer, RegrowError if an embedded one does not, and makes no
        progress for `seconds`.
        """
        if self._process is None:
            _check_adopted(self.server.api_url)
            return self.server
        # The socket listens before the server runs: one request simply waits until the server
        # handles it.
        healthy = partial(responds, f"{self.server.api_url}/health")
        pid, alive = self._process.pid, lambda: not self._gone()
        with announced("the Prefect server to start", say):
            why = await_ready(healthy, alive, seconds=seconds, tick=TICK, pid=pid)
        if why:
            log = self.home / "server.log"
            raise RegrowError(f"The Prefect server {why}: {last_line(log)} (see {log})")
        return self.server

    def watch(self) -> None:
        """Restart an embedded server whenever it ends, on its port and database."""
        if self.server.embedded and self._watcher is None:
            self._watcher = background.start(self._restart_lost, name="prefect-watch")

    def _restart_lost(self) -> None:
        while not self._left.wait(_WATCH_SECONDS):
            # Its port is not free yet, or another user is restarting it: try again later.
            with suppress(OSError, RegrowError):
                if locks.is_held(self.home / "server.lock"):
                    continue
                with homes.start(self.home):
                    lock = None if self._left.is_set() else locks.acquire(self.home / "server.lock")
                    if lock is None:  # another process was faster and has started it
                        continue
                    with lock:
                        port = urllib.parse.urlsplit(self.server.api_url).port
                        started = _spawn(self.home, lock.fileno(), port, again=True)
                self._gone()  # reaps it
                self._process = started._process

    def replace(self) -> None:
        """Kill the embedded server, and wait up to 3 s for the one that the watcher starts."""
        pid = read_record(self.home).get("pid")
        # Otherwise it has ended, and its pid may be reused.
        if pid is not None and locks.is_held(self.home / "server.lock"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: read_record(self.home).get("pid") != pid, seconds=LEAVING_SECONDS, tick=TICK)

    def close(self) -> None:
        """Stop using the server. If it has no other user, return once its process has ended."""
        if self._users is None:
            return
        self._left.set()
        if self._watcher is not None:
            self._watcher.join()
        self._users.close()
        self._users = None
        if self._process is not None and not (
            is_leaving(self.home, self._gone)
            and self._process.is_gone_in(LEAVING_SECONDS, tick=TICK)
        ):
            _outliving.append(self._process)

    def _gone(self) -> bool:
        return self._process is None or not self._process.is_alive()


@contextmanager
def station_server(home: Path, *, host: str | None = None) -> Iterator[PrefectServerHandle]:
    """Run the embedded server of `home` within the block, with the services that schedules and
    automations need; see `begin`.

    A server that runs without them, for a running experiment, is replaced; its users find the new
    one at the same address. `host`: a name or address of this machine at which it listens, too.
    Also raises UserError if another station has the server.
    """
    private_files.folder(home)
    with homes.lock_station(home, host):
        handle = begin(home, adopt=False)
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
    """Use a Prefect server within the block, the user's or that of `home`; see `begin`."""
    handle = begin(home, port=port)
    try:
        server = handle.wait()
        handle.watch()
        yield server
    finally:
        handle.close()


def begin(home: Path, *, port: int | None = None, adopt: bool = True) -> PrefectServerHandle:
    """Find or start the server and return at once; call `wait` on the handle before using it.

    A URL that the user configured is used, unless `adopt` is False. Otherwise all processes with
    the same `home` share one embedded server on loopback, with its database and log in `home`.
    `port` None: the port of last time, or any free one. Raises UserError if `port` is taken or the
    server of `home` runs on another.
    """
    home = home.expanduser().absolute()
    if adopt and (url := other_api_url(home)) is not None:
        ui_url = os.environ.get("PREFECT_UI_URL") or url.removesuffix("/api")
        return PrefectServerHandle(PrefectServer(api_url=url, ui_url=ui_url, embedded=False), home)
    private_files.folder(home)
    users = homes.use(home)  # the server cannot end from here on
    try:
        with homes.start(home):
            known = read_record(home)
            running = _lock_of_the_dead(home, known)
            if running is None:
                handle = _attach(home, known, port)
            else:
                # The child inherits the lock and keeps it until it ends, in any way.
                with running:
                    handle = _spawn(home, running.fileno(), port, known.get("port", 0))
    except BaseException:
        users.close()
        raise
    handle._users = users
    return handle


def has_automations(handle: PrefectServerHandle) -> bool:
    """Return whether the server has automations that react to a flow run's heartbeats: a user's
    server and a station's have.
    """
    return not handle.server.embedded or homes.has_station(handle.home)


def answers(api_url: str, seconds: float) -> bool:
    """Return whether anything accepts connections at a URL, now or within `seconds`. A server that
    wants a key counts, and so does another kind of server.
    """
    parts = urllib.parse.urlsplit(api_url)
    place = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    def accepts() -> bool:
        try:
            socket.create_connection(place, timeout=5.0).close()
        except OSError:
            return False
        return True

    return until(accepts, seconds=seconds, tick=_WATCH_SECONDS)


def configured_api_url() -> str | None:
    """Return the API URL that the user set (environment, profile or settings file), or None.

    Raises UserError if Prefect cannot read its settings, for example a damaged profile or one of
    another version.
    """
    if url := os.environ.get("PREFECT_API_URL"):
        return url
    prefect_home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    profiles = Path(
        os.environ.get("PREFECT_PROFILES_PATH", prefect_home / "profiles.toml")
    ).expanduser()
    places = {profiles: "api", **{Path(name): word for name, word in SETTINGS_FILES.items()}}
    try:
        found = any(has_word(file, word) for file, word in places.items())
    except OSError as error:
        raise UserError(
            f"{error.filename} cannot be read ({error.strerror}), where Prefect has its settings"
        ) from None
    if not found:
        return None  # importing Prefect only to ask would take 0.8 s
    try:
        from prefect.settings import get_current_settings

        return get_current_settings().api.url
    except Exception as error:  # from TOML, pydantic or Prefect
        why = " ".join(str(error).split())[:200]
        files = " or ".join(str(file.absolute()) for file in places if file.is_file())
        raise UserError(
            f"Prefect cannot read its settings in {files} ({why}); correct them, or move the file"
            " away"
        ) from error


def has_word(file: Path, word: str) -> bool:
    """Return whether a file exists and has a word in it. Raises OSError."""
    return file.is_file() and word in file.read_text(errors="replace").lower()


def other_api_url(home: Path) -> str | None:
    """Return the API URL that the user set, or None. Also None if it is that of the embedded server
    of `home`, as in a child process.
    """
    url = (configured_api_url() or "").rstrip("/")
    return url if url and url != read_record(home).get("api_url") else None


def _lock_of_the_dead(home: Path, known: Mapping[str, Any]) -> IO[str] | None:
    """Return the server's lock if no server runs; None if one runs, answering or still starting.

    A server that was just killed still holds its lock. So one that does not answer is watched for a
    second.
    """
    deadline = time.monotonic() + DYING_SECONDS
    while (lock := locks.acquire(home / "server.lock")) is None and time.monotonic() < deadline:
        if known and responds(f"{known['api_url']}/health", 0.2):
            break
        time.sleep(TICK)
    return lock


def _attach(home: Path, known: Mapping[str, Any], port: int | None) -> PrefectServerHandle:
    if not known:
        raise RegrowError(
            f"A Prefect server runs on {home} but {home / 'server.json'} is missing; end it and try"
            " again"
        )
    if port not in (None, known["port"]):
        raise UserError(
            f"The Prefect server of {home} already runs on port {known['port']}, not {port}: "
            "leave the port out, or wait until its users have finished"
        )
    process = Supervised(pid=known["pid"])
    return PrefectServerHandle(_embedded(home, known["port"]), home, process)


def _spawn(
    home: Path, lock: int, port: int | None, last_port: int = 0, *, again: bool = False
) -> PrefectServerHandle:
    """Start a server, which inherits the descriptor `lock`. `again`: in place of one that ended."""
    schedules, host = homes.has_station(home), homes.host(home)
    known = read_record(home)
    # One that was replaced on purpose had other services.
    restarts = known.get("restarts", 0) + 1 if again and known.get("schedules") == schedules else 0
    remark = replaced(home / "prefect.db")
    with ExitStack() as stack:
        listeners = [stack.enter_context(one) for one in _listen(port, last_port, host)]
        numbers = [one.fileno() for one in listeners]
        listens = listeners[0].getsockname()[1]
        server = _embedded(home, listens)
        command = [sys.executable, "-P", "-m", "regrow.infra.prefect.process"]
        command += ["--home", str(home), "--users", str(home / "users.lock")]
        command += ["--socket", *map(str, numbers)]
        # Not in the user's folder or in the state root, whose settings files are not meant for it.
        child = spawn(
            command,
            home / "server.log",
            environment=server_environment(home, server.api_url, schedules=schedules),
            inherited=(lock, *numbers),
            umask=0o077,
        )
    record = {
        "pid": child.pid,
        "port": listens,
        "api_url": server.api_url,
        "schedules": schedules,
        "since": time.time(),
        "host": host,
        "restarts": restarts,
    }
    private_files.replace(home / "server.json", json.dumps(record))
    return PrefectServerHandle(server, home, Supervised.of(child), remark)


def replaced(database: Path) -> str | None:
    """Set a database aside with which no server would start. Returns a line for the user about
    that; None if the database is usable or missing.

    The caller holds the server's lock, so no server has the database open.
    """
    why = damage(database)
    if why is None:
        try:
            at = revision(database)
        except sqlite3.Error:  # missing, or without migrations, which the server then makes
            return None
        if at is None or is_known(at, "prefect", MIGRATIONS):
            return None
        why = "made by another version of Prefect, which this one does not know"
    return (
        f"Prefect's records are unusable ({why}) and in {set_aside(database)} now; experiments lack"
        " nothing, as their logs have all of it; make schedules again, with `regrow schedule`"
    )


def server_environment(home: Path, api_url: str, *, schedules: bool) -> dict[str, str]:
    """Return the whole environment of the server for `api_url`; `schedules`: enable the services of
    a station.

    The password is not in it: our own guard in front of the server checks it (`process.py`).
    """
    foreign = (
        "PREFECT_API_",
        "PREFECT_SERVER_",
        "PREFECT_UI_",
        "PREFECT_HOME",
        "PREFECT_PROFILE",
        "PREFECT_LOGGING_",
    )
    settings = {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": url_of(home / "prefect.db", "sqlite+aiosqlite"),
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "PREFECT_SERVER_API_PORT": str(urllib.parse.urlsplit(api_url).port),
        "PREFECT_SERVER_UI_API_URL": "/api",  # relative: the page may be opened under any name
        # The default lets any web page call this API.
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": api_url.removesuffix("/api"),
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_LEVEL": "WARNING",
        # The catalogue of the UI's "Blocks": 0.7 s of CPU. Clients register the types they use.
        "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": str(schedules).lower(),
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "[]",
        # One transaction for many events instead of one each: 7 ms of CPU per task run instead of
        # 29 ms. Shown 1 s later.
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "200",
        "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        **{
            f"PREFECT_SERVER_SERVICES_{name}_ENABLED": str(schedules).lower()
            for name in _STATION_SERVICES
        },
        **_pages(home),
        **CLIENT_ENVIRONMENT,
    }
    return {**{k: v for k, v in os.environ.items() if not k.startswith(foreign)}, **settings}


def _pages(home: Path) -> dict[str, str]:
    """Return the setting of a folder for the files of Prefect's pages; empty for the usual one.

    Prefect copies them beside its own code, and does not start if it cannot: where another user has
    installed it, or has made these copies with a private umask.
    """
    found = find_spec("prefect")
    code = Path(found.origin).parent / "server" if found and found.origin else home
    usual = [code, *(path for path in (code / "ui_build", code / "ui_v2_build") if path.exists())]
    if all(os.access(path, os.R_OK | os.W_OK | os.X_OK) for path in usual):
        return {}
    return {"PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "pages")}


def _embedded(home: Path, port: int) -> PrefectServer:
    url = f"http://127.0.0.1:{port}"
    return PrefectServer(api_url=f"{url}/api", ui_url=url, embedded=True, auth=homes.auth(home))


def _listen(port: int | None, last_port: int, host: str | None = None) -> list[socket.socket]:
    """Bind before the child starts: a taken port is noticed at once, and clients may connect while
    it boots.

    With `host`, listens there and on the loopback, where processes of this machine find it.
    """
    for candidate in (port,) if port is not None else (last_port, 0):
        try:
            return addresses.listen(host, candidate)
        except OSError as error:
            reason = error
    if port is not None:
        raise UserError(
            f"Port {port} for the Prefect server can't be used ({os.strerror(reason.errno or 0)}):"
            " choose another"
        )
    raise reason


def _check_adopted(api_url: str) -> None:
    where = f"PREFECT_API_URL is {redacted(api_url)!r}"
    advice = (
        "start that server, correct the URL, or unset it (also in the profile) to use an embedded"
        " server"
    )
    parts = addresses.parts_of(api_url, "PREFECT_API_URL")
    netloc = parts.netloc.rpartition("@")[2]  # Prefect checks whether the password is right
    # Prefect Cloud serves no health check below the URL of a workspace.
    path = "/api" if "/accounts/" in parts.path else parts.path
    health = f"{parts.scheme}://{netloc}{path}/health"
    try:
        with urllib.request.urlopen(health, timeout=ADOPTION_SECONDS):
            return
    except urllib.error.HTTPError as error:
        if error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            return  # it exists; Prefect checks whether the key is right
        reason = f"{health} answers {error.code} {error.reason} (does the URL end in /api?)"
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = f"nothing answers there ({getattr(error, 'reason', error)})"
    raise UserError(f"{where}, but {reason}: {advice}")
