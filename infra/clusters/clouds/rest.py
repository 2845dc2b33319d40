"""Requests to the REST interface of a cloud, with a token of the cloud's command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import requests

from regrow.infra.machine import supervised
from regrow.infra.machine.commands import run
from regrow.tasks.errors import RegrowError, UserError

Json = dict[str, Any]
WAIT_SECONDS, TICK = 900.0, 2.0
"""Most seconds for a change in the cloud, and between two looks at it."""


def output_of(words: Sequence[str], hint: str) -> str:
    """Return what a cloud's command prints. Raises UserError if it is missing, or refuses."""
    done = run(words, seconds=None, hint=hint)
    if done.returncode != 0:
        message = " ".join(done.stderr.split()[-60:])
        raise UserError(f"`{' '.join(words)}` failed: {message}; {hint}")
    return done.stdout.strip()


class RestApi:
    """The interface of one cloud.

    Args:
        cloud: its name, for people.
        token: returns a token.

    """

    def __init__(self, cloud: str, token: Callable[[], str]) -> None:
        self._cloud, self._token = cloud, token
        self._known, self._since = "", 0.0

    def __call__(self, method: str, url: str, body: Json | None = None) -> Json | None:
        """Return the answer to a request; None: what is asked for is not there. Raises RegrowError,
        with the cloud's message, for what it refused.
        """
        # both clouds give a token that lasts at least as long
        if time.monotonic() - self._since > 300.0 or not self._known:
            self._known, self._since = self._token(), time.monotonic()
        headers = {"Authorization": f"Bearer {self._known}"}
        try:
            answer = requests.request(method, url, json=body, headers=headers, timeout=150.0)
        except requests.RequestException as error:
            raise RegrowError(f"{self._cloud}: {error}") from error
        if answer.status_code == requests.codes.not_found and method in ("GET", "DELETE"):
            return None
        found: Any = None
        with suppress(ValueError):  # the page of a proxy, say
            found = answer.json() if answer.content else {}
        if not answer.ok or not isinstance(found, dict):
            why = _message(found) or f"{answer.status_code} {answer.reason}"
            raise RegrowError(f"{self._cloud}: {why}")
        return found

    def listed(self, url: str, items: str, following: str) -> Iterator[Json]:
        """Yield all entries of a list. `items`: key of them; `following`: key of what says where
        the next ones are: an address, or a token of the parameter `pageToken`.
        """
        asked: str | None = url
        while asked:
            page = self("GET", asked) or {}
            yield from page.get(items, ())
            asked = page.get(following)
            if asked and "://" not in asked:
                asked = f"{url}{'&' if '?' in url else '?'}pageToken={quote(asked, safe='')}"


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until `holds` returns true. Raises RegrowError, naming `what`, if it takes too long."""
    if not supervised.until(holds, seconds=WAIT_SECONDS, tick=TICK):
        raise RegrowError(f"after {WAIT_SECONDS:g} s {what}")


def _message(answer: Any) -> str:
    error = answer.get("error", {}) if isinstance(answer, dict) else {}
    return str(error.get("message", "")) if isinstance(error, dict) else str(error)
