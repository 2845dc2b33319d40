"""The media of trials as artifacts of their MLflow runs: `media/<name>/step-<step><suffix>`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from regrow.infra.mlflow.updates import SinkUnavailable, legal_name
from regrow.search.history import TrialRecord
from regrow.show.views import media
from regrow.tasks.media.items import Item
from regrow.tasks.ports.store import Store, Unavailable

T = TypeVar("T")


class MediaArtifacts:
    """Finds what a run lacks of a trial's media. Each item is found once for each run, as the same
    one may be listed at the end of each attempt.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: set[tuple[str, str]] = set()

    def __call__(self, trial: TrialRecord, run: str) -> dict[str, Callable[[], bytes]]:
        """Return functions that read the content, by paths. `run`: the key of the run.

        The call, and those of the functions, raise SinkUnavailable if the store is unreachable:
        then all is written again, from the cursor.
        """
        items = _asked(lambda: media.of_trial(self._store, trial))
        new = [item for item in items if (run, item.key) not in self._found]
        self._found |= {(run, item.key) for item in new}
        return {artifact_path(item): partial(self._content, item) for item in new}

    def _content(self, item: Item) -> bytes:
        return _asked(lambda: self._store.read(item.key))


def _asked(what: Callable[[], T]) -> T:
    try:
        return what()
    except Unavailable as error:
        raise SinkUnavailable(f"the media of a trial cannot be read: {error}") from error


def artifact_path(item: Item) -> str:
    """Return the path of an item below its run's artifacts."""
    return f"media/{legal_name(item.name)}/step-{item.step:06d}{item.suffix}"
