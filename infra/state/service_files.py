"""Where the files of a state root's embedded services are.

`<state>/.services/` has them where the state is in a folder of this machine's. With the state in a
bucket, and on cluster machines, which share the state's folder, they are in a local folder:
$REGROW_HOME/<bucket>-<hash of the URL>/, by default below $XDG_DATA_HOME/regrow
(~/.local/share/regrow). The same holds for a user of a state root whose `.services` belongs to
another user, or who may not make one there.

Several hosts may share a state root on one file system. The records of services (127.0.0.1, process
ids) are valid on one host only, and their databases are made for one host. So the folder belongs to
the host whose processes use it. Another host that arrives meanwhile gets, from then on, its own
folder inside:

* `<folder>/host`: the owner's identity; each process that uses the folder holds a shared lock on it
  for its lifetime
* `<folder>/on/<host>/`: the same files, for a host that found the folder in use by another

An unused folder may be taken by any host: a host may get another name, as containers do each time.
The folder is readable by its owner only, always.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from regrow.infra.machine import locks, private_files
from regrow.infra.machine.given_files import resolved
from regrow.infra.stores import Root
from regrow.infra.stores.local import unusable
from regrow.tasks.errors import UserError

_WAIT_SECONDS = 1.0
"""Seconds to wait for the lock: a process that only looks at it holds it for an instant."""
_held: dict[Path, int] = {}
"""Lock files that stay open for the lifetime of this process."""


MOST_PATH = 500
"""Most bytes of a database's path; SQLite 3.40 opened none with 505."""
_LONGEST = "prefect/prefect.db"
"""The database below a folder of services with the longest path."""


def common(root: Root, beside: Path | None) -> Path:
    """Return the folder for the services of a root on all hosts. One folder per state root, even if
    two servers have buckets of the same name.

    `beside`: the folder of the state, whose `.services` is used unless it is another user's, or can
    only be made by one. None: other machines see the state too.
    """
    if beside is not None and not _is_another_users(inside := beside / ".services"):
        return inside
    name = root.url.partition("://")[2].partition("/")[0].partition("?")[0] or "folder"
    digest = hashlib.sha256(f"{root.url}\n{root.endpoint}".encode()).hexdigest()[:12]
    return home() / f"{name}-{digest}"


def make(root: Root, beside: Path | None) -> None:
    """Create the root and the folder for this host's services. Raises UserError."""
    if beside is None or not beside.exists():
        root.check_writable()
    services = common(root, beside)
    try:
        private_files.folder(services)
        services = private_files.folder(common(root, beside))  # another user's may have come first
        # This host's folder, if the file system is shared and another host owns the outer one.
        settle(services)
        services = folder(services)
        _check_length(services)
        # Without a name of its own: several threads and processes may begin at once.
        tempfile.TemporaryFile(dir=services).close()
    except OSError as error:
        if beside is not None and services.is_relative_to(beside):
            raise unusable(root.url, "written", error) from error
        raise UserError(
            f"{services}, where Prefect and MLflow would keep their files, cannot be written"
            f" ({error.strerror}); name another folder in REGROW_HOME"
        ) from error


def _check_length(services: Path) -> None:
    """Raise UserError where the databases would have a longer path than SQLite opens."""
    over = len(os.fsencode(services / _LONGEST)) - MOST_PATH
    if over > 0:
        raise UserError(
            f"{str(services)[:100]}...: the path of the state is {over} bytes longer than SQLite"
            " opens databases at; choose a shorter one with --state or REGROW_STATE"
        )


def home() -> Path:
    """Return where services keep files if the state is remote: $REGROW_HOME, else XDG data."""
    if chosen := os.environ.get("REGROW_HOME"):
        return resolved(chosen, where="REGROW_HOME: ")
    data = os.environ.get("XDG_DATA_HOME", "")
    # A relative XDG_DATA_HOME is ignored, as the XDG rules demand.
    base = Path(data) if os.path.isabs(data) else Path("~/.local/share").expanduser()
    return base / "regrow"


def _is_another_users(folder: Path) -> bool:
    """Return whether the folder belongs to another user, who may have written anything there, or
    only another user may make it.
    """
    try:
        return folder.stat().st_uid != os.getuid()
    except FileNotFoundError:
        return folder.parent.is_dir() and not os.access(folder.parent, os.W_OK)
    except OSError:
        return False


def folder(services: Path) -> Path:
    """Return the folder of this host: `services`, or the one inside it. Creates nothing."""
    own = services / "on" / _name()
    return own if os.path.isdir(own) or _is_anothers(services) else services


def settle(services: Path) -> None:
    """Take `services` for this host for the lifetime of this process. If another host has it,
    create this host's folder inside.

    `services` must exist. Raises OSError if the folder cannot be taken or created.
    """
    if services in _held or folder(services) != services:
        private_files.folder(folder(services))
        return
    file = services / "host"
    lock = locks.acquire(file, wait=_WAIT_SECONDS)
    if lock is not None:  # unused, except by a server that stays a while after its last user
        if file.read_text() != _identity() and locks.is_held(services / "prefect" / "server.lock"):
            lock.close()
            private_files.folder(services / "on" / _name())
            return
        file.write_text(_identity())
        fcntl.flock(lock, fcntl.LOCK_SH)
    else:
        lock = locks.acquire(file, shared=True, wait=_WAIT_SECONDS)
    if lock is None or _is_anothers(services):  # taken by another host meanwhile
        private_files.folder(services / "on" / _name())
        return
    _held[services] = os.dup(lock.fileno())  # stays open until this process ends
    lock.close()


def _is_anothers(services: Path) -> bool:
    file = services / "host"
    try:
        if file.read_text() in ("", _identity()):
            return False
        with file.open("r+") as mine:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or no locks: assume that this is the only host
        return False
    return False


def _identity() -> str:
    """Return what differs between two hosts that run at the same time. Also differs between
    containers, whose loopback interfaces are separate.
    """
    parts = [_name()]
    with suppress(OSError):  # missing on systems other than Linux
        parts += [
            Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            os.readlink("/proc/self/ns/net"),
        ]
    return " ".join(parts)


def _name() -> str:
    """Return this host's folder name: its host name and, since host names may repeat, a hash of it
    and of the machine id from the installation.
    """
    try:
        machine = Path("/etc/machine-id").read_bytes()
    except OSError:
        machine = b""
    host = socket.gethostname()
    readable = "".join(letter if letter.isalnum() else "-" for letter in host.partition(".")[0])
    return f"{readable}-{hashlib.sha256(host.encode() + machine).hexdigest()[:8]}"
