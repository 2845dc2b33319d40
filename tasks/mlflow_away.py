"""What an MLflow that is away does to a trial: a warning for each kind of call, and a while in which none is tried.

Only writing is forgiven so. What a user's own mistake raises is raised, and so is a question that nobody can answer meanwhile.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import requests
from mlflow.exceptions import MlflowException, RestException

from regrow.tasks.addresses import shown
from regrow.tasks.forking import renewed

_LOG = logging.getLogger("regrow.trial")
QUIET_SECONDS = 30.0
"""For how long calls are dropped after one that did not reach MLflow: each costs its retries."""
QUIET_TIMES = 5.0
"""Or for so many times as long as that one took, so that a server that hangs costs a sixth of a trial's time at most."""
_TOO_MANY_REQUESTS, _SERVER_ERROR = 429, 500
_UNREACHABLE = {
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ENOTCONN, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
}
"""Of a folder or a machine that is out of order; a file that is missing or not allowed is the user's own matter."""
_STORAGE = {"aiohttp", "azure", "boto3", "botocore", "google", "grpc", "paramiko", "s3fs", "s3transfer", "urllib3"}
"""Libraries through which MLflow reaches artifacts: their errors are many, and none is about what a trial has given."""

_T = TypeVar("_T")


def is_away(error: Exception) -> bool:
    """Whether MLflow, or the place of its artifacts, could not be reached or had trouble of its own."""
    if isinstance(error, MlflowException):
        status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]  # mlflow's
        if status == _SERVER_ERROR and not isinstance(error, RestException):
            # What MLflow's own code gives where it names no other: it counts if it was a server's answer, or has such a cause.
            return str(error).startswith("API request ") or any(map(_is_broken, _causes(error)))
        return _is_trouble(status)
    return _is_broken(error)


def _is_trouble(status: int) -> bool:
    """Whether an HTTP status is about the server rather than about what it was asked."""
    return status >= _SERVER_ERROR or status == _TOO_MANY_REQUESTS


def _is_broken(error: BaseException) -> bool:
    if isinstance(error, requests.RequestException):
        return error.response is None or _is_trouble(error.response.status_code)
    if isinstance(error, OSError):
        return isinstance(error, ConnectionError | TimeoutError) or error.errno in _UNREACHABLE
    return type(error).__module__.partition(".")[0] in _STORAGE


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


class Reach:
    """Calls of one attempt that may not get through. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        renewed(self)
        self._told: set[str] = set()
        self._quiet_until: dict[str, float] = {}
        """By kind; the empty one is all kinds."""
        self._why = ""

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()

    def try_(self, kind: str, call: Callable[[], _T], instead: Callable[[], _T]) -> _T:
        """What `call` returns; `instead`, and a word about the `kind` of things that are lost, if MLflow is away."""
        if time.monotonic() < max(self._quiet_until.get(kind, 0.0), self._quiet_until.get("", 0.0)):
            self.lost(kind)
            return instead()
        began = time.monotonic()
        try:
            return call()
        except Exception as error:
            if not is_away(error):
                raise
            now = time.monotonic()
            # Where MLflow itself does not answer nothing else is tried; the place of the artifacts may be another machine.
            about = "" if isinstance(error, MlflowException | requests.RequestException) else kind
            self._quiet_until[about] = now + max(QUIET_SECONDS, QUIET_TIMES * (now - began))
            self._why = shown(str(error)).strip().partition("\n")[0]
        self.lost(kind)
        return instead()

    def lost(self, kind: str) -> None:
        """Says once that such things are lost."""
        self.tell(kind, f"MLflow is away, and {kind} that the trainable logs to it meanwhile are lost: {self._why}")

    def tell(self, about: str, line: str) -> None:
        """A warning, once for what it is about."""
        with self._lock:
            if about in self._told:
                return
            self._told.add(about)
        _LOG.warning("%s", line)
