"""A session's artifacts in Prefect: its result with figures and losses, and the best configuration.

Both are Markdown. Each has one key, under which the sessions of an experiment are versions. Users'
text is shown unchanged.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate

from regrow.flows.recording.ending import FIGURES
from regrow.infra.mlflow.ui import runs_page
from regrow.infra.state.places import Places
from regrow.search.history import Attempt, History, cost, waste
from regrow.search.numbers import money, readable
from regrow.search.planning import forecast
from regrow.show.views import summaries
from regrow.tasks.output.traces import printable
from regrow.tasks.process.addresses import redacted

MOST_TRIALS = 200
"""Rows in a table; of trials, the best ones."""
MOST_TRACES = 3


def publish(
    client: SyncPrefectClient,
    flow_run_id: Any,
    history: History,
    places: Places,
    pictures: Mapping[str, bytes],
) -> None:
    """Create the artifacts `regrow-NAME` and, if there is a best trial, `regrow-NAME-best`."""
    name = history.spec.name

    def create(kind: str, text: str, about: str) -> None:
        key = artifact_key(name, kind)
        client.create_artifact(
            ArtifactCreate(
                key=key, type="markdown", description=about, data=text, flow_run_id=flow_run_id
            )
        )

    create("", markdown(history, places, pictures), f"Result of {name}")
    if best := _best(history, places):
        create("best", "\n".join(best), f"Best configuration of {name}")


def artifact_key(name: str, kind: str = "") -> str:
    """Return the key of an artifact; sessions with the same key are its versions."""
    return "-".join(
        filter(None, ("regrow", re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"), kind))
    )


def markdown(history: History, places: Places, pictures: Mapping[str, bytes] | None = None) -> str:
    """Format the experiment as a page of Markdown. `pictures`: PNGs by the names in FIGURES."""
    spec = history.spec
    counts = ", ".join(f"{n} {state.value}" for state, n in history.counts.items() if n)
    status = summaries.status(history, alive=False)
    closing = "" if history.closing is None else _plain(history.closing.why)
    why = f", because {closing}" if closing else ""
    summary = f"**{status}**: {history.of_total(len(history.trials))} trials ({counts}){why}."
    lines = [f"# {_plain(spec.name)}", "", summary, ""]
    lines += [*_best(history, places), *_spent(history)]
    if used := forecast.limits_text(history, history.t_last, alive=history.closed is None):
        lines += [f"Limits: {used}.", ""]
    lines += _links(history, places)
    for name, heading in FIGURES.items():
        if pictures and name in pictures:
            image = base64.b64encode(pictures[name]).decode()
            lines += [f"## {heading}", "", f"![{heading}](data:image/png;base64,{image})", ""]
    lines += [*_failures(history), *_losses(history), *_wasted(history), *_trials(history)]
    return "\n".join(lines)


def _best(history: History, places: Places) -> list[str]:
    view = summaries.best(history)
    if view is None:
        return []
    metric, name = history.spec.objective.name, history.spec.name
    value = f"{_plain(metric)} = {readable(view['value'])} at step {view['step']}"
    lines = [f"**Best: trial {view['trial']}, {value}**", ""]
    if "mean" in view:
        mean = f"{summaries.reached(view)} over {view['count']} repeats"
        lines += [f"Its configuration: {mean}", ""]
    written = (
        f"{key}: {printable(json.dumps(value, ensure_ascii=False))}"
        for key, value in view["config"].items()
    )
    lines += ["```yaml", *written, "```", ""]
    if (found := summaries.checkpoint(history, history.trials[view["trial"]], places)) is not None:
        files = places.command("best", name, "--save FOLDER")
        lines += [f"Its checkpoint: `{found}`", "", f"Its files: `{files}`", ""]
    return lines


def _spent(history: History) -> list[str]:
    """Format the experiment's cost, if prices are known."""
    spent = cost.of(history, history.t_last)
    if spent.money is None:
        return []
    rest = f" and {money(spent.rest)} outside of attempts" if spent.rest else ""
    rest += f" and {money(spent.store)} for the store" if spent.traffic else ""
    line = f"Cost: {money(spent.money)}{rest}, at {cost.prices(history)} for a slot and hour"
    lost = waste.money(history)
    return [f"{line}; {money(lost)} of it for nothing." if lost else f"{line}.", ""]


