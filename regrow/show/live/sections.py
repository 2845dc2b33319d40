"""The live view for a terminal of any size: a title, facts, and the sections, each a table, the
newest or best first: what runs, the best, the losses, the scheduler's decisions, the latest events.
Pure; `grid` fits the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from regrow.infra.state.notes import NONE, Notes
from regrow.search.durations import duration, on_clock
from regrow.search.history import History, TrialRecord, cost
from regrow.search.numbers import money
from regrow.search.planning import forecast
from regrow.show.live import text, words
from regrow.show.live.board import Board
from regrow.show.live.decisions import Exploit, RungDecisions
from regrow.show.live.grid import Cell, GridColumn, Signs, bar, cut, flow, lines, spark
from regrow.show.live.incidents import DriverAbsence, Loss
from regrow.show.views import summaries
from regrow.show.views.names import LONGEST, middle, shortened
from regrow.tasks.output.traces import one_line

CURVE = 16
"""Positions of a curve."""
METRICS = 4
"""Maximum metrics of a running trial that are shown."""
WIDER = 2 * LONGEST
"""Cells that are left of the objective's name."""
THEN = 8
"""Maximum rows of the scheduler, once the more important sections have theirs."""


@dataclass(frozen=True, slots=True)
class GridTable:
    """What `grid.lines` takes. `more`: columns that were left out."""

    columns: Sequence[GridColumn]
    rows: Sequence[Sequence[Cell]]
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the view. `first`: rows that it gets in the first round, `then`: maximum rows,
    filled once all sections have their first ones.
    """

    items: Sequence[Any]
    """One for each row."""
    table: Callable[[Sequence[Any]], GridTable]
    """Columns and rows for the first items, of which there may be none."""
    first: int = 3
    then: int

    def draw(self, width: int, rows: int, signs: Signs) -> list[Text]:
        """Return a line of titles, and at most `rows` lines."""
        made = self.table(self.items[:rows])
        return lines(made.columns, made.rows, width, signs, made.more)


def sections(board: Board, now: float, signs: Signs, *, idle: bool = False) -> list[Section]:
    """Return what has something to show, the most important first. `idle`: nothing runs."""
    found = [
        _running(board, now, signs, idle=idle),
        _best(board, signs),
        _incidents(board, now),
        _scheduling(board, now, signs),
        _latest(board, now, signs),
    ]
    return [section for section in found if section is not None]


def report(
    board: Board, now: float, signs: Signs, width: int, *, alive: bool
) -> Iterator[list[Text]]:
    """Yield what runs, what was lost, and what the scheduler did, for `regrow show`."""
    running = _running(board, now, signs, idle=False) if alive else None
    for section in (running, _incidents(board, now), _scheduling(board, now, signs)):
        if section is not None:
            yield section.draw(width, section.then, signs)


def _running(board: Board, now: float, signs: Signs, *, idle: bool) -> Section | None:
    history = board.history
    numbers = sorted(history.running)
    if not numbers:
        return None
    ranked = history.spec.resources.ranked
    placed = ranked or len(board.nodes) > 1

    def table(shown: Sequence[int]) -> GridTable:
        trials = [history.trials[number] for number in shown]
        title = "cut off" if idle else "running"
        reported = _metrics(history, trials)
        metrics = reported[:METRICS]
        columns = [
            GridColumn(
                f"{title} {len(numbers)}" if len(numbers) > len(shown) else title, right=True
            ),
            GridColumn("step", style="cyan"),
            *(
                GridColumn(one_line(n), rank=2 * place, right=True, least=LONGEST)
                for place, n in enumerate(metrics)
            ),
            GridColumn("attempt", rank=3, right=True, style="yellow"),
            GridColumn("workers" if ranked else "slots", rank=3, right=True),
            GridColumn("node", rank=5),
            GridColumn("heard", rank=1, right=True, style="dim"),
            GridColumn("", rank=9, flex=True, style="dim"),
        ]
        rows = []
        for trial in trials:
            last, measured = trial.attempts[-1], trial.curve.shown(trial.step)
            rows.append(
                [
                    str(trial.number),
                    _step(history, trial),
                    *(text.number(measured[n]) if n in measured else "" for n in metrics),
                    "" if last.number == 1 else str(last.number),
                    str(last.width) if ranked or last.width > 1 else "",
                    one_line(last.where or "") if placed else "",
                    _age(board, trial, now),
                    _settings(trial.config, signs),
                ]
            )
        return GridTable(columns, rows, len(reported) - len(metrics))

    return Section(items=numbers, table=table, then=16)


def _metrics(history: History, trials: list[TrialRecord]) -> list[str]:
    """Return the names of the objectives first, then of other reported metrics."""
    names = dict.fromkeys(metric.name for metric in history.spec.metrics)
    for trial in trials:
        names |= dict.fromkeys(trial.curve.shown(trial.step))
    return list(names)


def _step(history: History, trial: TrialRecord) -> str:
    most, time, clock = history.spec.max_steps, trial.curve.time, history.spec.clock
    if most is not None:
        return f"{time:>{len(str(most))}}/{most}"
    return str(time if clock is None or not trial.step else clock.value(time))


def _age(board: Board, trial: TrialRecord, now: float) -> str:
    attempt = trial.attempts[-1]
    if attempt.t_began is None:
        return words.start(now - attempt.t_started, attempt.market)
    heard = board.heard.get(trial.number, now)
    done = trial.step - attempt.from_step
    usual = (heard - (attempt.t_began or heard)) / done if done > 0 else 0.0
    return words.last_report(now - heard, usual)


def _best(board: Board, signs: Signs) -> Section | None:
    history = board.history
    best = board.leaders.trials
    if not best:
        return None

    def table(shown: Sequence[TrialRecord]) -> GridTable:
        sign = signs.up if history.objective.mode == "max" else signs.down
        greens = ["bold green", *["green"] * len(shown)]
        columns = [
            GridColumn("best", right=True),
            GridColumn(
                f"{one_line(history.objective.name)} {sign}", right=True, style=greens, least=WIDER
            ),
            GridColumn("at step", rank=2, right=True),
            GridColumn("", rank=3, style=[_state(trial) for trial in shown]),
            GridColumn("curve", rank=4, style="cyan"),
            GridColumn("configuration", rank=1, flex=True),
        ]
        rows = []
        for trial in shown:
            value, step = trial.best or (0.0, 0)
            curve = spark(trial.values, CURVE, signs)
            config = _settings(summaries.reached_with(history, trial), signs)
            rows.append(
                [str(trial.number), text.number(value), str(step), trial.state.value, curve, config]
            )
        return GridTable(columns, rows)

    return Section(items=best, table=table, then=6)


def _settings(config: Mapping[str, Any], signs: Signs) -> Cell:
    """Return a configuration in one line, and with its names cut."""
    names = shortened(list(config), [LONGEST] * len(config), signs.more)
    short = dict(zip(names, config.values(), strict=True))
    return one_line(text.settings(config)), one_line(text.settings(short))


def _state(trial: TrialRecord) -> str:
    styles = {"done": "green", "failed": "red", "lost": "red", "running": "cyan"}
    return styles.get(trial.state.value, "dim")


def _incidents(board: Board, now: float) -> Section | None:
    incidents = board.incidents
    if not incidents.kept:
        return None

    def table(shown: Sequence[Loss | DriverAbsence]) -> GridTable:
        more = f" {incidents.count}" if incidents.count > len(shown) else ""
        columns = [
            GridColumn(f"losses{more}", right=True),
            GridColumn("ago", right=True, style="dim", rank=1),
            GridColumn("", flex=True, style=[_color(one) for one in shown]),
        ]
        return GridTable(
            columns,
            [
                [
                    "driver" if isinstance(one, DriverAbsence) else str(one.trial),
                    words.ago(now - one.t),
                    _story(one),
                ]
                for one in shown
            ],
        )

    return Section(items=list(incidents.kept)[::-1], table=table, first=2, then=5)


def _story(one: Loss | DriverAbsence) -> str:
    if isinstance(one, DriverAbsence):
        return (
            f"gone for {duration(one.seconds)}; {len(one.back)} of the {len(one.lost)} trials"
            " that ran are back"
        )
    where = words.lost(one)
    if one.final:
        return f"for good, {f'as did {one.also} more, ' if one.also else ''}{where}"
    return (
        f"not back yet, {where}" if one.back_s is None else f"continues {words.back(one)}; {where}"
    )


def _color(one: Loss | DriverAbsence) -> str:
    if isinstance(one, DriverAbsence):
        return "green" if one.back == one.lost else "yellow"
    return "red" if one.final else "yellow" if one.back_s is None else "green"


def _latest(board: Board, now: float, signs: Signs) -> Section | None:
    if not board.latest:
        return None
    name = board.history.objective.name
    short = middle(name, WIDER, signs.more)

    def table(shown: Sequence[tuple[float, str]]) -> GridTable:
        columns = [GridColumn("latest", right=True, style="dim"), GridColumn("", flex=True)]
        rows: list[list[Cell]] = [
            [words.ago(now - t), (line, line.replace(name, short))] for t, line in shown
        ]
        return GridTable(columns, rows)

    return Section(items=list(board.latest)[::-1], table=table, first=1, then=6)


# ---- the scheduler: rungs, brackets, or a population


def _scheduling(board: Board, now: float, signs: Signs) -> Section | None:
    """Make the section; None for a scheduler that has not decided anything yet."""
    decisions = board.decisions
    if decisions.exploits or decisions.layout == "population":
        return _population(board, now, signs)
    if len(decisions.rungs) > 1:
        return _brackets(board)
    return _rungs(board, next(iter(decisions.rungs.values()), {}))


def _rungs(board: Board, found: dict[int, RungDecisions]) -> Section | None:
    """Show the rungs; of more than fit only those at which a trial was stopped or paused."""
    whole = board.decisions.layout != "none" or len(found) <= THEN
    steps = [step for step, rung in found.items() if whole or rung.stopped or rung.waiting]
    if not steps:
        return None

    def table(shown: Sequence[int]) -> GridTable:
        columns = [
            GridColumn("rung", right=True),
            GridColumn("reached", right=True),
            GridColumn("stopped", right=True, style="yellow", rank=1),
            GridColumn("paused", right=True, rank=2),
            GridColumn("best there", right=True, style="green", rank=3),
        ]
        return GridTable(
            columns,
            [
                [
                    str(board.decisions.shown(step)),
                    str(found[step].reached),
                    str(found[step].stopped or ""),
                    str(len(found[step].waiting) or ""),
                    text.number(found[step].best),
                ]
                for step in shown
            ],
        )

    return Section(items=sorted(steps, reverse=True), table=table, then=THEN)


def _brackets(board: Board) -> Section:
    """Show a row for each kind of bracket, a column for each rung: reached, and stopped there."""
    decisions = board.decisions
    steps = sorted({step for rungs in decisions.rungs.values() for step in rungs})

    def table(shown: Sequence[tuple[int, ...]]) -> GridTable:
        columns = [GridColumn("bracket from step", right=True), GridColumn("trials", right=True)]
        for rank, step in enumerate(steps, start=1):
            title = f"rung {decisions.shown(step)}"
            columns.append(GridColumn(title, right=True, rank=rank, style="yellow"))
        rows = []
        for kind in shown:
            rungs = [decisions.rungs.get(kind, {}).get(step) for step in steps]
            begin = str(decisions.shown(kind[0])) if kind else "no rungs"
            cells = ["" if one is None else f"{one.reached} -{one.stopped}" for one in rungs]
            rows.append([begin, str(decisions.members[kind]), *cells])
        return GridTable(columns, rows)

    kinds = sorted(decisions.members, key=lambda steps: (-len(steps), steps))
    return Section(items=kinds, table=table, then=THEN)


def _population(board: Board, now: float, signs: Signs) -> Section:
    decisions, history = board.decisions, board.history
    title = f"{decisions.exploited} time{text.ends(decisions.exploited)} another's weights"
    open_ = [n for state, ns in history.by_state.items() if not state.final for n in ns]
    if steps := [history.trials[number].step for number in open_]:
        low, high = min(steps), max(steps)
        place = f"step {low}" if low == high else f"steps {low} to {high}"
        title += f"; {len(steps)} trials at {place}"

    def table(shown: Sequence[Exploit]) -> GridTable:
        columns = [
            GridColumn("population"),
            GridColumn("", rank=1, style="green")
            if shown
            else GridColumn(title, flex=True, style="green"),
            GridColumn(title if shown else "", flex=True),
            GridColumn("ago", right=True, rank=2, style="dim"),
        ]
        return GridTable(
            columns,
            [
                [
                    f"{one.trial} {signs.arrow} {one.source}",
                    f"{text.number(one.value)} {signs.arrow} {text.number(one.source_value)}",
                    f"step {one.step}" + "".join(f", {_change(*change)}" for change in one.changes),
                    words.ago(now - one.t),
                ]
                for one in shown
            ],
        )

    return Section(items=list(decisions.exploits)[::-1], table=table, then=THEN)


def _change(name: str, before: object, after: object) -> str:
    return one_line(f"{name} {text.value(before)} to {text.value(after)}")


LEAST_WIDTH = 20
BAR = 40
"""Maximum cells of the progress bar."""


def compose(
    board: Board,
    *,
    width: int,
    height: int,
    now: float,
    signs: Signs,
    banner: str = "",
    trouble: str = "",
    notes: Notes = NONE,
) -> list[Text]:
    """Return at most `height` lines of at most `width` cells.

    `now`: seconds since the epoch. `banner`: why nothing runs; `trouble`: why not everything can be
    saved; both "" for none. `notes`: the experiment's notes.
    """
    width = max(LEAST_WIDTH, width)
    history = board.history
    if history.opened is None:
        message = cut(banner or "starting ...", width, signs)
        return [Text(message, style="yellow" if banner else "dim", no_wrap=True)][:height]
    found = [_title(board, width, signs)]
    found += [
        Text(cut(wrong, width, signs), style="bold yellow", no_wrap=True)
        for wrong in (banner, trouble)
        if wrong
    ]
    if (notes.tags or notes.texts) and height >= 8:
        found.append(Text(cut(one_line(_noted(notes)), width, signs), style="cyan", no_wrap=True))
    most = 1 if height < 8 else 2 if height < 20 else 3
    found += flow(_facts(board, now, banner=bool(banner)), width, most, signs)
    parts = sections(board, now, signs, idle=bool(banner))
    rows, blank = _shares(parts, height - len(found))
    for section, count in zip(parts, rows, strict=True):
        if count is not None:
            found += [Text("")] if blank else []
            found += section.draw(width, count, signs)
    return found[:height]


def _noted(notes: Notes) -> str:
    tags = f"tags: {', '.join(notes.tags)}" if notes.tags else ""
    return "; ".join(filter(None, [tags, *(note.text for note in notes.texts[-1:])]))


def _shares(parts: list[Section], room: int) -> tuple[list[int | None], bool]:
    """Return each section's rows (None: it does not fit), and whether blank lines fit."""
    rows: list[int | None] = []
    for section in parts:
        least = min(1, len(section.items))
        rows.append(least if 1 + least <= room else None)
        room -= 1 + least if 1 + least <= room else 0
    for most in ("first", "then"):
        grown = True
        while grown:
            grown = False
            for place, section in enumerate(parts):
                have, wanted = rows[place], min(len(section.items), getattr(section, most))
                if room > 0 and have is not None and have < wanted:
                    rows[place], room, grown = have + 1, room - 1, True
    shown = sum(count is not None for count in rows)
    return rows, 0 < shown <= room


