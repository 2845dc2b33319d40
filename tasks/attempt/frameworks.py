"""Libraries whose own objects can replace a trainable, each registered by an entry point of the
group `regrow.frameworks`.

The name of an entry point is the library's key in a specification, and the text by which a file
that uses the library is recognized. If neither is found, nothing of the library is imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any, Protocol

from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.attempt.trainable import locate
from regrow.tasks.ports.messages import Job
from regrow.tasks.trial.trial import Trial

GROUP = "regrow.frameworks"


class Framework(Protocol):
    """One library. Created without arguments when a process first needs it."""

    def precheck(self, spec: Spec) -> None:
        """Check the part of the specification below the library's key, without running the user's
        code.

        Raises SpecError, and UserCodeError for a syntax error.
        """

    def check(self, spec: Spec, given: Any = None) -> Spec:
        """Return the specification with the resources that the library needs; unchanged if its
        trainable is not the library's.

        Args:
            spec: the experiment's specification.
            given: the trainable, if it is an object rather than a name.

        Raises SpecError, UserError if the library is not installed, UserCodeError for an exception
        of the user's code.

        """
        ...

    def trainable(self, job: Job, found: Any) -> Callable[[Trial], object] | None:
        """Return the trainable as a function of a Trial, None if it is not the library's.

        Args:
            job: the experiment's job.
            found: the object at `job.spec.trainable`, None if the job names none.

        Raises SpecError or UserError for what cannot be used.

        """
        ...


def of_key(spec: Spec) -> Framework | None:
    """Return the library whose key a specification has; None for no such key."""
    for point in entry_points(group=GROUP):
        if getattr(spec, point.name, None) is not None:
            found: Framework = point.load()()
            return found
    return None


def of_spec(spec: Spec, given: Any = None) -> Iterator[Framework]:
    """Return the libraries that may train an experiment: by key, by its file, by `given`."""
    if (found := of_key(spec)) is not None:
        yield found
    elif given is not None:
        yield from of_object(given)
    elif not spec.command and spec.trainable != "pickled":
        try:
            file = locate(spec.trainable, spec.working_dir)
            source = b"" if file is None else file.read_bytes()
        except (SpecError, OSError):  # reported when the trainable is imported
            return
        for point in entry_points(group=GROUP) if source else ():
            if point.name.encode() in source:
                yield point.load()()


def of_object(found: Any) -> Iterator[Framework]:
    """Return the libraries of an object: all for a function with an annotated return type."""
    if inspect.isfunction(found) and found.__annotations__.get("return") not in (None, "None"):
        for point in entry_points(group=GROUP):
            yield point.load()()


def trainable(job: Job, found: Any) -> Callable[[Trial], object] | None:
    """Return the function that trains a library's object, or None. Raises SpecError, UserError."""
    known = of_key(job.spec) if found is None else None
    for framework in of_object(found) if known is None else (known,):
        if (function := framework.trainable(job, found)) is not None:
            return function
    return None
