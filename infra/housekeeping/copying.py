"""A specification like an experiment's, as a file of one's own to change and to run: its best configuration is tried first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import yaml

from regrow.infra.log.reading import replay
from regrow.infra.state.places import Places
from regrow.infra.views import summaries
from regrow.search import samplers
from regrow.search.errors import SpecError
from regrow.search.history import History
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError
from regrow.tasks.traces import one_line


def specification_like(places: Places, name: str, file: Path) -> str:
    """The YAML of an experiment called as `file` is, otherwise like `name`, that begins where that one's best was.

    Raises UserError for an experiment whose trainable is in no file, or whose search takes no points.
    """
    history = replay(places.known(name), name)
    spec = history.spec
    if spec.trainable == "pickled":
        best = summaries.best(history)
        first = "" if best is None else f", points=[{best['config']!r}]"
        raise UserError(f"{name!r} was run from Python, where its trainable is: rg.Experiment(..., name={file.stem!r}{first})")
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
    for key in ("event", *history.choice.why):  # what started that one; what was chosen for it, and is chosen anew
        kept.pop(key, None)
    folder = kept.pop("working_dir", None)
    if folder is not None and Path(folder) != file.absolute().parent:
        kept["working_dir"] = folder
    best = summaries.best(history)
    if best is not None and not _tries_all(spec):
        others = [point for point in kept.get("points", ()) if point.get("config") != best["config"]]
        kept["points"] = [best["config"], *others]
    return kept


def _tries_all(spec: Spec) -> bool:
    """Whether every configuration is tried anyway, so that none can be named to come first."""
    return not spec.own_sampler and samplers.size(spec.search, spec.setting) is not None


def _origin(places: Places, name: str, history: History) -> list[str]:
    """Where it came from, in the lines of a comment."""
    lines = [f"Copied from {name} in {places.root} on {time.strftime('%Y-%m-%d')}, by `regrow cp`."]
    best = summaries.best(history)
    if best is None:
        return [*lines, "Nothing was reported there yet."]
    reached = f"{history.objective.name} {best['value']:.6g} at step {best['step']} of trial {best['trial']}"
    where = "every configuration is tried here anyway" if _tries_all(history.spec) else "it is the first of the points"
    lines.append(f"The best of its {len(history.trials)} trials reached {one_line(reached)}; {where}.")
    return lines
