"""Links that log a browser in once, and its sessions: both are signed, so no list is needed.

A link has its token in the query parameter `login`. The guard (`guard.py`) of the server that it is
made for accepts it once. The key is in the passwords file, so only users who may read that file can
make links.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
import urllib.parse

QUERY = "login"
"""Query parameter of the token in a link."""
LINK_SECONDS = 3600.0
"""How long a link is valid; people read a terminal late."""
SESSION_SECONDS = 14 * 86_400.0
"""How long a browser stays logged in."""
SESSION = "session"


def link(url: str, key: str, server: str) -> str:
    """Return the address of one of our pages, with a token that logs one browser in at `server`."""
    parts = urllib.parse.urlsplit(url)
    query = "&".join(filter(None, [parts.query, f"{QUERY}={sign(key, server, LINK_SECONDS)}"]))
    return parts._replace(path=parts.path or "/", query=query).geturl()


def sign(key: str, purpose: str, seconds: float) -> str:
    """Return a token for `purpose` that is valid for `seconds` from now."""
    claims = f"{int(time.time() + seconds)}.{secrets.token_urlsafe(6)}"
    return f"{claims}.{_signature(key, purpose, claims)}"


def expiry(token: str, key: str, purpose: str) -> float | None:
    """Return until when (seconds since 1970) a token is valid for `purpose`, else None."""
    claims, _, signature = token.rpartition(".")
    if not hmac.compare_digest(
        signature.encode("utf-8", "surrogatepass"), _signature(key, purpose, claims).encode()
    ):
        return None
    until = float(claims.partition(".")[0])
    return until if time.time() < until else None


def cookie_name(key: str) -> str:
    """Return the name of the session cookie. Browsers send cookies to all ports of a host, so each
    state root has its own name.
    """
    return f"regrow-{_signature(key, 'name', '')[:8]}"


def _signature(key: str, purpose: str, claims: str) -> str:
    """Return a signature of 128 bits: a link has to fit in one line."""
    whole = hmac.new(
        key.encode(), f"{purpose}\0{claims}".encode("utf-8", "surrogatepass"), hashlib.sha256
    ).digest()
    return base64.urlsafe_b64encode(whole[:16]).decode().rstrip("=")
