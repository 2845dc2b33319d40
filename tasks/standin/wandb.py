"""What a program that logs to W&B sees as `wandb` in a trial of a sweep: its logs become reports. Nothing is sent anywhere.

Steps are ours: each `log` that has the sweep's metric is a report; what is logged without it goes with the next one.
"""

from __future__ import annotations

import atexit
import json
import os
from typing import Any, Self

from regrow.tasks.script import report

_said: set[str] = set()


def _say(text: str) -> None:
    if text not in _said:
        _said.add(text)


class Config(dict[str, Any]):
    """The trial's parameters, over the program's defaults. Items and attributes are the same."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the config has no {name!r}; it has: {', '.join(self)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def update(self, given: Any = (), allow_val_change: bool = False, **more: Any) -> None:  # type: ignore[override]
        """Adds what the sweep does not decide; for what it does, the sweep's value stays."""
        found = vars(given) if hasattr(given, "__dict__") and not isinstance(given, dict) else given
        super().update({**dict(found), **more, **_swept()})

    setdefaults = update


def _swept() -> dict[str, Any]:
    return dict(json.loads(os.environ.get("REGROW_CONFIG", "{}")))


class Run:
    """The one run of this process."""

    def __init__(self) -> None:
        self.id = self.name = f"{os.environ.get('REGROW_NAME', '')}-{os.environ.get('REGROW_TRIAL', '0')}"
        self.project = os.environ.get("REGROW_NAME", "")
        self.resumed = bool(os.environ.get("REGROW_RESTORED"))
        """Whether there is a checkpoint to go on from; a trial that saved none begins anew."""
        self.config, self.summary = Config(_swept()), dict[str, Any]()
        self._row: dict[str, Any] = {}
        self._step: int | None = None

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None, **_: Any) -> None:
        """Reports the numbers of `data`; with `step`, once another step or the end comes."""
        if step is not None and step != self._step:
            self._flush()
            self._step = step
        for name, value in data.items():
            number = value.item() if getattr(value, "size", None) == 1 or hasattr(value, "requires_grad") else value
            if isinstance(number, (int, float)):
                self._row[name] = self.summary[name] = number
            else:
                _say(f"{name} is no number and is not recorded")
        if commit or (commit is None and step is None):
            self._flush()

    def _flush(self) -> None:
        if os.environ.get("REGROW_WANDB") in self._row:
            row, self._row = self._row, {}
            report(row)

    def finish(self, *_: Any, **__: Any) -> None:
        """Reports what is left."""
        self._flush()

    def define_metric(self, *_: Any, **__: Any) -> None:
        """Nothing: the sweep names the metric, and steps are counted by reports."""

    def watch(self, *_: Any, **__: Any) -> None:
        """Nothing: gradients are not recorded."""
        _say("watch: gradients are not recorded")

    def save(self, *_: Any, **__: Any) -> None:
        """Nothing is kept."""
        _say("save: the file is not kept; what is to be kept goes into the folder $REGROW_CHECKPOINT before a log")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()


run = Run()
config, summary = run.config, run.summary
log, finish, define_metric, watch, save = run.log, run.finish, run.define_metric, run.watch, run.save
atexit.register(run.finish)


def init(project: Any = None, config: Any = None, name: str | None = None, **_: Any) -> Run:  # noqa: ARG001 - theirs, by position
    """The run of this trial, with `config` as defaults below the sweep's values."""
    run.config.update(config or {})
    run.name = name or run.name
    return run


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    there = "init, config, log, finish, run, summary, define_metric, watch, save"
    why = "is regrow's part here: `regrow run sweep.yaml`" if name in ("sweep", "agent") else "is not in regrow's stand-in"
    raise AttributeError(f"wandb.{name} {why}; there are {there}; REGROW_WANDB=real before `regrow run` uses W&B's own")
