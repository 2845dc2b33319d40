"""The values of a define-by-run trial: those that it was given before, and others that the coordinator is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regrow.tasks.messages import Question
from regrow.tasks.reporter import Reporter


class Suggestions:
    """What an attempt knows of its trial's values. Each is asked for once in the life of the trial."""

    def __init__(self, given: Mapping[str, Any], reporter: Reporter) -> None:
        self._given = dict(given)
        self._reporter = reporter

    def value(self, name: str, distribution: dict[str, Any]) -> Any:
        """The value of a parameter, once it is in the log. Raises LookupError where the lease is gone, ValueError where
        earlier trials had another kind of distribution under that name.
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
        """Has something of the trial be noted, by name, as plain JSON."""
        self._reporter.note(attributes)
