"""The run of a program: its logs become reports, its saved files checkpoints."""

from __future__ import annotations

import fcntl
import functools
import glob
import json
import operator
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, Self

from regrow.integrations.wandb.artifacts import Artifact
from regrow.integrations.wandb.config import Config
from regrow.integrations.wandb.messages import WAY_OUT, Error, print_once
from regrow.integrations.wandb.rows import Rows, plain
from regrow.integrations.wandb.saved import SavedFiles, stored_as
from regrow.tasks.program.script import keep_exactly, report, trial


def rows_of_trial(*, resumes: bool) -> Rows:
    """Make the rows of this process's trial. `resumes`: its program resumes from what it saved."""
    environ = os.environ
    restored, done = environ.get("REGROW_RESTORED"), int(environ.get("REGROW_STEP") or 0)
    scratch, checkpoint = Path(environ["REGROW_SCRATCH"]), Path(environ["REGROW_CHECKPOINT"])
    saved = SavedFiles(scratch, checkpoint, Path(restored) if restored else None)
    most, before = environ.get("REGROW_MAX_STEPS"), saved.before()
    first = before or {"step": 0, "last": None}
    return Rows(
        metric=environ["REGROW_METRIC"],
        report=report,
        keep=keep_exactly,
        saved=saved,
        media=trial(),
        step=first["step"] if resumes else 0,
        resumes=resumes,
        last=first["last"] if resumes else None,
        known=0 if resumes or before is None else done,
        room=int(most) - done if most else None,
    )


def swept() -> dict[str, Any]:
    """Return the trial's parameters as in the sweep: a name with dots is one key, no group."""
    config: dict[str, Any] = json.loads(os.environ.get("REGROW_CONFIG", "{}"))
    dotted = json.loads(os.environ.get("REGROW_WANDB_DOTTED", "[]"))
    paths: dict[str, str] = dotted if isinstance(dotted, dict) else {name: name for name in dotted}
    values = {
        name: functools.reduce(operator.getitem, path.split("."), config)
        for name, path in paths.items()
    }
    groups = {path.partition(".")[0] for path in paths.values()}
    return {name: value for name, value in config.items() if name not in groups} | values


def may_resume(given: Any) -> bool:
    """Return whether a program resumes from what it saved: by wandb.init, or W&B's variable."""
    chosen = os.environ.get("WANDB_RESUME", "never") if given is None else given
    return chosen not in (False, "never", "")


def _claimed(file: Path) -> IO[str] | None:
    """Return the file, locked until this process ends; None if another process has locked it."""
    claim = file.open("w")
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        claim.close()
        return None
    return claim


