"""The key `serve` of a specification, at the start of its experiment: an application handles it."""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Protocol

from regrow.flows.session import Session
from regrow.infra.state import served
from regrow.infra.state.places import CLUSTER, Places
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError


class Application(Protocol):
    """The application that serves models."""

    def checked(self, spec: Spec, places: Places) -> list[str]:
        """Return lines for the user about `serve`. Raises SpecError and UserCodeError for models
        that cannot be served.
        """
        ...

    def of_experiment(self, places: Places, spec: Spec) -> list[str]:
        """Register the experiment for serving as it specifies, or remove it; return lines for the
        user.
        """
        ...


class Serving:
    """What a station serves of a session's experiment; nothing changes without the key `serve`."""

    def __init__(self, session: Session) -> None:
        """Check what is to be served. Raises as `Application.checked`."""
        self._session = session
        self._application = _application(session)
        self._lines: list[str] = []
        if self._application is not None:
            self._lines = self._application.checked(session.prepared.spec, session.places)

    def begin(self) -> None:
        """Make a station serve the experiment from now on, or stop serving it."""
        if self._application is not None:
            places, spec = self._session.places, self._session.prepared.spec
            for line in (*self._lines, *self._application.of_experiment(places, spec)):
                self._session.announce(line)


def _application(session: Session) -> Application | None:
    """Return the application; None if the experiment has no such key and was not served before, or
    if this process does not decide about it.

    The schedule decides for its runs; for a run on a cluster, the machine that started it.
    """
    spec = session.prepared.spec
    if session.spec is None or session.flow_run is not None or CLUSTER in os.environ:
        return None
    if spec.serve is None and served.read(session.places, spec.name) is None:
        return None
    registered = next(iter(entry_points(group="regrow.keys", name="serve")), None)
    if registered is None:  # the package was installed before it had this entry point
        raise UserError("no application is registered for the key serve; install regrow again")
    found: Application = registered.load()
    return found
