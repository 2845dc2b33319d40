"""A trainable of Ray Tune's, function or class, as a trainable of ours. Pickled by the driver, run by trials."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.tasks import temporary
from regrow.tasks.trial import NotSaved, Trial
from regrow.tune.holes import fill
from regrow.tune.session import ANONYMOUS, Reporting, Session


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """What a trial runs. `stop`: whether (trial's name, result) was enough; `explored`: the user's function that looks a
    configuration over, None for none.
    """

    theirs: Any
    template: Mapping[str, Any]
    experiment: str
    stop: Callable[[str, dict[str, Any]], bool]
    explored: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def __call__(self, trial: Trial) -> None:
        """Runs it, in a folder of its own, as Tune does."""
        config = fill(self.template, trial.config, trial.seed)
        if self.explored is not None:
            config = self.explored(config) or config
        reporting = Reporting(trial, self.stop, config, f"{self.experiment}_{trial.number:05d}")
        with _own_folder():
            if isinstance(self.theirs, type):
                _run_class(self.theirs, config, reporting)
            else:
                _run_function(self.theirs, config, reporting, self.experiment)


def _run_function(function: Callable[..., Any], config: dict[str, Any], reporting: Reporting, experiment: str) -> None:
    from regrow.tune.private import in_session

    with in_session(Session(reporting, experiment)):
        found = function(config)
        results = found if inspect.isgenerator(found) else [] if found is None else [found]
        for result in results:
            reporting.report(result if isinstance(result, Mapping) else {ANONYMOUS: result})


def _run_class(cls: Any, config: dict[str, Any], reporting: Reporting) -> None:
    from ray.tune import Checkpoint
    from ray.tune import Trainable as Base

    from regrow.tune.private import restored

    model = cls(config=config)
    saves = cls.save_checkpoint is not Base.save_checkpoint

    def save(folder: Path) -> None:
        if not saves:
            raise NotSaved("the class has no save_checkpoint")
        model.save(str(folder))

    try:
        if reporting.restored is not None:
            model.restore(restored(Checkpoint.from_directory(str(reporting.restored)), reporting.trial.restored))
        for _ in reporting.trial.steps():
            reporting.report(model.train(), save if saves else None)
    finally:
        model.stop()


@contextmanager
def _own_folder() -> Iterator[None]:
    """Within the block the working directory is an empty one: Tune's trials may write where they are. It is not kept."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="tune-", dir=temporary.room(), ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
