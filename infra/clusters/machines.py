"""Machines that are reached by SSH: running commands on them."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from regrow.tasks.errors import RegrowError

_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "IdentitiesOnly=yes",
    "LogLevel=ERROR",
)
UNREACHABLE = 255
"""Exit code of ssh if it could not connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A machine and its SSH login. `known_hosts`: file with the keys of machines seen before."""

    address: str
    user: str
    key: Path
    known_hosts: Path

    def run(
        self, command: str, *, timeout: float | None = None, given: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a command in the login shell there, with `given` as its input. Exit code 255: it
        could not be reached.
        """
        files = {"UserKnownHostsFile": self.known_hosts, "IdentityFile": self.key}
        escaped = {name: str(file).replace("%", "%%") for name, file in files.items()}
        own = (f'{name}="{file}"' for name, file in escaped.items())
        asked = (*_OPTIONS, "StrictHostKeyChecking=accept-new", *own)
        options = [word for option in asked for word in ("-o", option)]
        words = ["ssh", *options, "--", f"{self.user}@{self.address}"]
        words.append(f"bash -lc {shlex.quote(command)}")
        try:
            return subprocess.run(
                words, input=given, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(
                words, UNREACHABLE, b"", f"no answer in {timeout:g} s".encode()
            )
        except FileNotFoundError:
            raise RegrowError("there is no program ssh here; install OpenSSH's client") from None
