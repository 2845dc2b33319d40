"""The external sampler of a session: it comes with the trainable, and its exceptions are named as
the user's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from regrow.search import samplers
from regrow.search.errors import SearchCodeError, SpecError
from regrow.search.events import Answered, AnyEvent
from regrow.search.samplers.external import External, HasExternal, Wanted
from regrow.search.spec import Spec
from regrow.tasks.attempt.trainable import unpickled
from regrow.tasks.errors import UserError
from regrow.tasks.ports.store import Store


def external_of(
    store: Store, spec: Spec, code: str | None, given: object = None
) -> External | None:
    """Return the sampler that the specification asks for; None if it asks for none.

    `code`: hash of the pickled trainable that has it; `given`: the trainable itself, None for the
    pickled one. Raises UserError if it has none.
    """
    if not samplers.is_external(spec.search):
        return None
    name = samplers.class_of(spec.search)
    if given is None and code is not None:
        given = unpickled(store, f"code/{code}", code)
    found = given.external() if isinstance(given, HasExternal) else None
    if found is None:
        raise UserError(
            f"the proposals of {spec.name} come from a {name}, an object of the script: run the"
            " script again, with it"
        )
    return _NamedSampler(found, name)


class _NamedSampler:
    """An external sampler whose exceptions are the user's."""

    def __init__(self, external: External, name: str) -> None:
        self._external, self._name = external, name

    def observe(self, event: AnyEvent) -> None:
        with self._theirs():
            self._external.observe(event)

    def answer(self, wanted: Wanted | None, now: float) -> Answered | None:
        with self._theirs():
            return self._external.answer(wanted, now)

    @contextmanager
    def _theirs(self) -> Iterator[None]:
        try:
            yield
        except (SpecError, KeyboardInterrupt):
            raise
        except BaseException as error:
            message = f"{self._name} raised {type(error).__name__}: {error}; fix it, then resume"
            raise SearchCodeError(message) from error
