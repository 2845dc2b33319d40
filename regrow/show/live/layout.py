"""Lays out the whole view for a terminal, the most important parts first. Pure."""

from __future__ import annotations

from rich.text import Text

from regrow.infra.state.notes import NONE, Notes
from regrow.search.durations import on_clock
from regrow.search.history import cost
from regrow.search.numbers import money
from regrow.search.planning import forecast
from regrow.show.live import text, words
from regrow.show.live.board import Board
from regrow.show.live.grid import Signs, bar, cut, flow
from regrow.show.live.sections import Section, sections
from regrow.show.views.names import middle
from regrow.tasks.output.traces import one_line

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
        told = cut(banner or "starting ...", width, signs)
        return [Text(told, style="yellow" if banner else "dim", no_wrap=True)][:height]
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
    if limited := forecast.standing(history, now, alive=not banner):
        facts.insert(0, (limited, "bold"))
    elif spent.total is not None:
        facts.append((f"cost {money(spent.total)}", ""))
    facts.append((f"{spent.hours:.3g} slot-hours", "" if spent.money is None else "dim"))
    incidents = board.incidents
    if incidents.count:
        wait = incidents.usual_wait
        back = "" if wait is None else f", back in {words.seconds(wait)}"
        facts.append((f"{words.losses(incidents.count)}{back}", "yellow"))
    if history.lost_steps:
        facts.append((f"{history.lost_steps} step{text.ends(history.lost_steps)} done again", ""))
    facts.append((f"{len(history.running)} of {history.slots} slots", ""))
    if not banner and (waiting := board.waiting(now)):
        facts.append((words.waiting(waiting), "yellow"))
    if spec.stop.hours is not None:
        facts.append((f"ends after {spec.stop.hours:g} h", "dim"))
    return facts
