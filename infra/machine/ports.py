"""The range of ports to which an agent keeps."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.tasks.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of an agent, a range of numbers; those of Ray's fixed ones come first.

    Args:
        first: the lowest.
        last: the highest.

    """

    first: int
    last: int

    LEAST = 40

    @classmethod
    def parse(cls, text: str) -> Ports:
        """Return the range that a user wrote: 20000-20100. Raises UserError."""
        low, _, high = text.partition("-")
        if not (low.isdecimal() and high.isdecimal()):
            raise UserError(f"--ports {text}: write a range, as 20000-20100")
        found = cls(first=int(low), last=int(high))
        if not 1024 <= found.first < found.last <= 65535:
            raise UserError(
                f"--ports {text}: write numbers from 1024 to 65535, the lower one first"
            )
        if found.last - found.first + 1 < cls.LEAST:
            raise UserError(
                f"--ports {text}: an agent needs {cls.LEAST} ports or more: 7 for itself and Ray,"
                " and two for each process of a trial"
            )
        return found

    @property
    def call(self) -> int:
        """The port on which the agent waits for the leader's call."""
        return self.first

    @property
    def control(self) -> int:
        """The port of the control store, if the agent leads."""
        return self.first + 1

    def options(self) -> list[str]:
        """Return the options of `ray start` for the others."""
        names = (
            "--node-manager-port",
            "--object-manager-port",
            "--runtime-env-agent-port",
            "--dashboard-agent-grpc-port",
            "--dashboard-agent-listen-port",
        )
        fixed = [f"{name}={self.first + 2 + n}" for n, name in enumerate(names)]
        rest = self.first + 2 + len(names)
        return [*fixed, f"--min-worker-port={rest}", f"--max-worker-port={self.last}"]
