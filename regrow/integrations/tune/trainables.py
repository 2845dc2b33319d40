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

from regrow.integrations.tune.own_searcher import OwnSearcher
from regrow.integrations.tune.private import TRIAL_INDEX
from regrow.integrations.tune.session import ANONYMOUS, Reporting, TrialSession, trial_info
from regrow.integrations.tune.templates import Suggested, render
from regrow.search.samplers.external import External
from regrow.tasks.process import temporary
from regrow.tasks.trial.trial import NotSaved, Trial

CHDIR, ORIGIN = "RAY_CHDIR_TO_TRIAL_DIR", "TUNE_ORIG_WORKING_DIR"
"""Ray's variables: whether a trial has a working directory of its own; that of the script."""


@dataclass(frozen=True, kw_only=True)
class Trainable:
    """What a trial runs.

    Attributes:
        theirs: the Tune trainable.
        template: the configuration with placeholders.
        experiment: name of the experiment.
        stop: whether (trial's name, result) was enough.
        explored: the user's function that adjusts a configuration, None for none.
        searcher: of the user's class, which suggests configurations; None for none.
        defined: the function of Optuna's trial that suggests the configuration, None for none.
        bundle: the resources of a trial, by Ray's names; None: one CPU.
        repeats: trials of the same configuration, see TRIAL_INDEX; 1: trials get no index.
        root: state root in which a function's trial directory is; None: it is not kept.
        origin: working directory of the script; `apart`: whether each trial has one of its own.

    """

    theirs: Any
    template: Mapping[str, Any] | Suggested
    experiment: str
    stop: Callable[[str, dict[str, Any]], bool]
    explored: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    searcher: OwnSearcher | None = None
    defined: Callable[[Any], dict[str, Any] | None] | None = None
    bundle: Mapping[str, float] | None = None
    repeats: int = 1
    root: str | None = None
    origin: str = ""
    apart: bool = True

    def external(self) -> External | None:
        """See HasExternal."""
        return None if self.searcher is None else self.searcher.external(self.experiment)

    def __call__(self, trial: Trial) -> None:
        """Run it in a separate folder, as Tune does, unless RAY_CHDIR_TO_TRIAL_DIR is 0."""
        config = render(self.template, trial.config, trial.seed)
        if self.defined is not None:
            from regrow.integrations.tune.suggesting import suggested

            config |= suggested(self.defined, trial)
        if self.explored is not None:
            config = self.explored(config) or config
        if self.repeats > 1:
            config = {**config, TRIAL_INDEX: trial.number % self.repeats}
        reporting = Reporting(trial, self.stop, config, f"{self.experiment}_{trial.number:05d}")
        with _own_folder(self.origin, apart=self.apart) as folder:
            info = trial_info(reporting.name, folder, self.experiment, self.bundle)
            if isinstance(self.theirs, type):
                _run_class(self.theirs, config, reporting, info)
            else:
                kept = folder
                if self.root is not None:
                    # `Result.path` names it: files that the user's function writes there remain.
                    kept = os.path.join(self.root, self.experiment, info.name)
                    os.makedirs(kept, mode=0o700, exist_ok=True)
                _run_function(self.theirs, config, TrialSession(reporting, info, kept))


def _run_function(
    function: Callable[..., Any], config: dict[str, Any], session: TrialSession
) -> None:
    from regrow.integrations.tune.private import in_session

    with in_session(session):
        found = function(config)
        results = found if inspect.isgenerator(found) else [] if found is None else [found]
        for result in results:
            session.report(result if isinstance(result, Mapping) else {ANONYMOUS: result})
        session.finish()


def _run_class(cls: Any, config: dict[str, Any], reporting: Reporting, info: Any) -> None:
    from ray.tune import Checkpoint
    from ray.tune import Trainable as Base

    from regrow.integrations.tune.private import TRIAL_INFO, in_folder, restored

    model = in_folder(cls, info.logdir)(config={**config, TRIAL_INFO: info})
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
def _own_folder(origin: str, *, apart: bool) -> Iterator[str]:
    """Within the block, provide an empty folder, in which Tune's trials may write, as the working
    directory; else (`apart` is False) the script's is that, if it is there.
    """
    before, known = os.getcwd(), os.environ.get(ORIGIN)
    with tempfile.TemporaryDirectory(
        prefix="tune-", dir=temporary.process_temp_dir(), ignore_cleanup_errors=True
    ) as folder:
        os.environ[ORIGIN] = origin
        if apart or os.path.isdir(origin):
            os.chdir(folder if apart else origin)
        try:
            yield folder
        finally:
            os.chdir(before)
            os.environ.pop(ORIGIN)
            if known is not None:
                os.environ[ORIGIN] = known
