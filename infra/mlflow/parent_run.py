"""What MLflow shows of the experiment as a whole, on its parent run: settings, environment, the best trial, a summary to read.

Pure functions of the history: writing them is `infra/mlflow/sink.py`, the report at the end is `infra/mlflow/ending.py`.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import yaml

from regrow.infra.state.notes import NONE, Notes
from regrow.search.history import History
from regrow.search.history.waste import Waste
from regrow.search.options import AUTO, chosen

NOTE_TAG = "mlflow.note.content"
NOTED_TAG = "regrow.notes"
"""How many notes and tags of the experiment MLflow has been told."""
SPEC_FILE = "spec.yaml"
_NOT_SETTINGS = {"name", "space", "points", "warm_start", "env", "state", "working_dir", "trials", "mlflow", "register"}
"""Keys of a specification that are no parameters of the parent run: they may change, are lists of trials, or are elsewhere."""


def settings(spec: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of the parent run: what the search was told, by dotted names."""
    return {key: text(value) for key, value in flat({k: v for k, v in spec.items() if k not in _NOT_SETTINGS})}


def source_tags(spec: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, str]:
    """By whom and from which code, in the tags that MLflow's pages read."""
    git = environment.get("git", {})
    rllib = spec.get("rllib")
    named = str(spec.get("trainable", "")) if rllib is None else f"RLlib's {rllib['algorithm']} on {rllib['env']}"
    trainable = shlex.join(spec.get("command", ())) or named
    found = {
        "mlflow.source.name": "regrow" if trainable in ("", "pickled") else trainable,
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.git.branch": git.get("branch"),
        "mlflow.source.git.repoURL": git.get("remote"),
        "mlflow.user": environment.get("user"),
    }
    return {key: str(value) for key, value in found.items() if value}


def machine_tags(environment: Mapping[str, Any]) -> dict[str, str]:
    """The rest of the environment that is worth a column; all of it is in the artifact."""
    machine = environment.get("machine", {})
    found = {
        "regrow.version": environment.get("regrow"),
        "regrow.git_dirty": {True: "true", False: "false"}.get(environment.get("git", {}).get("dirty")),
        "regrow.code_sha256": environment.get("code", {}).get("working_dir_sha256"),
        "regrow.python": environment.get("python"),
        "regrow.host": machine.get("host"),
        "regrow.gpus": ", ".join(machine.get("gpus", [])),
    }
    return {key: str(value) for key, value in found.items() if value}


Best = tuple[int, float, int]
"""Number, value and step of the best trial."""


def best_of(history: History) -> Best | None:
    """The best trial so far."""
    trial = history.leader
    return None if trial is None or trial.best is None else (trial.number, *trial.best)


BEST_STEP = "best_step"


def best_metric(objective: str) -> str:
    """The metric by which MLflow can sort: it takes a metric's last value, and ours is that of the best step."""
    return f"best_{objective}"


def best_points(objective: str, best: tuple[float, int] | None, step: int, at_ms: int) -> list[tuple[str, float, int, int]]:
    """The best value and its step as points of a run, at its `step`; NaN where there is no best any more."""
    value, where = best or (math.nan, math.nan)
    return [(best_metric(objective), value, step, at_ms), (BEST_STEP, where, step, at_ms)]


def best_tags(best: Best | None, checkpoint: str | None) -> dict[str, str]:
    """The best trial, its value and its checkpoint's address; "-" where there is none."""
    number, value, step = ("-", "-", "-") if best is None else (str(best[0]), repr(best[1]), str(best[2]))
    return {
        "regrow.best_trial": number, "regrow.best_value": value, "regrow.best_step": step,
        "regrow.best_checkpoint": checkpoint or "-",
    }


def cost_tags(paid: float, wasted: Iterable[Waste]) -> dict[str, str]:
    """What attempts have cost, and what of that for nothing; none where they had no price."""
    return {"regrow.cost": f"{paid:.6g}", "regrow.cost_wasted": f"{sum(w.money for w in wasted):.6g}"} if paid else {}


def best_checkpoint(history: History, best: Best | None, address: Callable[[str], str]) -> str | None:
    """The address of the best trial's checkpoint."""
    saved = None if best is None else history.trials[best[0]].checkpoint_at(best[2])
    return None if saved is None else address(saved.manifest)


def standing(history: History) -> str:
    """How far it is, in Markdown."""
    counts = ", ".join(f"{count} {state}" for state, count in history.counts.items() if count)
    status = "running" if history.closed is None else history.closed.status
    again = f" Steps that had to be done again after losses: {history.lost_steps}." if history.lost_steps else ""
    return f"{status.capitalize()}: {counts or 'no trial yet'}.{again}"


def user_tags(notes: Notes) -> dict[str, str]:
    """The tags that people gave, by their names ("false": taken away since), and how many notes that comprises."""
    if not notes.count:
        return {}
    here = {tag: "true" if tag in notes.tags else "false" for tag in notes.ever}
    return {**here, "regrow.tags": ", ".join(notes.tags) or "-", NOTED_TAG: str(notes.count)}


def note(history: History, best: Best | None, checkpoint: str | None, stands: str, notes: Notes = NONE) -> str:
    """The experiment in Markdown, as the description of the parent run; first what people noted."""
    spec, objective = history.spec, history.objective
    aim = "highest" if objective.mode == "max" else "lowest"
    auto = f", {AUTO}" if history.choice.why else ""
    how = f"search `{chosen(spec.search)}`, schedule `{chosen(spec.schedule)}`{auto}"
    steps = "" if spec.max_steps is None else f", up to {spec.max_steps} steps each"
    lines = [line for one in notes.texts for line in (one.text, "")]
    lines += [f"**{spec.name}**: the {aim} `{objective.name}` of {history.total} trials{steps} ({how})."]
    if best is not None:
        number, value, step = best
        lines += ["", f"**Best: trial {number}, {objective.name} = {value:.6g} at step {step}**", "", "````yaml"]
        config = spec.space.nest(history.path(number, step)[-1])
        lines += [yaml.safe_dump(config, sort_keys=False, allow_unicode=True).rstrip().replace("````", "'''"), "````"]
        if checkpoint is not None:
            lines += [f"Its checkpoint: `{checkpoint}`"]
    return "\n".join([*lines, "", stands])


def environment_file(environment: Mapping[str, Any]) -> bytes:
    """The whole environment as JSON."""
    return (json.dumps(environment, indent=2, ensure_ascii=False) + "\n").encode()


def flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested maps as dotted names."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found += flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", value))
    return found


def text(value: Any) -> str:
    """A parameter as MLflow shows it, and as its autologging would write it: plain values as Python prints them."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)
