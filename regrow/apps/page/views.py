"""The templates' data: plain texts and numbers from folds and summaries. No requests, no markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from regrow.apps.page import pictures
from regrow.apps.page.experiment_state import ExperimentState, Summary, differing_keys, status
from regrow.apps.page.links import Links, next_run
from regrow.infra.state.notes import Notes
from regrow.infra.state.places import Places
from regrow.infra.state.spec_file import published_spec
from regrow.search import schedulers
from regrow.search.durations import duration
from regrow.search.history import History, waste
from regrow.search.numbers import money, readable
from regrow.show.live import text, words
from regrow.show.live.incidents import Loss
from regrow.show.report.report import tiles
from regrow.show.views import agents, machine_use, summaries
from regrow.show.views.comparison import (
    ABSENT,
    ComparisonRow,
    best_configuration,
    compare,
    configurations,
    differing,
    outcomes,
)
from regrow.show.web import as_yaml, moment
from regrow.tasks.output.traces import one_line

if TYPE_CHECKING:
    from regrow.infra.prefect.deployments import Scheduled

MOST_MESSAGES = 40
"""Maximum lines of recent incidents."""
RUNGS = 60


def row(one: Summary, links: Links, now: float) -> dict[str, Any]:
    version = one.versions[-1] if one.versions else summaries.UNKNOWN
    found = {
        **asdict(one),
        "readable": one.total > 0,
        "flow": flow(links, one.flow_run),
        "version": "" if version == summaries.UNKNOWN else version,
    }
    if not one.total:
        return found
    return {
        **found,
        "share": round(100 * one.share),
        "value": "" if one.value is None else readable(one.value),
        "trial": one.best,
        "spark": pictures.spark(one.spark, one.spent_steps),
        "cost": money(one.cost) if one.cost is not None else "",
        "slots": duration(3600 * one.hours),
        "began": moment(one.began),
        "heard": moment(one.heard),
        "ago": text.age(now - one.heard),
        "ran": duration(one.ran),
        "left": "" if not one.left else duration(one.left),
    }


def flow(links: Links, flow_run: str | None) -> str | None:
    """Return the address of a flow run's page in Prefect, None if there is none."""
    if links.prefect is None or flow_run is None:
        return None
    return f"{links.prefect.rstrip('/')}/runs/flow-run/{quote(flow_run, safe='')}"


def planned(found: Sequence[Scheduled], now: float) -> Iterator[dict[str, Any]]:
    for one in found:
        wait = None if (at := next_run(one)) is None else at - now
        yield {
            "name": one.name,
            "when": one.words,
            "last": one.runs[0].state if one.runs else "",
            "next": None if at is None else moment(at),
            "paused": one.paused,
            "in": "" if wait is None else "due" if wait <= 0 else f"in {text.age(wait)}",
        }


def experiment(
    fold: ExperimentState, summary: Summary, noted: Notes, links: Links, places: Places, now: float
) -> dict[str, Any]:
    """Return everything about one experiment but its trials."""
    history = fold.history
    alive = summary.status == "running"
    counts = [(state.value, count) for state, count in history.counts.items() if count]
    left = 0 if history.unlimited else max(0, history.total - len(history.trials))
    view = summaries.best(history)
    return {
        **row(summary, links, now),
        "tiles": list(tiles(history, alive=alive, now=now)),
        "advice": list(machine_use.sentences(history)),
        "counts": counts,
        "unproposed": left,
        "sessions": history.sessions,
        "why": history.closing.why.rstrip(".") if history.closing is not None else "",
        "code": summaries.code_line(history),
        "tags": noted.tags,
        "notes": [{"at": moment(note.t), "text": note.text} for note in noted.texts[-10:]],
        "losses": [text.losses(kind, lost) for kind, lost in waste.of_all(history).items()],
        "messages": latest_messages(fold),
        "agents": list(_agents(history, now, alive=alive)),
        "agents_line": "".join(agents.line(history, alive=alive)),
        "decisions": decisions(fold),
        "schedule": schedulers.kind(history.spec.schedule).layout,
        "config": None if view is None else as_yaml(view["config"]),
        "best_trial": view,
        "at_bounds": list(text.widened(history, places)),
        "every": places.command("trials", summary.name, "--csv"),
        "specification": published_spec(history.spec.to_json()).decode().rstrip("\n"),
    }


def _agents(history: History, now: float, *, alive: bool) -> Iterator[dict[str, Any]]:
    """Yield the agents, those that are there first."""
    found = agents.view(history, alive=alive)
    for one in sorted(found, key=lambda one: one["state"] in ("left", "away")):
        yield {
            **one,
            "since": moment(one["since"]),
            "cpus": f"{one['cpus']:g}",
            "gpus": f"{one['gpus']:g}",
            "ends": text.ending_in(one, now),
        }


