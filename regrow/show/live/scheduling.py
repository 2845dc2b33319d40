"""The scheduler's section of the live view: rungs, brackets, or a population."""

from __future__ import annotations

from rich.text import Text

from regrow.show.live import text, words
from regrow.show.live.board import Board
from regrow.show.live.decisions import Rung
from regrow.show.live.grid import Column, Signs, lines
from regrow.show.live.section import Section
from regrow.tasks.output.traces import one_line

THEN = 8
"""Maximum rows, once the more important sections have theirs."""


def scheduling(board: Board, now: float, signs: Signs) -> Section | None:
    """Make the section; None for a scheduler that has not decided anything yet."""
    decisions = board.decisions
    if decisions.exploits or decisions.layout == "population":
        return _population(board, now, signs)
    if not decisions.rungs:
        return None
    if len(decisions.rungs) > 1:
        return _brackets(board, signs)
    return _rungs(board, next(iter(decisions.rungs.values())), signs)


def _rungs(board: Board, found: dict[int, Rung], signs: Signs) -> Section | None:
    """Show the rungs; if the scheduler decides at more steps than fit, only those at which it
    stopped or paused a trial.
    """
    all_count = board.decisions.layout != "none" or len(found) <= THEN
    steps = sorted(
        (s for s, rung in found.items() if all_count or rung.stopped or rung.waiting), reverse=True
    )
    if not steps:
        return None

    def draw(width: int, rows: int) -> list[Text]:
        shown = [(step, found[step]) for step in steps[:rows]]
        columns = [
            Column(
                title="rung",
                cells=[str(board.decisions.shown(step)) for step, _ in shown],
                right=True,
            ),
            Column(title="reached", cells=[str(rung.reached) for _, rung in shown], right=True),
            Column(
                title="stopped",
                cells=[str(rung.stopped or "") for _, rung in shown],
                right=True,
                style="yellow",
                rank=1,
            ),
            Column(
                title="paused",
                cells=[str(len(rung.waiting) or "") for _, rung in shown],
                right=True,
                rank=2,
            ),
            Column(
                title="best there",
                cells=[text.number(rung.best) for _, rung in shown],
                right=True,
                style="green",
                rank=3,
            ),
        ]
        return lines(columns, width, rows, signs)

    return Section(rows=len(steps), first=3, then=THEN, draw=draw)


def _brackets(board: Board, signs: Signs) -> Section:
    """Show a row for each kind of bracket, a column for each rung: how many reached it, and how
    many of these were stopped.
    """
    decisions = board.decisions
    kinds = sorted(decisions.members, key=lambda steps: (-len(steps), steps))
    steps = sorted({step for rungs in decisions.rungs.values() for step in rungs})

    def draw(width: int, rows: int) -> list[Text]:
        shown = kinds[:rows]
        columns = [
            Column(
                title="bracket from step",
                right=True,
                cells=[str(decisions.shown(kind[0])) if kind else "no rungs" for kind in shown],
            ),
            Column(
                title="trials", cells=[str(decisions.members[kind]) for kind in shown], right=True
            ),
        ]
        for place, step in enumerate(steps):
            rungs = [decisions.rungs.get(kind, {}).get(step) for kind in shown]
            cells = ["" if rung is None else f"{rung.reached} -{rung.stopped}" for rung in rungs]
            columns.append(
                Column(
                    title=f"rung {decisions.shown(step)}",
                    cells=cells,
                    right=True,
                    rank=1 + place,
                    style="yellow",
                )
            )
        return lines(columns, width, rows, signs)

    return Section(rows=len(kinds), first=3, then=THEN, draw=draw)


def _population(board: Board, now: float, signs: Signs) -> Section:
    decisions, history = board.decisions, board.history
    steps = [
        history.trials[n].step
        for state, numbers in history.by_state.items()
        if not state.final
        for n in numbers
    ]
    place = (
        f"step {min(steps)}"
        if steps and min(steps) == max(steps)
        else f"steps {min(steps)} to {max(steps)}"
        if steps
        else ""
    )
    times = f"{decisions.exploited} time{text.ends(decisions.exploited)} another's weights"
    title = f"{times}; {len(steps)} trials at {place}" if steps else times

    def draw(width: int, rows: int) -> list[Text]:
        shown = list(decisions.exploits)[-rows:][::-1]
        columns = [
            Column(
                title="population",
                cells=[f"{one.trial} {signs.arrow} {one.source}" for one in shown],
            ),
            Column(
                title=title if not shown else "",
                flex=not shown,
                rank=1 if shown else 0,
                cells=[
                    f"{text.number(one.value)} {signs.arrow} {text.number(one.source_value)}"
                    for one in shown
                ],
                style="green",
            ),
            Column(
                title=title if shown else "",
                flex=True,
                cells=[
                    f"step {one.step}" + "".join(f", {_change(*change)}" for change in one.changes)
                    for one in shown
                ],
            ),
            Column(
                title="ago",
                cells=[words.ago(now - one.t) for one in shown],
                right=True,
                rank=2,
                style="dim",
            ),
        ]
        return lines(columns, width, rows, signs)

    return Section(rows=len(decisions.exploits), first=3, then=THEN, draw=draw)


def _change(name: str, before: object, after: object) -> str:
    return one_line(f"{name} {text.value(before)} to {text.value(after)}")