class Run:
    """A run. `settings`: those of `wandb.init`; `config`, `name` and `resume` have an effect."""

    def __init__(self, config: Config, settings: Mapping[str, Any]) -> None:
        self.sweep_id = self.project = os.environ["REGROW_NAME"]
        self.id = f"{self.project}-{os.environ['REGROW_TRIAL']}"
        self.entity, self.url = "", ""
        self._called(settings)
        self.path = f"{self.project}/{self.id}"
        self.offline = True
        self.config = config
        self.summary = _Summary()
        self.dir = os.path.join(os.environ["REGROW_SCRATCH"], "wandb", "files")
        Path(self.dir).mkdir(parents=True, exist_ok=True)
        first = os.environ.get("RANK", "0") in ("", "0")
        self._claim = _claimed(Path(self.dir).parent / "claim") if first else None
        self.disabled = self._claim is None
        """Whether another process has the run: of several that train together, one reports."""
        self._process, self.over = os.getpid(), False
        if self.disabled:
            print_once(
                "init: another process of this trial has the run; what this one logs is not"
                " recorded"
            )
        self._rows = rows_of_trial(resumes=may_resume(settings.get("resume")))
        self.starting_step = self._rows.step
        self.resumed = self._rows.resumes and self._rows.saved.before() is not None
        """Whether there is something to `restore`; False for a program without `resume`."""

    def _called(self, settings: Mapping[str, Any]) -> None:
        self.name: str = settings.get("name") or self.id
        self.group, self.job_type = settings.get("group"), settings.get("job_type")
        self.notes = settings.get("notes")
        self.tags = tuple(settings.get("tags") or ())
        self.start_time = time.time()

    def begin_again(self, settings: Mapping[str, Any]) -> None:
        """Finish the run and begin another: further logs are further steps of the trial."""
        self.finish()
        self._called(settings)
        self.resumed, self.starting_step = False, 0
        self.summary.clear()
        self._rows.begin_again()
        self.over = False

    @property
    def _speaks(self) -> bool:
        """Whether this process reports; a forked child that inherits the run does not."""
        return not self.disabled and self._process == os.getpid()

    @property
    def step(self) -> int:
        """W&B's step of the next row."""
        return self._rows.step

    def log(self, data: Any, step: int | None = None, commit: bool | None = None, **_: Any) -> None:
        """Report the numbers of `data`, with `step` once another step or the end comes, and log its
        media.

        Raises TypeError if it is not a map, Error after its end.
        """
        if self.over:
            raise Error("the run is finished: call wandb.init() before logging more")
        numbers, media = plain(data)
        self.summary.logged(numbers)
        if self._speaks:
            self._rows.log(numbers, media, step, commit)

    def finish(self, *_: Any, **__: Any) -> None:
        """Report what is left, unless the program has failed."""
        if self._speaks and getattr(sys, "last_value", None) is None:
            self._rows.finish(*plain(self.summary.own))
            self.summary.own.clear()
        self.over = True

    def save(self, glob_str: Any = None, base_path: Any = None, policy: str = "live") -> list[str]:
        """Keep files for `restore`, and with the trial; `glob_str` may be a pattern."""
        kept = [file for file in map(Path, glob.glob(os.fspath(glob_str or ""))) if file.is_file()]
        for file in kept:
            inside = file.resolve().is_relative_to(Path(self.dir).resolve())
            base = base_path if base_path is not None else self.dir if inside else None
            self._keep(file, stored_as(file, None if base is None else Path(base)))
        if glob_str and not kept:
            print_once(f"save: there is no file {glob_str}")
        return list(map(str, kept))

    def _keep(self, file: Path, name: str) -> None:
        if self._speaks:
            self._rows.saved.keep(file, name)

    def restore(self, name: str, *_: Any, root: str | None = None, **__: Any) -> BinaryIO:
        """Copy a file that an earlier attempt saved into `root` (None: `dir`) and open it; in
        binary, for torch.load.

        Raises ValueError if there is none.
        """
        return self._rows.saved.restore(name, Path(root or self.dir)).open("rb")

    def log_artifact(self, artifact: Any, *_: Any, **__: Any) -> Artifact:
        """Keep its files as `save` does."""
        made = artifact if isinstance(artifact, Artifact) else Artifact.of(Path(artifact))
        for name, file in made.files.items():
            self._keep(file, stored_as(Path(name), None))
        return made

    def log_model(self, path: Any, *_: Any, **__: Any) -> None:
        """Keep its files as `save` does."""
        self.log_artifact(Artifact.of(Path(path)))

    def watch(self, *_: Any, **__: Any) -> None:
        """Do nothing."""
        print_once("watch: gradients are not recorded")

    def alert(self, title: str, text: str = "", *_: Any, **__: Any) -> None:
        """Print the alert to the trial's log."""
        print_once(f"alert: {title}: {text}")

    def define_metric(self, *_: Any, **__: Any) -> None:
        """Do nothing: the sweep names its metric, and each log of it is a step."""

    def get_url(self) -> str:
        """Return "": it has no page at W&B."""
        return self.url

    def project_name(self) -> str:
        return self.project

    get_project_url = get_sweep_url = get_url
    join = finish
    link_artifact, link_model = log_artifact, log_model
    unwatch = log_code = mark_preempting = display = _label = define_metric

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a run has no {name} in regrow's stand-in for wandb; {WAY_OUT}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.finish()
        self.over = True  # after an exception: not reported, unless init is called again


class _Summary(dict[str, Any]):
    """The last logged values, and what the program sets itself (`own`), recorded at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[str, Any] = {}

    def logged(self, numbers: Mapping[str, float]) -> None:
        super().update(numbers)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self.own[name] = value

    def update(self, given: Any = (), **more: Any) -> None:  # type: ignore[override]  # W&B's takes pairs or a map
        for name, value in {**dict(given), **more}.items():
            self[name] = value
