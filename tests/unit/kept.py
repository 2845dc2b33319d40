"""An experiment whose trials save checkpoints, written as a driver writes it: log and checkpoints
by the product's own writers.

No test lives here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from regrow.infra.log.log import Log
from regrow.search.events import (
    AnyEvent,
    Began,
    Created,
    Dropped,
    Ended,
    Opened,
    Proposed,
    Reported,
    Row,
    Saved,
    Started,
    encode,
)
from regrow.search.history import History
from regrow.search.spec import Spec
from regrow.tasks.checkpoint.saving import discard, save
from regrow.tasks.ports.store import Store

SPEC: dict[str, Any] = {
    "name": "kept",
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "space": {"model": {"size": {"int": [1, 1000]}}},
    "search": "random",
    "trials": 50,
    "max_steps": 9,
}


class Kept:
    """Trials are begun by their first checkpoint. The file of each is JSON: what `save` is given,
    trial and step beside it.
    """

    def __init__(self, store: Store, **changes: Any) -> None:
        self.store, self.log, self.history = store, Log.open(store), History()
        now = time.time()
        spec = Spec.parse({**SPEC, **changes})
        first: list[AnyEvent] = [
            Created(t=now, id="one", spec=spec.to_json()),
            Opened(t=now, by="driver", driver="d", slots=50, trials=50),
        ]
        self.log.claim([encode(event) for event in first])
        for event in first:
            self.history.apply(event)

    def say(self, *events: AnyEvent) -> None:
        """Appends to the log."""
        for event in events:
            self.history.apply(event)
        self.log.append([encode(event) for event in events])

    def trial(self) -> int:
        """Begins another trial; returns its number."""
        number, now = len(self.history.trials), time.time()
        self.say(
            Proposed(t=now, trial=number, config={"model.size": number + 1}),
            Started(t=now, trial=number, attempt=1),
            Began(t=now, trial=number, attempt=1, node="n"),
        )
        return number

    def report(self, trial: int, *scores: float, **others: float) -> int:
        """The next steps of a trial; returns the last one."""
        step = self.history.trials[trial].step
        rows = [
            Row(step + place, time.time(), {"score": score, **others})
            for place, score in enumerate(scores, start=1)
        ]
        self.say(Reported(t=time.time(), trial=trial, attempt=1, rows=rows))
        return step + len(scores)

    def save(self, trial: int, *scores: float, said: bool = True, **content: Any) -> Saved:
        """The next steps of a trial, and a checkpoint of the last. Not `said`: the log does not
        have it yet.
        """
        step = self.report(trial, *scores)
        with TemporaryDirectory() as folder:
            (Path(folder) / "model.json").write_text(
                json.dumps({"trial": trial, "step": step, **content})
            )
            made = save(self.store, Path(folder), trial=trial, attempt=1, step=step)
        saved = Saved(
            t=time.time(), trial=trial, attempt=1, step=step, manifest=made.manifest, size=made.size
        )
        if said:
            self.say(saved)
        return saved

    def best(self, score: float, **content: Any) -> Saved:
        """A new trial with one checkpoint."""
        return self.save(self.trial(), score, **content)

    def drop(self, *saved: Saved, said: bool = True) -> None:
        """Lets checkpoints go. Not `said`: a reader of the log has not come to it yet."""
        for one in saved:
            if said:
                self.say(Dropped(t=time.time(), trial=one.trial, manifests=[one.manifest]))
        discard(self.store, [one.manifest for one in saved], self._staying(saved))

    def end(self, trial: int) -> None:
        """The trial is done."""
        self.say(
            Ended(
                t=time.time(),
                trial=trial,
                attempt=1,
                outcome="done",
                step=self.history.trials[trial].step,
            )
        )

    def _staying(self, going: Iterable[Saved]) -> list[str]:
        gone = {one.manifest for one in going}
        return [
            one.manifest
            for trial in self.history.trials
            for one in trial.checkpoints.values()
            if one.manifest not in gone
        ]