def latest_messages(fold: ExperimentState) -> list[dict[str, Any]]:
    """Return what happened, newest first: ends of trials, losses and recoveries."""
    lines = [(t, line, False) for t, line in fold.board.latest]
    for incident in fold.board.incidents.kept:
        if isinstance(incident, Loss):
            lines.append((incident.t, words.loss(incident) + _continuation(incident), True))
        else:
            absence = (
                f"the driver was gone for {duration(incident.seconds)}; of the"
                f" {len(incident.lost)} trials that ran then {len(incident.back)} run again"
            )
            lines.append((incident.t, absence, True))
    newest = sorted(lines, key=lambda line: line[0])[-MOST_MESSAGES:]
    return [{"at": moment(t), "text": line, "loss": loss} for t, line, loss in reversed(newest)]


def _continuation(loss: Loss) -> str:
    also = f"; {loss.also} more failed the same way" if loss.also else ""
    if loss.back_s is not None:
        return f"; it continued {words.back(loss)}{also}"
    return f"{' for good' if loss.final else '; it has not continued yet'}{also}"


def decisions(fold: ExperimentState) -> dict[str, Any]:
    """Return the scheduler's decisions: rungs by bracket, and the latest exploits."""
    found = fold.board.decisions
    rungs = [
        {
            "bracket": number,
            "step": found.shown(step),
            "reached": rung.reached,
            "stopped": rung.stopped,
            "waiting": len(rung.waiting),
            "best": "" if rung.best is None else readable(rung.best),
        }
        for number, rungs in enumerate(found.rungs.values(), start=1)
        for step, rung in sorted(rungs.items())
    ]
    exploits = [
        {
            "at": moment(one.t),
            "text": (
                f"trial {one.trial} took the weights of trial {one.source} after step {one.step}: "
                + (
                    ", ".join(
                        f"{name} {text.value(old)} → {text.value(new)}"
                        for name, old, new in one.changes
                    )
                    or "nothing changed"
                )
            ),
        }
        for one in list(found.exploits)[-20:][::-1]
    ]
    return {
        "rungs": rungs[:RUNGS],
        "brackets": len(found.rungs),
        "exploits": exploits,
        "exploited": found.exploited,
        "more": max(0, len(rungs) - RUNGS),
    }


def comparison(
    folds: dict[str, ExperimentState], alive: dict[str, bool], now: float
) -> dict[str, Any]:
    """Return several experiments as curves and tables. `kinds`: their objectives; with more than
    one they cannot be compared.
    """
    courses = [fold.best_so_far.course(name, alive=alive[name]) for name, fold in folds.items()]
    kinds = differing(courses)
    histories = [course.history for course in courses]
    found: dict[str, Any] = {
        "labels": [
            {"name": course.label, "hue": place % pictures.HUES}
            for place, course in enumerate(courses)
        ],
        "kinds": kinds,
        "differing": [
            (key, [_set(key, value) for value in values])
            for key, values in differing_keys(histories)
        ],
        "charts": [],
        "outcomes": [],
        "settings": [],
    }
    if not courses or len(kinds) > 1:
        return found
    view = compare(courses, now)
    for one in view["experiments"]:
        one["status"] = status(folds[one["name"]].history, alive=alive[one["name"]])
    cost = (
        ("cost", "money", [one["cost"] for one in view["experiments"]])
        if all(one["cost"] is not None for one in view["experiments"])
        else ("slot-hours", "hours", [one["slot_hours"] for one in view["experiments"]])
    )
    for across, key, ends in (
        ("steps of all trials", "steps", [c.spent[0] for c in courses]),
        (
            "seconds, from each session's first attempt",
            "seconds",
            [c.ran(now if c.alive else None) for c in courses],
        ),
        cost,
    ):
        curves = [
            pictures.DrawnCurve(
                label=c.label,
                points=[(getattr(one, key) or 0.0, one.value) for one in c.points],
                end=end,
            )
            for c, end in zip(courses, ends, strict=True)
        ]
        drawn = pictures.chart(curves, across, f"best {view['metric']} so far")
        found["charts"].append({"title": f"By {across.partition(',')[0]}", "drawn": drawn})
    rows = outcomes(view, title=f"best {view['metric']}", duration=duration, count=",")
    return {
        **found,
        "outcomes": cells(rows),
        "settings": settings([best_configuration(one) for one in courses]),
    }


def cells(rows: Iterable[ComparisonRow]) -> list[dict[str, Any]]:
    """Return the rows of a table of outcomes: their titles, and (text, whether it is the best)."""
    return [
        {"title": row.title, "cells": [(cell, n in row.best) for n, cell in enumerate(row.cells)]}
        for row in rows
    ]


def settings(configs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return configurations side by side; differing parameters first."""
    rows = [
        {
            "name": name,
            "cells": ["-" if value is ABSENT else _in_a_cell(value) for value in values],
            "differs": differs,
        }
        for name, values, differs in configurations(configs)
    ]
    return sorted(rows, key=lambda one: not one["differs"])


def _set(key: str, value: Any) -> str:
    """Format a specification's value at a key; a missing top-level key has its default."""
    return "default" if value is None and "." not in key else _in_a_cell(value)


def _in_a_cell(value: Any) -> str:
    shown = (
        one_line(text.value(value))
        if not isinstance(value, dict | list)
        else one_line(text.pasted(value))
    )
    return "-" if value is None else shown if len(shown) <= 200 else f"{shown[:199]}…"
