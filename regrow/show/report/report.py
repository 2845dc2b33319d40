"""The report: an experiment as one self-contained HTML file, without a server or network.

Users' texts (names, values, messages, tracebacks) are escaped everywhere: by Jinja in the page, in
the data, which is JSON without any `<`, in the script, which only sets text, and in figures, where
Plotly would read markup. In addition, the page's policy allows only its own two scripts, and no
network requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

import yaml

from regrow.infra.log.rows import LogRows
from regrow.infra.state.notes import NONE, Notes
from regrow.infra.state.places import Places
from regrow.infra.state.spec_file import published_spec
from regrow.search.durations import duration
from regrow.search.history import History, cost, waste
from regrow.search.numbers import money
from regrow.search.planning import forecast, limits
from regrow.show import web
from regrow.show.figures import described, listed
from regrow.show.figures.series import short
from regrow.show.figures.style import template
from regrow.show.live import text
from regrow.show.report import logged, table
from regrow.show.views import budget, machine_use, summaries

SCRIPTS = ("times.js", "figures.js", "report.js")
FRONT = 20
"""Maximum trials of the Pareto front that are listed."""


def html(
    found: LogRows,
    places: Places,
    *,
    alive: bool,
    now: float,
    notes: Notes = NONE,
    files: Sequence[tuple[str, str]] = (),
) -> str:
    """Make the page. Raises LookupError for an empty log.

    Args:
        found: the experiment.
        places: its state root.
        alive: whether the experiment runs.
        now: seconds since the epoch.
        notes: its notes.
        files: the files beside the page: the path of each, relative to it, and what it is.

    """
    from regrow.show.figures.embedded import plotly_as_text  # imports Plotly

    history = found.history
    drawn, missing = _figures(found)
    best_logged = logged.section(history, places)
    data = {
        "name": history.spec.name,
        "figures": {one["name"]: one.pop("figure") for one in drawn} | best_logged.figures,
        "light": template(),
        "dark": template(dark=True),
        **table.rows(history),
    }
    states = [(state.value, count) for state, count in history.counts.items() if count]
    page = web.templates("regrow.show.report").get_template("report.html.j2")
    return page.render(
        policy=web.policy("regrow.show.report", SCRIPTS),
        scripts=SCRIPTS,
        plotly=plotly_as_text(),
        data=data,
        head=_head(history, alive=alive, now=now),
        tags=notes.tags,
        notes=[{"at": web.moment(note.t), "text": note.text} for note in notes.texts],
        numbers=list(tiles(history, alive=alive, now=now)),
        advice=list(machine_use.sentences(history)),
        counts=states,
        left=0 if history.unlimited else max(0, history.total - len(history.trials)),
        best=_best(history, places),
        front=_front(history, places),
        forecasts=budget.outcomes(history),
        nothing_best=_nothing(history),
        logged=best_logged,
        at_bounds=list(text.widened(history, places)),
        left_out=table.left_out(history),
        every=places.command("trials", history.spec.name, "--csv"),
        drawn=drawn,
        missing=missing,
        specification=published_spec(history.spec.to_json()).decode().rstrip("\n"),
        environment=list(_environment(history)),
        commands=list(_commands(history, places, alive=alive)),
        files=[{"path": path, "link": quote(path), "what": what} for path, what in files],
    )


def _figures(rows: LogRows) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    figures = [{**one, **described(rows, one["name"])} for one in listed()]
    drawn = [one for one in figures if "figure" in one]
    halves = [one for one in drawn if not one["whole"]]
    if len(halves) % 2:
        halves[-1]["whole"] = True  # no other figure is left to share the row
    return drawn, [one for one in figures if "nothing" in one]


def _head(history: History, *, alive: bool, now: float) -> dict[str, Any]:
    why = history.closing.why if history.closing is not None else ""
    metrics = ", ".join(f"{metric.mode} {metric.name}" for metric in history.spec.metrics)
    return {
        "name": history.spec.name,
        "status": summaries.status(history, alive=alive),
        "goal": metrics,
        "version": version("regrow"),
        "began": web.moment(history.t_created),
        "now": web.moment(now),
        "sessions": history.sessions,
        "ran": duration(history.elapsed(now if alive else None)),
        "why": why.rstrip("."),
    }


def tiles(history: History, *, alive: bool, now: float) -> Iterator[dict[str, str]]:
    """Yield the numbers: `label`, `number` and `more`. `now`: seconds since the epoch."""

    def tile(label: str, number: str, more: str) -> dict[str, str]:
        return {"label": label, "number": number, "more": more}

    best, objective = summaries.best(history), history.objective
    if best:
        where = f"trial {best['trial']}, step {best['step']}"
        if "mean" in best:
            where = f"mean of {best['count']} repeats; best of them {where}"
        yield tile(f"Best {objective.name}", summaries.reached(best), where)
    else:
        yield tile(f"Best {objective.name}", "none yet", objective.mode)
    running = f"ended; {len(history.running)} running" if history.running else "ended"
    yield tile("Trials", history.of_total(history.ended), running)
    again = f"{history.lost_steps:,} of them done again"
    yield tile("Steps", f"{cost.steps(history):,}", again)
    spent = cost.of(history, now if alive else history.t_last)
    used = spent.hours * 3600
    slots = f"{history.slots} slot{text.ends(history.slots)}"
    ran = duration(history.elapsed(now if alive else None))
    yield tile("Time", ran, f"{duration(used)} on {slots}")
    if spent.money is not None:
        lost_money = waste.money(history)
        nothing = f"; {money(lost_money)} for nothing" if lost_money else ""
        outside = f"; {money(spent.rest)} outside of attempts" if spent.rest >= text.CENT else ""
        price = f"at {cost.prices(history)} for a slot and hour{nothing}{outside}"
        yield tile("Cost", money(spent.total or 0.0), price)
    if spent.traffic:
        yield tile("Cost of the store", money(spent.store), text.traffic(spent.traffic))
    if limited := forecast.limits_text(history, now, alive=alive):
        part = limits.share(history, now if alive else history.t_last)
        yield tile("Limits used", f"{100 * part:.0f} %", limited)
    lost = waste.of_all(history).values()
    seconds, attempts = sum(one.seconds for one in lost), sum(one.attempts for one in lost)
    share = f", {seconds / used:.1%} of all" if used and seconds else ""
    cut = f"{attempts} attempt{text.ends(attempts)} cut off{share}"
    more = cut if attempts else "no attempt was cut off"
    yield tile("Wasted", duration(seconds) if seconds else "nothing", more)
    if (use := machine_use.overall(history)) is not None:
        yield tile("Machine use", *use)


def _best(history: History, places: Places) -> dict[str, Any] | None:
    view = summaries.best(history)
    if view is None:
        return None
    trial = history.trials[view["trial"]]
    metrics = trial.curve.shown(view["step"])
    kept = trial.checkpoint_at(view["step"])
    attempts = f"{len(trial.attempts)} attempt{text.ends(len(trial.attempts))}"
    name = history.spec.name
    return {
        "trial": trial.number,
        "metric": history.objective.name,
        "value": short(view["value"]),
        "mean": summaries.reached(view) if "mean" in view else None,
        "step": view["step"],
        "how": f"of its {trial.step} ({trial.state.value}, {attempts})",
        "metrics": [(n, short(v)) for n, v in metrics.items()] if len(metrics) > 1 else [],
        "config": web.as_yaml(view["config"]),
        "checkpoint": places.address(name, kept.manifest) if kept is not None else None,
        "checkpoint_step": kept.step if kept is not None else 0,
        "save": places.command("best", name, "--save FOLDER"),
    }


def _front(history: History, places: Places) -> dict[str, Any] | None:
    front = summaries.front(history)
    if not front:
        return None
    names = [metric.name for metric in history.spec.metrics]
    return {
        "metrics": names,
        "more": max(0, len(front) - FRONT),
        "command": places.command("show", history.spec.name, "--json"),
        "rows": [
            {
                "trial": one["trial"],
                "values": [short(one["metrics"][name]) for name in names],
                "config": yaml.safe_dump(
                    one["config"], default_flow_style=True, sort_keys=False, width=10_000
                ).strip(),
            }
            for one in front[:FRONT]
        ],
    }


def _nothing(history: History) -> str:
    if history.spec.constraints and any(trial.step for trial in history.trials):
        return f"No step met the constraints: {', '.join(history.spec.constraints)}."
    messages = [trial.failure.message for trial in history.trials if trial.failure is not None]
    if any(messages):
        last = [message for message in messages if message][-1]
        return f"No trial has reported a value. The last one to fail said: {last}"
    return "No trial has reported a value yet."


def _environment(history: History) -> Iterator[dict[str, Any]]:
    opened = history.opened
    known = dict(history.environment)
    if opened is not None and opened.versions:
        known.setdefault("packages", opened.versions)
    plain = [_row(name, value) for name, value in known.items() if not isinstance(value, dict)]
    if plain:
        yield {"title": "", "rows": plain, "folded": False}
    for name, group in known.items():
        if isinstance(group, dict) and group:
            rows = [_row(key, value) for key, value in group.items()]
            yield {"title": name, "rows": rows, "folded": len(rows) > 12}


def _row(name: str, value: Any) -> tuple[str, str]:
    if name.endswith("_bytes") and isinstance(value, int | float):
        return name.removesuffix("_bytes"), f"{value / 2**30:.1f} GiB"
    return name, _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_as_text, value))
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return "unknown" if value is None else str(value)


def _commands(history: History, places: Places, *, alive: bool) -> Iterator[tuple[str, str]]:
    name, status = history.spec.name, summaries.status(history, alive=alive)
    if status == "running":
        yield "How it stands now", places.command("show", name)
        yield "Stop it", places.command("stop", name)
    elif status in ("interrupted", "stopped", "failed"):
        yield "Continue with it", places.command("resume", name)
    elif not history.unlimited:
        more = history.total + max(10, history.total // 2)
        yield "More trials", places.command("resume", name, f"--trials {more}")
    yield "Every trial, or every step of each", places.command("trials", name, "--history")
    if history.trials:
        printed = len(history.trials) - 1 if history.best is None else history.best
        yield f"What trial {printed} printed", places.command("logs", name, str(printed))
    ui = "All trials and metrics in MLflow, all runs and logs in Prefect"
    yield ui, places.command("ui", name)
    yield "Recompute every decision from the log and compare", places.command("verify", name)
    yield "This report anew", places.command("report", name)