def _title(board: Board, width: int, signs: Signs) -> Text:
    history = board.history
    share = board.share()
    tail = f" {share * 100:3.0f} %  {history.of_total(history.ended, '/')} trials"
    name = middle(one_line(history.spec.name), max(4, width - len(tail) - 8), signs.more)
    room = min(BAR, width - len(tail) - len(name) - 2)
    line = Text(no_wrap=True).append(name, style="bold").append("  ")
    if room >= 4:
        line.append_text(bar(share, room, signs))
    line.append(tail)
    line.truncate(width)
    return line


def _facts(board: Board, now: float, *, banner: bool) -> list[tuple[str, str]]:
    """Return (text, style) of each fact, the most important first."""
    history, spec = board.history, board.history.spec
    left = board.left_seconds(now) if not banner and history.closing is None else None
    facts: list[tuple[str, str]] = []
    if history.closing is not None and history.closed is None:
        facts.append((one_line(f"ending: {history.closing.why}"), "yellow"))
    if left is not None and history.closed is None:
        facts.append((f"{on_clock(left)} left", "bold"))
    facts.append((f"ran {on_clock(history.elapsed(None if banner else now))}", ""))
    if not banner and (rate := board.ends.rate(now)):
        facts.append((f"{rate * 60:.3g} trials/min", ""))
    facts.append((text.counts(history), ""))
    most = board.most_steps
    of = "" if most is None else f" of {most:,}" if board.exact else f" of at most {most:,}"
    pace = board.steps_done.rate(now) if not banner else None
    facts.append((f"{board.useful:,}{of} steps" + (f", {pace:.3g}/s" if pace else ""), ""))
    spent = cost.of(history, history.t_last if banner or history.closed else now)
    if limited := forecast.limits_text(history, now, alive=not banner):
        facts.insert(0, (limited, "bold"))
    elif spent.total is not None:
        facts.append((f"cost {money(spent.total)}", ""))
    facts.append((f"{spent.hours:.3g} slot-hours", "" if spent.money is None else "dim"))
    incidents = board.incidents
    if incidents.count:
        wait = incidents.usual_wait
        back = "" if wait is None else f", back in {duration(wait)}"
        facts.append((f"{words.losses(incidents.count)}{back}", "yellow"))
    if history.lost_steps:
        facts.append((f"{history.lost_steps} step{text.ends(history.lost_steps)} done again", ""))
    facts.append((f"{len(history.running)} of {history.slots} slots", ""))
    if not banner and (waiting := board.waiting(now)):
        facts.append((words.waiting(waiting), "yellow"))
    if spec.stop.hours is not None:
        facts.append((f"ends after {spec.stop.hours:g} h", "dim"))
    return facts
