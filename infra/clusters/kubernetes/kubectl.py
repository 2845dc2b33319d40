"""Calling kubectl, and its errors in one line."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

from regrow.infra.machine.commands import run
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.output.traces import one_line

Json = dict[str, Any]


_SECONDS = 60.0
"""Seconds for a call that only reads or writes an object."""
_TOO_OLD = "Jobs of agents need Kubernetes 1.26 or later"
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

    def run(self, *words: str, given: str = "", seconds: float | None = _SECONDS) -> str:
        """Run kubectl and return its output."""
        done = self.attempt(*words, given=given, seconds=seconds)
        if done.returncode:
            raise self.failure(done.stderr)
        return done.stdout

    def attempt(
        self, *words: str, given: str = "", seconds: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return the result, whatever its exit code."""
        hint = "install it: https://kubernetes.io/docs/tasks/tools/"
        words = tuple(self.words(*words))
        return run(words, seconds=seconds, hint=hint, who=self._there(), given=given)

    def apply(self, objects: str) -> None:
        """Create or update objects, passed by stdin: secrets are never in a command line."""
        how = ("--server-side", "--force-conflicts", "--field-manager=regrow")
        self.run("apply", *how, "--filename=-", given=objects)

    def listed(self, kinds: str, selector: str) -> list[Json]:
        """Return the objects of these kinds (separated by commas) that a label selector finds."""
        printed = self.run("get", kinds, f"--selector={selector}", "--output=json")
        try:
            return list(json.loads(printed)["items"])
        except (ValueError, LookupError, TypeError):
            raise RegrowError(
                f"`{self.program} get` did not print the objects of {self._there()}, but"
                f" {one_line(printed)[:200]!r}; is it kubectl itself?"
            ) from None

    def failure(self, message: str) -> RegrowError:
        """Return the error for kubectl's message."""
        lines = [
            line.strip()
            for line in message.splitlines()
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
        if unknown := _UNKNOWN_FIELD.search(message):
            field = unknown[1] or unknown[2]
            return RegrowError(f"{self._there()} does not know {field}: {_TOO_OLD}")
        if any(sign in last for sign in _NOT_REACHED):
            return RegrowError(f"{self._there()} cannot be reached: {last}")
        return RegrowError(f"{self._there()} refuses: {last}")

    def _there(self) -> str:
        named = f" of the context {self.context}" if self.context else ""
        return f"the Kubernetes cluster{named}"
