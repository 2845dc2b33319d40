"""Machines that are reached by SSH: running commands on them, and tunnels to them."""

from __future__ import annotations

import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from regrow.infra.machine.supervised import attached
from regrow.tasks.errors import RegrowError

_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "IdentitiesOnly=yes",
    "LogLevel=ERROR",
)
_TUNNEL_SECONDS = 20.0
_TICK = 0.05
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
        words = self._words(command)
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

    def hold(self, command: str) -> AbstractContextManager[IO[bytes]]:
        """Run a command in the login shell there for the duration of the block. It also ends if the
        connection breaks. Yields its output.
        """
        # the input ends with the connection
        held = f"{command} & child=$!; cat > /dev/null; kill $child"
        return attached(self._words(held))

    @contextmanager
    def tunnel(self, port: int) -> Iterator[int]:
        """Open a local port that leads to a loopback port there. Raises RegrowError."""
        here = _free(port)
        forward = ["-N", "-L", f"127.0.0.1:{here}:127.0.0.1:{port}"]
        words = [*self._ssh("ExitOnForwardFailure=yes"), *forward, *self._login]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        try:
            self._wait(process, here)
            yield here
        finally:
            process.terminate()
            process.communicate()

    def _wait(self, process: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + _TUNNEL_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            if process.poll() is not None:
                said = process.stderr.read() if process.stderr else b""
                told = said.decode(errors="replace").strip()
                raise RegrowError(f"{self.address} cannot be reached: {told or 'ssh ended'}")
            if time.monotonic() > deadline:
                raise RegrowError(f"{self.address} did not answer within {_TUNNEL_SECONDS:g} s")
            time.sleep(_TICK)

    @property
    def _login(self) -> list[str]:
        return ["--", f"{self.user}@{self.address}"]

    def _words(self, command: str) -> list[str]:
        """Return the command that runs another one in the login shell there."""
        return [*self._ssh(), *self._login, f"bash -lc {shlex.quote(command)}"]

    def _ssh(self, *more: str) -> list[str]:
        known = str(self.known_hosts).replace("%", "%%")  # ssh expands %
        own = ("StrictHostKeyChecking=accept-new", f'UserKnownHostsFile="{known}"', *more)
        options = [word for option in (*_OPTIONS, *own) for word in ("-o", option)]
        return ["ssh", "-i", str(self.key), *options]


def _free(port: int) -> int:
    """Return the same port if it is free here, because Prefect's page requests its data at the port
    where it was served; else any free port. Raises RegrowError if there is none.
    """
    for wanted in (port, 0):
        with suppress(OSError), socket.create_server(("127.0.0.1", wanted)) as probe:
            return int(probe.getsockname()[1])
    raise RegrowError("no port of the loopback is free here")
