"""Calling kubectl, and its errors in one line."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from regrow.tasks.errors import RegrowError, UserError

Json = dict[str, Any]


class NoOperator(RegrowError):
    """The cluster has no KubeRay operator, or an old one: RayClusters are unknown there."""


_FORWARDED = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ")
_SECONDS = 60.0
"""Seconds for a call that only reads or writes an object."""
_NO_OPERATOR = (
    "has no KubeRay operator, or an old one; have one of 1.7 or later installed: "
    "https://docs.ray.io/en/latest/cluster/kubernetes/getting-started.html"
)
_TOO_OLD = "Jobs of agents need Kubernetes 1.26 or later"
_NO_KIND = re.compile(r"""doesn't have a resource type ["']?ray|no matches for kind "Ray""")
_UNKNOWN_FIELD = re.compile(r"""unknown field "([^"]+)"|\.([\w.]+): field not declared in schema""")
_NOT_REACHED = (
    "was refused",
    "dial tcp",
    "no such host",
    "i/o timeout",
    "Unable to connect to the server",
    "connection reset",
)


class Kubectl:
    """kubectl for one namespace. `context` None: its current one. Raises RegrowError, UserError."""

    def __init__(self, context: str | None, namespace: str, program: str = "kubectl") -> None:
        self.context, self.namespace, self.program = context, namespace, program

    def words(self, *words: str) -> list[str]:
        """Return the whole command."""
        context = (f"--context={self.context}",) if self.context else ()
        return [self.program, *context, f"--namespace={self.namespace}", *words]

    def run(self, *words: str, stdin: bytes = b"", timeout: float | None = _SECONDS) -> bytes:
        """Run kubectl and return its output."""
        done = self.attempt(*words, stdin=stdin, timeout=timeout)
        if done.returncode:
            raise self.failure(done.stderr.decode(errors="replace"))
        return done.stdout

    def attempt(
        self, *words: str, stdin: bytes = b"", timeout: float | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run kubectl and return the result, whatever its exit code."""
        try:
            return subprocess.run(
                self.words(*words), input=stdin, capture_output=True, check=False, timeout=timeout
            )
        except FileNotFoundError:
            raise self._missing() from None
        except subprocess.TimeoutExpired:
            raise RegrowError(f"{self._there()} did not answer within {timeout:g} s") from None

    def apply(self, objects: bytes) -> None:
        """Create or update objects, passed by stdin: secrets are never in a command line."""
        how = ("--server-side", "--force-conflicts", "--field-manager=regrow")
        self.run("apply", *how, "--filename=-", stdin=objects)

    def get(self, kind: str, name: str) -> Json | None:
        """Return an object; None if there is none of that name."""
        said = self.run("get", kind, name, "--ignore-not-found", "--output=json")
        found: Json | None = json.loads(said) if said.strip() else None
        return found

    def listed(self, kinds: str, selector: str) -> list[Json]:
        """Return the objects of these kinds (separated by commas) that a label selector finds."""
        said: Json = json.loads(self.run("get", kinds, f"--selector={selector}", "--output=json"))
        return list(said["items"])

    @contextmanager
    def forwarded(self, pod: str, port: int) -> Iterator[int]:
        """Open a local loopback port that leads to a port of a pod."""
        words = self.words("port-forward", "--address=127.0.0.1", f"pod/{pod}", f":{port}")
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except FileNotFoundError:
            raise self._missing() from None
        assert process.stdout is not None
        try:
            patience = threading.Timer(_SECONDS, process.terminate)
            patience.start()
            try:
                line = process.stdout.readline(1000)
            finally:
                patience.cancel()
            if (found := _FORWARDED.match(line)) is None:
                if line:  # otherwise it has ended
                    process.terminate()
                raise self.failure(process.communicate()[1].decode(errors="replace"))
            yield int(found[1])
        finally:
            process.terminate()
            process.communicate()

    def failure(self, said: str) -> RegrowError:
        """Return the error for kubectl's message."""
        lines = [
            line.strip()
            for line in said.splitlines()
            if line.strip() and not re.match(r"[EWI]\d{4} ", line)
        ]
        last = lines[-1].removeprefix("error: ") if lines else "kubectl ended without a word"
        if "context" in last and ("does not exist" in last or "not found" in last):
            return UserError(
                f"context: {self.context}: kubectl knows no such context; see kubectl config"
                " get-contexts"
            )
        if "current-context" in last or "no configuration has been provided" in last:
            return UserError(
                "kubectl has no cluster to talk to; write `context:`, or choose one with kubectl"
                " config use-context"
            )
        unknown = _UNKNOWN_FIELD.search(said)
        if _NO_KIND.search(said) or (unknown is not None and "Ray" in said):
            return NoOperator(f"{self._there()} {_NO_OPERATOR}")
        if unknown is not None:
            return RegrowError(
                f"{self._there()} does not know {unknown[1] or unknown[2]}: {_TOO_OLD}"
            )
        if any(sign in last for sign in _NOT_REACHED):
            return RegrowError(f"{self._there()} cannot be reached: {last}")
        return RegrowError(f"{self._there()} refuses: {last}")

    def _missing(self) -> UserError:
        return UserError(
            f"there is no command {self.program} here; install it:"
            " https://kubernetes.io/docs/tasks/tools/"
        )

    def _there(self) -> str:
        named = f" of the context {self.context}" if self.context else ""
        return f"the Kubernetes cluster{named}"
