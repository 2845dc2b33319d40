"""A Ray Tune trainable, function or class, as ours. Pickled by the driver, run by trials."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.integrations.tune.session import ANONYMOUS, Reporting, Session
from regrow.integrations.tune.templates import render
from regrow.tasks.process import temporary
from regrow.tasks.trial.trial import NotSaved, Trial


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """What a trial runs.

    Attributes:
        theirs: the Tune trainable.
        template: the configuration with placeholders.
        experiment: name of the experiment.
        stop: whether (trial's name, result) was enough.
        explored: the user's function that adjusts a configuration, None for none.

    """

    theirs: Any
    template: Mapping[str, Any]
    experiment: str
    stop: Callable[[str, dict[str, Any]], bool]
    explored: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def __call__(self, trial: Trial) -> None:
        """Run it in a separate folder, as Tune does."""
        config = render(self.template, trial.config, trial.seed)
        if self.explored is not None:
            config = self.explored(config) or config
        reporting = Reporting(trial, self.stop, config, f"{self.experiment}_{trial.number:05d}")
        with _own_folder():
            if isinstance(self.theirs, type):
                _run_class(self.theirs, config, reporting)
            else:
                _run_function(self.theirs, config, reporting, self.experiment)


def _run_function(
    function: Callable[..., Any], config: dict[str, Any], reporting: Reporting, experiment: str
) -> None:
    from regrow.integrations.tune.private import in_session

    with in_session(Session(reporting, experiment)):
        found = function(config)
        results = found if inspect.isgenerator(found) else [] if found is None else [found]
        for result in results:
            reporting.report(result if isinstance(result, Mapping) else {ANONYMOUS: result})


def _run_class(cls: Any, config: dict[str, Any], reporting: Reporting) -> None:
    from ray.tune import Checkpoint
    from ray.tune import Trainable as Base

    from regrow.integrations.tune.private import restored

    model = cls(config=config)
    saves = cls.save_checkpoint is not Base.save_checkpoint

    def save(folder: Path) -> None:
        if not saves:
            raise NotSaved("the class has no save_checkpoint")
        model.save(str(folder))

    try:
        if reporting.restored is not None:
            files = Checkpoint.from_directory(str(reporting.restored))
            model.restore(restored(files, reporting.trial.restored))
        for _ in reporting.trial.steps():
            reporting.report(model.train(), save if saves else None)
    finally:
        model.stop()


@contextmanager
def _own_folder() -> Iterator[None]:
    """Within the block, use an empty working directory, in which Tune's trials may write."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(
        prefix="tune-", dir=temporary.process_temp_dir(), ignore_cleanup_errors=True
    ) as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
