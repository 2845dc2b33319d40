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


@contextmanager
def restored() -> Iterator[None]:
    """Restore the process after the block: working folder, umask, standard streams, hooks for
    exceptions, the limit of recursion, the default timeout of sockets, lowered limits of resources
    and, in the main thread, the handlers of signals and the alarm. Otherwise the next attempt would
    begin in a folder that this one has deleted, print into a file that it has closed, or could
    start no thread.

    Environment variables and the import path stay as they are: libraries set them once.
    """
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    streams, deep, umask = (sys.stdout, sys.stderr), sys.getrecursionlimit(), _umask()
    limits = {one: resource.getrlimit(one)[0] for one in _LIMITS}
    timeout, folder, process = socket.getdefaulttimeout(), _folder(), os.getpid()
    main = threading.current_thread() is threading.main_thread()
    handlers = {one: signal.getsignal(one) for one in _SIGNALS} if main else {}
    try:
        yield
    finally:
        if os.getpid() == process:  # else a forked child that is about to end
            sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
            sys.stdout, sys.stderr = streams
            os.umask(umask)
            socket.setdefaulttimeout(timeout)
            for one, before in limits.items():
                now, most = resource.getrlimit(one)
                # Infinity is -1. A library that has raised a limit may rely on it.
                if now != resource.RLIM_INFINITY and not 0 <= before <= now:
                    with suppress(OSError, ValueError):  # the hard limit is lower, too
                        resource.setrlimit(one, (before, most))
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
