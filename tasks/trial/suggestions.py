"""Parameter values of a define-by-run trial: known ones, and others that are requested from the
coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from regrow.tasks.errors import ReportError
from regrow.tasks.ports.messages import Question
from regrow.tasks.trial.reporter import Reporter

MOST_BYTES = 1 << 20
"""Size limit of the attributes noted in one call, in bytes of JSON."""


class Suggestions:
    """Parameter values that an attempt knows. Each is requested once in the life of its trial."""

    def __init__(self, given: Mapping[str, Any], reporter: Reporter) -> None:
        self._given = dict(given)
        self._reporter = reporter

    def value(self, name: str, distribution: dict[str, Any]) -> Any:
        """Return the value of a parameter, once it is in the log.

        Raises LookupError if the lease is lost, ValueError if earlier trials had another kind of
        distribution under that name.
        """
        if name not in self._given:
            reply = self._reporter.flush(asked=(Question(name=name, distribution=distribution),))
            if problem := reply.refused.get(name):
                raise ValueError(problem)
            if name not in reply.suggested:
                raise LookupError(name)
            self._given[name] = reply.suggested[name]
        return self._given[name]

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Send attributes of the trial, plain JSON by name, to the log. Raises ReportError if they
        are not JSON or too large.
        """
        try:
            written = msgspec.json.encode(attributes)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ReportError(
                f"{', '.join(map(ascii, attributes))[:200]}: only plain JSON can be noted: {error}"
            ) from None
        if len(written) > MOST_BYTES:
            many = (
                f"{len(written):,} bytes, and {MOST_BYTES:,} are the most; keep it in a file of"
                " its own"
            )
            raise ReportError(
                f"{', '.join(map(ascii, attributes))[:200]}: what is to be noted has {many}"
            )
        self._reporter.note(msgspec.json.decode(written))
