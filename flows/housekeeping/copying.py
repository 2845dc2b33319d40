"""Copying a specification to a file to change and run: it begins with what the original found."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from regrow.infra.log.reading import replay
from regrow.infra.state import yaml_file
from regrow.infra.state.places import Places
from regrow.infra.state.spec_file import set_by
from regrow.search import samplers
from regrow.search.errors import SpecError
from regrow.search.history import History
from regrow.search.planning.learning import known_from
from regrow.search.spec import Spec
from regrow.search.spec.overrides import overridden
from regrow.search.spec.parts import WarmStart
from regrow.show.views import summaries
from regrow.tasks.errors import UserError
from regrow.tasks.output.traces import one_line


def specification_like(
    places: Places,
    name: str,
    file: Path,
    changes: Mapping[str, Any] = MappingProxyType({}),
    *,
    trial: int | None = None,
) -> str:
    """Return the YAML of an experiment named after `file`, otherwise like `name`, with `changes`
    (see `overridden`). It begins with the best configuration of `name` if its space has that, and
    learns from the trials of `name` that lie in its space. `trial`: it runs the configuration of
    that trial alone, to its end, once for each of its repeats; its parameters may be changed, too.

    Raises UserError for an experiment whose trainable is in no file, or whose search accepts no
    points, SpecError for invalid changes.
    """
    history = replay(places.known(name), name)
    spec = history.spec
    if spec.trainable == "pickled":
        best = summaries.best(history)
        first = "" if best is None else f", points=[{best['config']!r}]"
        raise UserError(
            f"{name!r} was run from Python, where its trainable is: rg.Experiment(...,"
            f" name={file.stem!r}{first})"
        )
    if trial is None:
        written = overridden(_written(history, file), changes)
    else:
        written = _alone(history, file, trial, changes)
    try:
        made = _parsed(written)
    except SpecError as error:
        raise set_by(error, changes) or error.at(f"a copy of {name}") from None
    started = {**written, "warm_start": [*written.get("warm_start", ()), name]}
    learns = 0 if trial is not None or _tries_all(made) else _usable(history, started)
    written = started if learns else written
    comment = "".join(
        f"# {line}\n" for line in _origin(places, name, history, learns=learns, trial=trial)
    )
    return comment + yaml_file.write_map(written).decode()


def specification_again(
    places: Places, name: str, trial: int, new: str, changes: Mapping[str, Any]
) -> Spec:
    """Return the specification of an experiment `new` that runs one trial's configuration alone, to
    its end, with `changes` of the specification's keys or of the configuration's parameters.

    Raises UserError without the trial, or where its code makes the configuration itself, and
    SpecError for invalid changes.
    """
    history = replay(places.known(name), name)
    spec = history.spec
    if spec.trainable == "pickled" or samplers.suggests(spec.search):
        raise UserError(
            f"{name!r} was run from Python: run its trial again there, with rg.Experiment(...,"
            f" name={new!r})"
        )
    written = _alone(history, Path.cwd() / f"{new}.yaml", trial, changes)
    written.setdefault("working_dir", str(Path.cwd()))
    try:
        return Spec.parse(written)
    except SpecError as error:
        raise set_by(error, changes) or error.at(f"trial {trial} of {name}") from None


_OF_A_SEARCH = frozenset(
    {
        *("schedule", "warm_start", "learn_from", "stop", "points", "when", "notify", "on_oom"),
        *("trials", "budget"),
    }
)
"""Keys that one configuration alone does not take over as they are."""


def _alone(history: History, file: Path, trial: int, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification of one trial's configuration, with `changes` of its parameters or of
    other keys. Raises UserError without the trial.
    """
    config = summaries.reached_with(history, summaries.trial(history, trial))
    own = {key: value for key, value in changes.items() if key in config}
    fixed = {
        key: {"constant": value} if isinstance(value, list | dict) else value
        for key, value in {**config, **own}.items()
    }
    kept = {key: one for key, one in _written(history, file).items() if key not in _OF_A_SEARCH}
    kept |= {"search": "random", "space": history.spec.space.nest(fixed)}
    # a parameter that depends on another may be absent here
    if rule := {key: one for key, one in history.spec.on_oom.items() if key in config}:
        kept["on_oom"] = rule
    written = overridden(kept, {key: one for key, one in changes.items() if key not in own})
    return {**written, "trials": written.get("trials", written.get("repeats", 1))}


def _parsed(written: dict[str, Any]) -> Spec:
    """Return the specification; a first point that is outside of a changed space is left out."""
    try:
        return Spec.parse(written)
    except SpecError as error:
        if not error.key.startswith("points."):
            raise
        written["points"] = written["points"][1:]
        return Spec.parse(written)


def _usable(history: History, started: dict[str, Any]) -> int:
    """Return from how many trials of `history` an experiment would learn; 0 if it cannot."""
    try:
        start = WarmStart(experiment=history.spec.name)
        return len(known_from(history, Spec.parse(started), start, "warm_start")[0])
    except SpecError:  # another metric, other parameters, or a sampler that takes none
        return 0


def _written(history: History, file: Path) -> dict[str, Any]:
    spec = history.spec
    kept = {
        **spec.to_json(),
        "name": file.stem,
        "trials": None if history.unlimited else history.total,
    }
    # the original's trigger, and its automatic choices, which are made anew
    for key in ("event", *history.choice.why):
        kept.pop(key, None)
    folder = kept.pop("working_dir", None)
    if folder is not None and Path(folder) != file.absolute().parent:
        kept["working_dir"] = folder
    best = summaries.best(history)
    if best is not None and not _tries_all(spec):
        others = [
            point for point in kept.get("points", ()) if point.get("config") != best["config"]
        ]
        kept["points"] = [best["config"], *others]
    return kept


def _tries_all(spec: Spec) -> bool:
    """Return whether every configuration is tried anyway, so that none can be set to come first."""
    return not spec.own_sampler and samplers.size(spec.resolved.search, spec.setting) is not None


def _origin(
    places: Places, name: str, history: History, *, learns: int, trial: int | None
) -> list[str]:
    """Return the lines of a comment about the original."""
    lines = [
        (
            f"Copied from {name} in {one_line(places.root)} on {time.strftime('%Y-%m-%d')},"
            " by `regrow cp`."
        )
    ]
    best = summaries.best(history)
    if best is None:
        return [*lines, "Nothing was reported there yet."]
    reached = (
        f"{history.objective.name} {summaries.reached(best)} at step {best['step']} of trial"
        f" {best['trial']}"
    )
    lines.append(f"The best of its {len(history.trials)} trials reached {one_line(reached)}.")
    if trial is not None:
        lines.append(f"Here its trial {trial} alone is run again.")
    if learns:
        lines.append(f"The sampler learns from {learns} of them: warm_start.")
    return lines
