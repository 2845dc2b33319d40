"""The sections of the live view, each as columns, the newest or best first. Defines the content;
`layout` and `grid` fit it.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from regrow.search.history import History, TrialRecord
from regrow.show.live import text, words
from regrow.show.live.board import Board
from regrow.show.live.grid import Column, Signs, lines, spark
from regrow.show.live.incidents import Absence, Loss
from regrow.show.live.scheduling import scheduling
from regrow.show.live.section import Section
from regrow.tasks.output.traces import one_line

CURVE = 16
"""Positions of a curve."""
METRICS = 4
"""Maximum metrics of a running trial that are shown."""


def sections(board: Board, now: float, signs: Signs, *, idle: bool = False) -> list[Section]:
    """Return the sections that have something to show, the most important first. `idle`: nothing
    runs, as far as is known.
    """
    found = [
        _running(board, now, signs, idle=idle),
        _best(board, signs),
        _incidents(board, now, signs),
        scheduling(board, now, signs),
        _latest(board, now, signs),
    ]
    return [section for section in found if section is not None]


def report(
    board: Board, now: float, signs: Signs, width: int, *, alive: bool
) -> Iterator[list[Text]]:
    """Yield what runs, what was lost, and what the scheduler did, for `regrow show`."""
    running = _running(board, now, signs, idle=not alive) if alive else None
    for section in (running, _incidents(board, now, signs), scheduling(board, now, signs)):
        if section is not None:
            yield section.draw(width, min(section.rows, section.then))


def _running(board: Board, now: float, signs: Signs, *, idle: bool) -> Section | None:
    history = board.history
    numbers = sorted(history.running)
    if not numbers:
        return None

    def draw(width: int, rows: int) -> list[Text]:
        trials = [history.trials[number] for number in numbers[:rows]]
        title = "cut off" if idle else "running"
        title = f"{title} {len(numbers)}" if len(numbers) > rows else title
        attempts = [trial.attempts[-1] for trial in trials]
        metrics = _metrics(history, trials)
        again = ["" if attempt.number == 1 else str(attempt.number) for attempt in attempts]
        ranked = history.spec.resources.ranked
        nodes = (
            [one_line(attempt.where or "") for attempt in attempts]
            if ranked or len(board.nodes) > 1
            else []
        )
        wide = [str(attempt.width) if ranked or attempt.width > 1 else "" for attempt in attempts]
        columns = [
            Column(title=title, cells=[str(trial.number) for trial in trials], right=True),
            Column(title="step", cells=[_step(history, trial) for trial in trials], style="cyan"),
            *(
                Column(
                    title=one_line(name),
                    rank=2 * place,
                    right=True,
                    cells=[_metric(trial, name) for trial in trials],
                )
                for place, name in enumerate(metrics)
            ),
            Column(title="attempt", cells=again, rank=3, right=True, style="yellow"),
            Column(title="workers" if ranked else "slots", cells=wide, rank=3, right=True),
            Column(title="node", cells=nodes or [""] * len(trials), rank=5),
            Column(
                title="heard",
                cells=[_age(board, trial, now) for trial in trials],
                rank=1,
                right=True,
                style="dim",
            ),
            Column(
                title="",
                cells=[one_line(text.config(trial)) for trial in trials],
                rank=9,
                flex=True,
                style="dim",
            ),
        ]
        return lines(columns, width, rows, signs)

    return Section(rows=len(numbers), first=3, then=16, draw=draw)


def _metrics(history: History, trials: list[TrialRecord]) -> list[str]:
    """Return the names of the objectives first, then of other reported metrics."""
    names = dict.fromkeys(metric.name for metric in history.spec.metrics)
    for trial in trials:
        names |= dict.fromkeys(trial.curve.shown(trial.step))
    return list(names)[:METRICS]


def _metric(trial: TrialRecord, name: str) -> str:
    metrics = trial.curve.shown(trial.step)
    return text.number(metrics[name]) if name in metrics else ""


def _step(history: History, trial: TrialRecord) -> str:
    most, time = history.spec.max_steps, trial.curve.time
    if most is not None:
        return f"{time:>{len(str(most))}}/{most}"
    return str(
        time if (clock := history.spec.clock) is None or not trial.step else clock.value(time)
    )


def _age(board: Board, trial: TrialRecord, now: float) -> str:
    if trial.attempts[-1].t_began is None:
        return words.start(now - trial.attempts[-1].t_started, trial.attempts[-1].market)
    heard = board.heard.get(trial.number, now)
    attempt = trial.attempts[-1]
    done = trial.step - attempt.from_step
    usual = (heard - (attempt.t_began or heard)) / done if done > 0 else 0.0
    return words.heard(now - heard, usual)


def _best(board: Board, signs: Signs) -> Section | None:
    history = board.history
    best = board.leaders.trials
    if not best:
        return None

    def draw(width: int, rows: int) -> list[Text]:
        trials = best[:rows]
        sign = signs.up if history.objective.mode == "max" else signs.down
        found = [trial.best or (0.0, 0) for trial in trials]
        columns = [
            Column(title="best", cells=[str(trial.number) for trial in trials], right=True),
            Column(
                title=f"{one_line(history.objective.name)} {sign}",
                right=True,
                cells=[text.number(value) for value, _ in found],
                style=["bold green", *["green"] * (len(trials) - 1)],
            ),
            Column(title="at step", cells=[str(step) for _, step in found], rank=2, right=True),
            Column(
                title="",
                cells=[trial.state.value for trial in trials],
                rank=3,
                style=[_state(trial) for trial in trials],
            ),
            Column(
                title="curve",
                cells=[spark(trial.values, CURVE, signs) for trial in trials],
                rank=4,
                style="cyan",
            ),
            Column(
                title="configuration",
                cells=[_config(history, trial) for trial in trials],
                rank=1,
                flex=True,
            ),
        ]
        return lines(columns, width, rows, signs)

    return Section(rows=len(best), first=3, then=6, draw=draw)


def _config(history: History, trial: TrialRecord) -> str:
    """Return the configuration with which the best value was reached."""
    if not trial.changes or trial.best is None:
        return one_line(text.config(trial))
    return one_line(text.settings(history.path(trial.number, trial.best[1])[-1]))


def _state(trial: TrialRecord) -> str:
    return {"done": "green", "failed": "red", "lost": "red", "running": "cyan"}.get(
        trial.state.value, "dim"
    )


def _incidents(board: Board, now: float, signs: Signs) -> Section | None:
    kept = board.incidents.kept
    if not kept:
        return None

    def draw(width: int, rows: int) -> list[Text]:
        shown = list(kept)[-rows:][::-1]
        title = f"losses {board.incidents.count}" if board.incidents.count > rows else "losses"
        columns = [
            Column(title=title, cells=[_who(one) for one in shown], right=True),
            Column(
                title="ago",
                cells=[words.ago(now - one.t) for one in shown],
                right=True,
                style="dim",
                rank=1,
            ),
            Column(
                title="",
                cells=[_story(one) for one in shown],
                flex=True,
                style=[_mood(one) for one in shown],
            ),
        ]
        return lines(columns, width, rows, signs)

    return Section(rows=len(kept), first=2, then=5, draw=draw)


def _who(one: Loss | Absence) -> str:
    return "driver" if isinstance(one, Absence) else str(one.trial)


def _story(one: Loss | Absence) -> str:
    if isinstance(one, Absence):
        return (
            f"gone for {words.seconds(one.seconds)}; {len(one.back)} of the {len(one.lost)} trials"
            " that ran are back"
        )
    if one.final:
        more = f", as did {one.also} more," if one.also else ","
        return f"for good{more} {words.lost(one)}"
    where = words.lost(one)
    return (
        f"not back yet, {where}" if one.back_s is None else f"continues {words.back(one)}; {where}"
    )


def _mood(one: Loss | Absence) -> str:
    if isinstance(one, Absence):
        return "green" if one.back == one.lost else "yellow"
    return "red" if one.final else "yellow" if one.back_s is None else "green"


def _latest(board: Board, now: float, signs: Signs) -> Section | None:
    latest = board.latest
    if not latest:
        return None

    def draw(width: int, rows: int) -> list[Text]:
        shown = list(latest)[-rows:][::-1]
        columns = [
            Column(
                title="latest",
                cells=[words.ago(now - t) for t, _ in shown],
                right=True,
                style="dim",
            ),
            Column(title="", cells=[line for _, line in shown], flex=True),
        ]
        return lines(columns, width, rows, signs)

    return Section(rows=len(latest), first=1, then=6, draw=draw)
