"""The media of trials as artifacts of their MLflow runs: `media/<name>/step-<step><suffix>`."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial

from regrow.search.history import TrialRecord
from regrow.show.views import media
from regrow.tasks.media.items import Item
from regrow.tasks.ports.store import Store, StoreError

_REFUSED = re.compile(r"[^\w ./+()=,@-]")
"""Characters of a name that are replaced, as MLflow or one of its stores refuses them in a path."""


class MediaArtifacts:
    """Finds what a run lacks of a trial's media. Each item is found once for each run, as the same
    one may be listed at the end of each attempt.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: set[tuple[str, str]] = set()

    def __call__(self, trial: TrialRecord, run: str) -> dict[str, Callable[[], bytes]]:
        """Return functions that read the content, by paths. `run`: the key of the run."""
        try:
            items = media.of_trial(self._store, trial)
        except StoreError as error:
            logging.getLogger(__name__).warning(
                "media of trial %d are not in MLflow: %s", trial.number, error
            )
            return {}
        new = [item for item in items if (run, item.key) not in self._found]
        self._found |= {(run, item.key) for item in new}
        return {artifact_path(item): partial(self._store.read, item.key) for item in new}


def artifact_path(item: Item) -> str:
    """Return the path of an item below its run's artifacts."""
    return f"media/{_REFUSED.sub('_', item.name)}/step-{item.step:06d}{item.suffix}"
