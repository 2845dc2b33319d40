"""What the flow run leaves in Prefect: an artifact with the table of trials, the best one, and where to look."""

from __future__ import annotations

import re

from prefect.artifacts import create_markdown_artifact

from regrow.infra.mlflow_check import shown
from regrow.infra.places import Places
from regrow.search import waste
from regrow.search.history import History

MOST_TRIALS = 200
"""Rows in the table; the best ones."""


def publish(history: History, places: Places) -> None:
    """Creates the artifact `regrow-NAME` of the current flow run."""
    key = "regrow-" + re.sub(r"[^a-z0-9]+", "-", history.spec.name.lower()).strip("-")
    create_markdown_artifact(key=key, markdown=markdown(history, places), description=f"Trials of {history.spec.name}")


def markdown(history: History, places: Places) -> str:
    """The experiment as a page of Markdown."""
    spec = history.spec
    counts = ", ".join(f"{n} {state}" for state, n in history.counts.items() if n)
    lines = [f"# {spec.name}", "", f"{len(history.trials)} of {history.total} trials: {counts}.", ""]
    best = history.trials[history.best] if history.best is not None else None
    if best is not None and best.best is not None:
        value, step = best.best
        lines += [f"**Best: trial {best.number}, {spec.objective.name} = {value:.6g} at step {step}**", ""]
        lines += ["```yaml", *(f"{k}: {v}" for k, v in best.config.items()), "```", ""]
        checkpoint = best.checkpoint_at(step)
        if checkpoint is not None:
            lines += [f"Its checkpoint: `{checkpoint.manifest}` in `{places.address(spec.name)}`", ""]
    where = f"MLflow, experiment `{spec.name}` at `{shown(places.mlflow_uri)}`"
    lines += [f"Metrics of every trial: {where} (`regrow ui {spec.name}`).", ""]
    lines += _wasted(history)
    parameters = sorted({key for trial in history.trials for key in trial.config})
    lines.append("| trial | state | " + f"{spec.objective.name} | step | steps | attempts | " + " | ".join(parameters) + " |")
    lines.append("|" + "---|" * (6 + len(parameters)))
    sign = -1.0 if spec.objective.mode == "max" else 1.0
    ranked = sorted(history.trials, key=lambda t: (t.best is None, sign * t.best[0] if t.best else 0.0, t.number))
    for trial in ranked[:MOST_TRIALS]:
        value_text, step_text = (f"{trial.best[0]:.6g}", str(trial.best[1])) if trial.best else ("", "")
        cells = [_cell(trial.config.get(p, "")) for p in parameters]
        lines.append(
            f"| {trial.number} | {trial.state} | {value_text} | {step_text} | {trial.step} | {len(trial.attempts)} | "
            + " | ".join(cells) + " |"
        )
    if len(ranked) > MOST_TRIALS:
        lines.append(f"\n{len(ranked) - MOST_TRIALS} more: `regrow trials {spec.name}`.")
    return "\n".join(lines)


def _wasted(history: History) -> list[str]:
    """The ledger of wasted work: all of it by class, and the trials that it hit."""
    found = waste.of_all(history)
    if not found:
        return ["No work was wasted.", ""]
    lines = ["## Wasted work", "", "| lost to | attempts | steps done again | node-seconds |", "|---|---|---|---|"]
    lines += [f"| {kind} | {w.attempts} | {w.steps} | {w.seconds:.1f} |" for kind, w in found.items()]
    hit = [(t, w) for t in history.trials if (w := waste.of_trial(t))]
    lines += ["", "| trial | lost to | attempts | steps done again | node-seconds |", "|---|---|---|---|---|"]
    for trial, by_kind in hit[:MOST_TRIALS]:
        lines += [f"| {trial.number} | {kind} | {w.attempts} | {w.steps} | {w.seconds:.1f} |" for kind, w in by_kind.items()]
    return [*lines, "", "## Trials", ""]


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