def _links(history: History, places: Places) -> list[str]:
    name, uri, objective = history.spec.name, places.mlflow_uri, history.spec.objective
    there = history.spec.recorded_as
    if uri.startswith(("http://", "https://")):
        page = runs_page(uri, there, objective.name, objective.mode, only=history.id)
        mlflow = f"[in MLflow]({page})"
    else:
        mlflow = f"in the experiment `{there}` of MLflow at `{redacted(uri)}`,"
        mlflow += f" `{places.command('ui', name)}` opens it"
    report, logs = places.command("report", name), places.command("logs", name, "TRIAL")
    figures = f"All figures on one page: `{report}`."
    prints = f"What a trial printed: its task run, or `{logs}`."
    return [f"Every metric of every trial: {mlflow}.", "", f"{figures} {prints}", ""]


def _failures(history: History) -> list[str]:
    failed = [
        (t, a) for t in history.trials if t.state.value == "failed" and (a := t.failure) is not None
    ]
    if not failed:
        return []
    lines = ["## Failed", ""]
    shown: set[str] = set()
    for trial, attempt in failed[:MOST_TRIALS]:
        which = f"trial {trial.number}, attempt {attempt.number}, at step {trial.step}"
        lines += [f"* {which}: {_plain(attempt.message)}"]
        if attempt.trace and attempt.message not in shown and len(shown) < MOST_TRACES:
            shown.add(attempt.message)
            lines += ["", *(f"      {line}" for line in attempt.trace.rstrip().splitlines()), ""]
    return [*lines, ""]


def _losses(history: History) -> list[str]:
    """Format a table of lost and preempted attempts, and how their trials continued."""
    columns = ("trial", "attempt", "how", "node", "at step", "why", "continued")
    rows = [
        (trial.number, a.number, a.outcome, a.where or "", a.to_step, a.message, _continued(a, new))
        for trial in history.trials
        for a, new in zip(trial.attempts, [*trial.attempts[1:], None], strict=True)
        if a.outcome in ("lost", "preempted")
    ]
    if not rows:
        return []
    return ["## Lost and recovered", "", *_table(columns, rows[:MOST_TRIALS]), ""]


def _continued(lost: Attempt, following: Attempt | None) -> str:
    if following is None or following.t_began is None or lost.t_ended is None:
        return ""
    step, later = following.from_step, max(0.0, following.t_began - lost.t_ended)
    start = f"after step {step}" if step else "from the beginning"
    return f"{start}, {later:.1f} s later, on {following.where}"


def _wasted(history: History) -> list[str]:
    """Format the wasted work: totals by class, and the trials affected."""
    found = waste.of_all(history)
    if not found:
        return ["No work was wasted.", ""]
    priced = ("cost",) if any(w.money for w in found.values()) else ()
    columns = ("lost to", "attempts", "steps done again", "slot-seconds", *priced)

    def row(kind: str, w: waste.Waste) -> tuple[object, ...]:
        cells = kind, w.attempts, w.steps, f"{w.seconds:.1f}"
        return (*cells, f"{money(w.money)}") if priced else cells

    rows = [row(kind, w) for kind, w in found.items()]
    hit = [
        (t.number, *row(kind, w)) for t in history.trials for kind, w in waste.of_trial(t).items()
    ]
    trials = _table(("trial", *columns), hit[:MOST_TRIALS])
    return ["## Wasted work", "", *_table(columns, rows), "", *trials, ""]


def _trials(history: History) -> list[str]:
    spec = history.spec
    parameters = sorted({key for trial in history.trials for key in trial.config})
    sign = spec.objective.sign
    ranked = sorted(
        history.trials,
        key=lambda t: (t.best is None, sign * t.best[0] if t.best else 0.0, t.number),
    )
    rows: list[Sequence[object]] = []
    for trial in ranked[:MOST_TRIALS]:
        value, step = (readable(trial.best[0]), trial.best[1]) if trial.best else ("", "")
        state, settings = trial.state.value, [trial.config.get(name, "") for name in parameters]
        count = len(trial.attempts)
        rows.append((trial.number, state, value, step, trial.step, count, *settings))
    columns = ("trial", "state", spec.objective.name, "step", "steps", "attempts", *parameters)
    lines = ["## Trials", "", *_table(columns, rows)]
    if len(ranked) > MOST_TRIALS:
        lines.append(f"\n{len(ranked) - MOST_TRIALS} more: `regrow trials {spec.name}`.")
    return lines


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    def line(cells: Sequence[object]) -> str:
        shown = (readable(one) if isinstance(one, float) else str(one) for one in cells)
        return f"| {' | '.join(map(_plain, shown))} |"

    yield line(columns)
    yield "|" + "---|" * len(columns)
    yield from map(line, rows)


def _plain(text: str) -> str:
    """Escape text so that it is shown unchanged, on one line: no markup, no HTML."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return " ".join(re.sub(r"([\\`*_{}\[\]|~#])", r"\\\1", escaped).split())
