"""What a trainable may change in its process, where further attempts run after it."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

CHANGED = threading.Event()
"""Set in a process that a trainable has changed for good: it should run no further attempt."""
_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_LIMITS = (
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
    resource.RLIMIT_AS,
    resource.RLIMIT_DATA,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_CPU,
)
_CALLED = (
    "builtins",
    "contextlib",
    "fcntl",
    "functools",
    "hashlib",
    "io",
    "json",
    "math",
    "os",
    "pickle",
    "posixpath",
    "queue",
    "random",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "stat",
    "struct",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "zlib",
)
"""Modules whose functions we and Ray call. In others, libraries replace functions for good as they
are imported: PyTorch 2 `inspect.getfile`.
"""
_Names = dict[str, Any]


@contextmanager
def restored() -> Iterator[None]:
    """Restore the process after the block: working folder, umask, standard streams, hooks for
    exceptions, the limit of recursion, the default timeout of sockets, lowered limits of resources,
    functions that we call and, in the main thread, the handlers of signals and the alarm. Otherwise
    the next attempt would begin in a folder that this one has deleted, print into a file that it
    has closed, or could start no thread.

    Environment variables and the import path stay as they are: libraries set them once. Sets
    CHANGED if functions or modules were replaced, or a limit cannot be raised again.
    """
    modules = dict(sys.modules)
    called = [modules[name] for name in _CALLED if name in modules]
    functions = [(module, dict(vars(module))) for module in called]
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    streams, deep, umask = (sys.stdout, sys.stderr), sys.getrecursionlimit(), _umask()
    limits = {one: resource.getrlimit(one)[0] for one in _LIMITS}
    timeout, folder, process = socket.getdefaulttimeout(), _folder(), os.getpid()
    main = threading.current_thread() is threading.main_thread()
    handlers = {one: signal.getsignal(one) for one in _SIGNALS} if main else {}
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
        _put_back(modules, functions)
        if os.getpid() == process:  # else a forked child that is about to end
            sys.stdout, sys.stderr = streams
            os.umask(umask)
            socket.setdefaulttimeout(timeout)
            for one, before in limits.items():
                now, most = resource.getrlimit(one)
                # Infinity is -1. A library that has raised a limit may rely on it.
                if now != resource.RLIM_INFINITY and not 0 <= before <= now:
                    try:
                        resource.setrlimit(one, (before, most))
                    except (OSError, ValueError):  # the hard limit is lower, too
                        CHANGED.set()
            with suppress(RecursionError):  # it is deeper than that by now
                sys.setrecursionlimit(deep)
            if folder is not None and _folder() != folder:
                with suppress(OSError):
                    os.chdir(folder)
            if main:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for one, handler in handlers.items():
                if handler is not None and signal.getsignal(one) is not handler:
                    signal.signal(one, handler)


def _put_back(modules: dict[str, ModuleType], functions: list[tuple[ModuleType, _Names]]) -> None:
    """Put back what was replaced or removed. Calls nothing of the standard library."""
    ours = {*_CALLED, "regrow", "ray"}
    for name, module in modules.items():
        if sys.modules.get(name) is not module and name.partition(".")[0] in ours:
            sys.modules[name] = module
            CHANGED.set()
    for module, before in functions:
        now = vars(module)
        for name, value in before.items():
            if name[0] != "_" and callable(value) and now.get(name) is not value:
                now[name] = value
                CHANGED.set()


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _umask() -> int:
    """Return the umask, which can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask
