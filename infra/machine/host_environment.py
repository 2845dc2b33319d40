"""What of ordinary machines keeps our processes apart: a proxy, a long TMPDIR, few open files.

Only settings for our own processes are made here; the user's settings for others stay unchanged.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

from regrow.infra.machine.processes import all_processes, threads
from regrow.tasks.errors import UserError
from regrow.tasks.process import cgroup, disk, temporary

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Addresses on which embedded servers listen."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LOOPBACK_6 = re.compile(r"^\[?::1\]?(/128)?$")
_LONGEST_SOCKET = 103 if sys.platform == "darwin" else 107
"""Most bytes of a Unix socket's path."""
_BELOW = len("/ray/session_2026-11-22_13-43-00_123456_1234567/sockets/plasma_store.9")
"""Length of what Ray appends to a folder for temporary files (2.60)."""
FILES = 65536
"""Open files to request; Ray's own processes request as many."""
LEAST_FILES = 128
"""Fewest open files with which a run came to its end (Ray 2.60, Prefect 3.8); with 64 it hung."""

_FORKS = ("_execute_child", "_launch", "fork", "forkpty")
"""Functions of Python that start a process; EAGAIN of another one is of a lock or a socket."""
LEAST_SPACE = 16 * 10**9
"""Least address space of a process: raylets of 7 to 14.5 GB and workers of 9.3 were seen, and with
10 a raylet ended each time that it had started (Ray 2.60). Most of it is no memory.
"""
_REFUSALS = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ESTALE,
    errno.EIO,
    *disk.FULL,
}
"""Errors that say something of a path, and nothing of the program that uses it."""
LEAST_TASKS = 300
"""Fewest processes and threads that a run of two trials at a time needs: 251 were counted, and with
250 it hung (Ray 2.60, Prefect 3.8). Each further trial adds some 30.
"""


