"""Copying an experiment's specification to a file for the user to change and run: its best
configuration is tried first.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml

from regrow.infra.log.reading import replay
from regrow.infra.state.places import Places
from regrow.search import samplers
from regrow.search.errors import SpecError
from regrow.search.history import History
from regrow.search.spec import Spec
from regrow.show.views import summaries
from regrow.tasks.errors import UserError
from regrow.tasks.output.traces import one_line


def specification_like(places: Places, name: str, file: Path) -> str:
    """Return the YAML of an experiment named after `file`, otherwise like `name`, that begins with
    the best configuration of `name`.

    Raises UserError for an experiment whose trainable is in no file, or whose search accepts no
    points.
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
    written = _written(history, file)
    text = "".join(f"# {line}\n" for line in _origin(places, name, history)) + yaml.safe_dump(
        written, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )
    try:
        Spec.parse(yaml.safe_load(text))
    except SpecError as error:
        raise error.at(f"a copy of {name}") from None
    return text


def _written(history: History, file: Path) -> dict[str, Any]:
    spec = history.spec
    kept = {**spec.to_json(), "name": file.stem, "trials": history.total}
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
    return not spec.own_sampler and samplers.size(spec.search, spec.setting) is not None


def _origin(places: Places, name: str, history: History) -> list[str]:
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
        f"{history.objective.name} {best['value']:.6g} at step {best['step']} of trial"
        f" {best['trial']}"
    )
    where = (
        "every configuration is tried here anyway"
        if _tries_all(history.spec)
        else "it is the first of the points"
    )
    lines.append(
        f"The best of its {len(history.trials)} trials reached {one_line(reached)}; {where}."
    )
    return lines
