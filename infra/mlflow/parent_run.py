"""The parent run, on which MLflow shows the experiment: settings, environment, best trial, summary.

Pure functions of the history; `sink.py` writes the results, `recording/ending.py` adds the report.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import yaml

from regrow.infra.state.notes import NONE, Notes
from regrow.search.history import History, repeats
from regrow.search.history.waste import Waste
from regrow.search.nested import leaves
from regrow.search.numbers import readable
from regrow.search.options import AUTO, chosen

NOTE_TAG = "mlflow.note.content"
NOTED_TAG = "regrow.notes"
"""Tag with the number of note objects of the experiment that MLflow has."""
SPEC_FILE = "spec.yaml"
_NOT_SETTINGS = {
    "name",
    "space",
    "points",
    "warm_start",
    "env",
    "state",
    "working_dir",
    "trials",
    "budget",
    "mlflow",
    "register",
}
"""Keys that are no parameters: they may change, list trials, or are recorded elsewhere."""


def settings(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of the parent run: the settings of the search, by dotted names."""
    return {
        key: text(value)
        for key, value in leaves({k: v for k, v in spec.items() if k not in _NOT_SETTINGS})
    }


def source_tags(spec: Mapping[str, Any], environment: Mapping[str, Any]) -> dict[str, str]:
    """Return who ran which code, in the tags that MLflow's pages read."""
    git = environment.get("git", {})
    rllib = spec.get("rllib")
    named = (
        str(spec.get("trainable", ""))
        if rllib is None
        else f"RLlib's {rllib['algorithm']} on {rllib['env']}"
    )
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
    """Return the rest of the environment that deserves a column; the artifact has all of it."""
    machine = environment.get("machine", {})
    found = {
        "regrow.version": environment.get("regrow"),
        "regrow.git_dirty": {True: "true", False: "false"}.get(
            environment.get("git", {}).get("dirty")
        ),
        "regrow.code_sha256": environment.get("code", {}).get("working_dir_sha256"),
        "regrow.python": environment.get("python"),
        "regrow.host": machine.get("host"),
        "regrow.gpus": ", ".join(machine.get("gpus", [])),
    }
    return {key: str(value) for key, value in found.items() if value}


Best = tuple[int, float, int]
"""Number, value (with repeats, the mean of its configuration) and step of the best trial."""


def best_of(history: History) -> Best | None:
    """Return the best trial so far, None if there is none."""
    found = repeats.best(history)
    return None if found is None else (found.trial.number, found.counts, found.step)


BEST_STEP = "best_step"


def best_metric(objective: str) -> str:
    """Return the metric's name for sorting in MLflow, which sorts by a metric's last value; the
    last value of this metric is the best one.
    """
    return f"best_{objective}"


def best_points(
    objective: str, best: tuple[float, int] | None, step: int, at_ms: int
) -> list[tuple[str, float, int, int]]:
    """Return the best value and its step as points at `step`; NaN if there is no best now."""
    value, where = best or (math.nan, math.nan)
    return [(best_metric(objective), value, step, at_ms), (BEST_STEP, where, step, at_ms)]


def best_tags(best: Best | None, checkpoint: str | None) -> dict[str, str]:
    """Return the tags of the best trial and its checkpoint's address; "-" if there is none."""
    names = ("regrow.best_trial", "regrow.best_value", "regrow.best_step")
    values = ("-", "-", "-") if best is None else map(repr, best)
    return {**dict(zip(names, values, strict=True)), "regrow.best_checkpoint": checkpoint or "-"}


def cost_tags(paid: float, wasted: Iterable[Waste]) -> dict[str, str]:
    """Return the tags of the cost and of its wasted part; empty without a price."""
    lost = sum(w.money for w in wasted)
    return {"regrow.cost": f"{paid:.6g}", "regrow.cost_wasted": f"{lost:.6g}"} if paid else {}


def best_checkpoint(
    history: History, best: Best | None, address: Callable[[str], str]
) -> str | None:
    """Return the address of the best trial's checkpoint, None if there is none."""
    saved = None if best is None else history.trials[best[0]].checkpoint_at(best[2])
    return None if saved is None else address(saved.manifest)


def progress_markdown(history: History) -> str:
    """Return the progress of the experiment in Markdown."""
    counts = ", ".join(f"{count} {state}" for state, count in history.counts.items() if count)
    status = "running" if history.closed is None else history.closed.status
    sentence = f"{status.capitalize()}: {counts or 'no trial yet'}."
    if history.lost_steps:
        sentence += f" Steps that had to be done again after losses: {history.lost_steps}."
    return sentence


def user_tags(notes: Notes) -> dict[str, str]:
    """Return the users' tags ("false": removed), and how many notes they cover."""
    if not notes.count:
        return {}
    here = {tag: "true" if tag in notes.tags else "false" for tag in notes.ever}
    return {**here, "regrow.tags": ", ".join(notes.tags) or "-", NOTED_TAG: str(notes.count)}


def note(
    history: History, best: Best | None, checkpoint: str | None, stands: str, notes: Notes = NONE
) -> str:
    """Return the description of the parent run in Markdown; the users' notes come first."""
    spec, objective = history.spec, history.objective
    aim = "highest" if objective.mode == "max" else "lowest"
    auto = f", {AUTO}" if history.choice.why else ""
    how = f"search `{chosen(spec.search)}`, schedule `{chosen(spec.schedule)}`{auto}"
    steps = "" if spec.max_steps is None else f", up to {spec.max_steps} steps each"
    count = len(history.trials) if history.unlimited else history.total
    lines = [line for one in notes.texts for line in (one.text, "")]
    lines += [f"**{spec.name}**: the {aim} `{objective.name}` of {count} trials{steps} ({how})."]
    if best is not None:
        number, value, step = best
        found = f"**Best: trial {number}, {objective.name} = {readable(value)} at step {step}**"
        config = spec.space.nest(history.path(number, step)[-1])
        written = yaml.safe_dump(config, sort_keys=False, allow_unicode=True).rstrip()
        lines += ["", found, "", "````yaml", written.replace("````", "'''"), "````"]
        if checkpoint is not None:
            lines += [f"Its checkpoint: `{checkpoint}`"]
    return "\n".join([*lines, "", stands])


def text(value: Any) -> str:
    """Return a parameter as MLflow shows it, and as its autologging would write it: plain values as
    Python prints them, lists and maps as JSON.
    """
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)