def direct(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables with which requests to this machine bypass the proxy; empty if no variable
    is set that concerns one.

    Corporate machines have a proxy configured, often without an exception for loopback. Requests to
    our own servers would go to it. The loopback of IPv6 is written without brackets and length, as
    httpx, of which Prefect's client is made, takes it only so, even where no proxy is set.
    """
    before = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    names = (*_PROXIES, "no_proxy")
    if not any(environment.get(name) or environment.get(name.upper()) for name in names):
        return {}
    given = (_LOOPBACK_6.sub("::1", part.strip()) for part in before.split(","))
    hosts = list(dict.fromkeys(host for host in given if host))
    if "*" in hosts:
        return {}
    hosts += [host for host in LOOPBACK if host not in hosts]
    return {"no_proxy": ",".join(hosts), "NO_PROXY": ",".join(hosts)}


def ray_folder(environment: Mapping[str, str]) -> Path:
    """Return a folder for the sockets, logs and spilled objects of this process's Ray, private to
    this user and removed with the process.

    Ray's own default, /tmp/ray, is shared by all users, who could put links there for Ray to write
    through. The folder is below RAY_TMPDIR or TMPDIR; below /tmp if TMPDIR is too long, as TMPDIRs
    that cluster schedulers set per job. RAY_TMPDIR itself is used if only a folder below it would
    be too long and it is private to the user. Raises UserError if RAY_TMPDIR is too long otherwise,
    or if there is no place.
    """
    room, given = _LONGEST_SOCKET - _BELOW, environment.get("RAY_TMPDIR")
    try:
        base = given or tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UserError(
            f"Ray needs a folder for its sockets: {error.strerror}; name one in TMPDIR"
        ) from error
    most = room - temporary.longest("/")
    if temporary.longest(base) > room:
        if given is not None and len(os.fsencode(given)) <= room and _alone(given):
            return Path(given) / "ray"
        if given is not None:
            raise UserError(
                f"RAY_TMPDIR is {given!r}: Ray's sockets need a folder with a short name; name one"
                f" of at most {most} bytes, or of {room} that only you may enter (chmod 700)"
            )
        base = "/tmp"  # noqa: S108 - the folder made there is private to this user
    try:
        return temporary.process_temp_dir(base) / "ray"
    except OSError as error:
        raise UserError(
            f"Ray needs a folder for its sockets, and {base} has no place for it"
            f" ({error.strerror}); name one of at most {most} bytes in TMPDIR"
        ) from error


def _alone(folder: str) -> bool:
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o077


def a_home(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a HOME variable for a user without a home, such as a nameless user id in a container;
    empty if there is one. Prefect and MLflow need it.
    """
    if not environment.get("HOME"):
        try:
            Path.home()
        except RuntimeError:
            try:
                return {"HOME": str(temporary.process_temp_dir())}
            # No folder at all: most commands need none, and the others report what they lack.
            except OSError:
                return {"HOME": "/"}
    return {}


def check_loopback() -> None:
    """Raise UserError where this machine cannot reach its own servers: they would be awaited for
    minutes. A bare network namespace has its loopback down.
    """
    try:
        with socket.create_server((LOOPBACK[0], 0)) as server:
            socket.create_connection(server.getsockname(), timeout=10.0).close()
    except OSError as error:
        raise UserError(
            f"this machine cannot reach itself at {LOOPBACK[0]} ({error.strerror or error}), where"
            " regrow's servers listen; turn its loopback on (`ip link set lo up`), or run it in a"
            " container with a network"
        ) from None


def check_tasks(root: Path = cgroup.ROOT) -> None:
    """Raise UserError where fewer processes and threads may be started than a run needs: it would
    hang, or end with errors from anywhere.
    """
    free, group = cgroup.free_tasks(root)
    by, more = f"the cgroup {group}", "--pids-limit of a container, TasksMax of a systemd unit"
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY and os.getuid() != 0:  # root has no such limit
        own = most - sum(threads(process) for process in all_processes())
        if own < free:
            free, by, more = own, "`ulimit -u`", "`ulimit -u` in the shell that set this limit"
    if free < LEAST_TASKS:
        raise UserError(
            f"only {max(0, int(free))} more processes and threads may be started here (a limit of"
            f" {by}), and regrow's servers and Ray need {LEAST_TASKS}; allow more ({more})"
        )


def check_sizes(store: int) -> None:
    """Raise UserError where a process may have less address space, or a file be smaller, than Ray
    needs: its processes would end as they start, and again and again. `store`: bytes of its object
    store, which is a file.
    """
    for limit, least, what, name in (
        (resource.RLIMIT_AS, LEAST_SPACE, "of address space for a process", "-v"),
        (resource.RLIMIT_FSIZE, store, "for a file", "-f"),
    ):
        most, _ = resource.getrlimit(limit)
        if 0 <= most < least:  # infinity is -1
            raise UserError(
                f"only {disk.size(most)} {what} are allowed here (`ulimit {name}`), and Ray needs"
                f" {disk.size(least)}; allow more, as `ulimit {name} unlimited` in the shell that"
                " set this limit, or by the batch system's request for memory"
            )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on, each once."""
    seen = set[int]()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        before = None if cause.__suppress_context__ else cause.__context__
        cause = cause.__cause__ or before


def exhausted(error: BaseException) -> str:
    """Return what this machine has run out of, for people, if that caused the error, else ""."""
    for cause in causes(error):
        number = cause.errno if isinstance(cause, OSError) else None
        frames = traceback.extract_tb(cause.__traceback__)
        forked = bool(frames) and frames[-1].name in _FORKS
        if (number == errno.EAGAIN and forked) or "can't start new thread" in str(cause):
            return (
                "no more processes or threads may be started here (`ulimit -u`, a cgroup's limit)"
            )
        if number in (errno.EMFILE, errno.ENFILE):
            return "no more files may be open here (`ulimit -n`)"
        if number == errno.ENOMEM or isinstance(cause, MemoryError):
            return "there is no memory left here"
    return ""


def refused_path(error: BaseException) -> str:
    """Return which path this machine refuses to a user, and why, if that is the error, else ""."""
    if not isinstance(error, OSError) or error.errno not in _REFUSALS or error.filename is None:
        return ""
    named = " -> ".join(
        os.fsdecode(path) if isinstance(path, bytes) else str(path)
        for path in (error.filename, error.filename2)
        if path is not None
    )
    return f"{named}: {error.strerror}"


def raise_file_limit() -> None:
    """Allow as many open files as the system does: macOS starts with 256. Raises UserError where
    those are fewer than the servers need, which would neither start nor end.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LEAST_FILES:
        raise UserError(
            f"only {hard} files may be open at a time here (`ulimit -Hn`), and regrow's servers"
            f" need {LEAST_FILES}; allow more, as `ulimit -n 4096` in the shell that set this limit"
        )
    wanted = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
