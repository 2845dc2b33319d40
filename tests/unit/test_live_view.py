"""The live view, on recorded histories of simulated experiments: what a person sees in terminals of
many sizes.
"""

from __future__ import annotations

import io
import re
import time
from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from regrow.search.durations import duration
from regrow.search.events import AnyEvent, Began, Decided, Ended, Opened
from regrow.search.history import cost
from regrow.search.numbers import money
from regrow.search.planning.simulator import Simulation
from regrow.show.live import text, words
from regrow.show.live.board import Board, BoardPace
from regrow.show.live.grid import ASCII, GridColumn, Signs, flow, lines, spark
from regrow.show.live.sections import compose
from regrow.show.views import summaries
from tests.unit.watched import SCHEDULES, simulated

SIZES = [(width, height) for width in (60, 80, 160) for height in (12, 24, 50)]


def shown(events: list[AnyEvent]) -> Board:
    board = Board()
    for event in events:
        board.apply(event)
    return board


def picture(
    board: Board, width: int = 160, height: int = 50, now: float | None = None, **options: Any
) -> str:
    at = board.history.t_last if now is None else now
    return "\n".join(
        line.plain
        for line in compose(board, width=width, height=height, now=at, signs=Signs(), **options)
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_is_longer_or_lower_than_the_terminal_at_any_moment(schedule: str) -> None:
    events = simulated(schedule).events
    board = Board()
    for number, event in enumerate(events):
        board.apply(event)
        if number % 41 == 0 or number == len(events) - 1:
            for width, height in [*SIZES, (20, 3), (30, 5), (500, 200)]:
                for banner in (
                    "",
                    "interrupted: no driver runs it; waiting for regrow resume digits --state /somewhere/else",
                ):
                    found = compose(
                        board, width=width, height=height, now=event.t, signs=Signs(), banner=banner
                    )
                    assert len(found) <= height
                    assert max(line.cell_len for line in found) <= width


@pytest.mark.parametrize("colour", [True, False])
@pytest.mark.parametrize(("width", "height"), SIZES)
def test_it_says_the_same_with_and_without_colour(width: int, height: int, colour: bool) -> None:
    board = shown(simulated("asha").events)
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        height=height,
        force_terminal=True,
        color_system="truecolor" if colour else None,
        no_color=not colour,
    )
    for line in compose(board, width=width, height=height, now=board.history.t_last, signs=Signs()):
        console.print(line, crop=False, no_wrap=True, overflow="ignore")
    printed = out.getvalue()
    assert ("\x1b[" in printed) == colour
    assert [
        line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", printed).splitlines()
    ] == picture(board, width, height).splitlines()


def test_a_low_and_narrow_terminal_has_what_matters_most() -> None:
    board = shown(simulated("asha", price_per_hour=2.0).events)
    found = picture(board, 60, 12)
    assert found.startswith("digits  ━")
    assert f"{board.history.ended}/40 trials" in found.splitlines()[0]
    assert " left" in found
    assert "running" in found
    assert "best" in found
    assert found.index("running") < found.index("best  ")
    # the best have no place there, running ones have
    assert len(picture(board, 60, 4).splitlines()) == 4
    assert "best  " not in picture(board, 60, 4)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_kept_incrementally_is_what_the_whole_history_says(schedule: str) -> None:
    board = Board()
    most = board.leaders
    # losses take steps back
    for event in simulated(schedule, most=700, checkpoint={"every_steps": 4}).events:
        board.apply(event)
        history = board.history
        if history.opened is None:
            continue
        ranked = [t.number for t in summaries.ranked(history) if t.best is not None]
        assert [t.number for t in most.trials] == ranked[:16]
        each = sum(a.slot_seconds(event.t) for trial in history.trials for a in trial.attempts)
        assert cost.of(history, event.t).hours == pytest.approx(each / 3600)
        assert board.spent == cost.steps(history)
        assert set(board.heard) == history.running


@pytest.mark.parametrize("schedule", ["fifo", "hyperband", "pbt"])
def test_the_steps_that_the_schedule_can_spend_are_those_that_it_spends(schedule: str) -> None:
    run = simulated(schedule, most=None, lose=False)
    board = shown(run.events)
    assert board.exact
    assert board.most_steps == cost.steps(run.history)
    assert board.share() == 1.0


def test_with_asha_they_are_a_bound_and_trials_are_what_counts() -> None:
    board = shown(simulated("asha", lose=False).events)
    assert not board.exact
    assert f"of at most {40 * 27:,} steps" in picture(board)
    assert board.share() == board.history.ended / 40


def test_the_time_that_is_left_is_that_of_the_pace() -> None:
    run = simulated("fifo", most=None, lose=False)  # four machines, one step a second on each
    half = [event for event in run.events if event.t <= 135.0]
    board = shown(half)
    assert board.left_seconds(135.0) == pytest.approx((40 * 27 - 4 * 135) / 4, rel=0.05)
    assert shown(simulated("fifo", lose=False, stop={"hours": 0.04}).events).left_seconds(
        135.0
    ) == pytest.approx(9.0)


def test_rungs_are_those_of_the_decisions() -> None:
    run = simulated("promotion", most=1500)
    board = shown(run.events)
    decided = Counter(e.step for e in run.events if isinstance(e, Decided))
    rungs = board.decisions.rungs[()]
    assert {step: rung.reached for step, rung in rungs.items()} == dict(decided)
    waiting = {n: t.decided for n, t in enumerate(run.history.trials) if t.held}
    assert {n: step for step, rung in rungs.items() for n in rung.waiting} == waiting
    stopped = Counter(t.decided for t in run.history.trials if t.state.value == "stopped")
    assert {step: rung.stopped for step, rung in rungs.items() if rung.stopped} == dict(stopped)
    row = next(
        line for line in picture(board).splitlines() if line.split()[:2] == ["1", str(decided[1])]
    )
    assert text.number(rungs[1].best) in row


def test_trials_are_seen_in_their_brackets() -> None:
    run = simulated("hyperband", most=None, lose=False)
    board = shown(run.events)
    # Algorithm 1 of the paper with R = 27, eta = 3: 27, 12, 6 and 4 trials; 40 trials reach the
    # first three, the last partly.
    assert sorted(board.decisions.members.values(), reverse=True) == [27, 12, 1]
    assert sum(board.decisions.members.values()) == 40
    found = picture(board)
    assert "bracket from step" in found
    assert re.search(r"^ +1 +27 +27 -18 +9 -6 +3 -2$", found, re.MULTILINE)


def test_the_population_shows_who_took_whose_weights() -> None:
    run = simulated("pbt", most=2000)
    board = shown(run.events)
    taken = [e for e in run.events if isinstance(e, Decided) and e.source is not None]
    assert taken
    assert board.decisions.exploited == len(taken)
    assert f"{len(taken)} time" in picture(board)
    last = taken[-1]
    line = next(
        line
        for line in picture(board).splitlines()
        if line.startswith(f"{last.trial} ← {last.source} ")
    )
    assert f"step {last.step}" in line
    assert re.search(r"(x|lr|kind) \S+ to \S+", line)


def test_losses_and_recoveries_are_told_with_node_reason_step_and_seconds() -> None:
    run = simulated("fifo", most=None)
    board, told = Board(), []
    for event in run.events:
        told += board.apply(event)
    losses = [e for e in run.events if isinstance(e, Ended) and e.cause]
    assert board.incidents.count == len(losses) > 3
    first = next(e for e in losses if e.step > 0)
    back = next(
        e
        for e in run.events
        if isinstance(e, Began) and e.trial == first.trial and e.attempt == first.attempt + 1
    )
    assert any(
        re.fullmatch(
            rf"trial {first.trial} lost on worker-\d after step {first.step}: the node was lost",
            line,
        )
        for line in told
    )
    later = duration(back.t - first.t)
    assert (
        f"trial {first.trial} continues after step {back.restored} on {back.node}, {later} later"
        in told
    )
    found = picture(board)
    assert f"losses {len(losses)}" in found
    assert "the node was lost" in found
    assert "continues after step" in found


def test_a_trial_that_is_not_back_yet_is_seen_as_such() -> None:
    events = simulated("fifo", most=None).events
    place = next(n for n, e in enumerate(events) if isinstance(e, Ended) and e.cause)
    assert "not back yet, lost on worker-" in picture(shown(events[: place + 1]))


def test_a_driver_that_was_lost_is_one_line_however_many_trials_ran() -> None:
    run = simulated("fifo", most=300, lose=False)
    again = Simulation(spec=run.spec, objective=run.objective, workers=4).open(run.events)
    board = shown(again.events)
    assert board.incidents.count == 4
    absent = [line for line in picture(board).splitlines() if "driver" in line]
    assert absent == ["  driver   0s  gone for 0.0 s; 0 of the 4 trials that ran are back"]
    assert "4 of the 4 trials that ran are back" in picture(
        shown(again.run(most_events=len(again.events) + 60).events)
    )


def test_a_trial_that_has_reported_nothing_for_a_while_is_seen_as_silent() -> None:
    assert [words.last_report(span, usual=1.0) for span in (4, 59, 60, 240)] == [
        "4s",
        "59s",
        "silent 60 s",
        "silent 4 min",
    ]
    # slow is not silent
    assert [words.last_report(span, usual=100.0) for span in (240, 600)] == [
        "4:00",
        "silent 10 min",
    ]
    board = shown([event for event in simulated("fifo", lose=False).events if event.t <= 135.0])
    assert "silent" not in picture(board)
    assert picture(board, now=board.history.t_last + 600).count("silent 10 min") == len(
        board.history.running
    )


def test_costs_are_slots_times_time_and_money_where_there_is_a_price() -> None:
    run = simulated("fifo", most=None, lose=False, price_per_hour=2.0)
    board = shown(run.events)
    hours = 40 * 27 / 3600  # one second a step, on one slot
    assert cost.of(board.history, run.now).hours == pytest.approx(hours)
    assert f"cost {2 * hours:.2f} · {hours:.3g} slot-hours" in picture(board)
    assert "cost" not in picture(shown(simulated("fifo", most=None, lose=False).events))


@pytest.mark.parametrize(("first", "share"), [(2.0, 2.0), (None, 5.0)])
def test_an_attempt_has_the_price_of_its_session_and_the_present_one_where_that_had_none(
    first: float | None, share: float
) -> None:
    board = shown(simulated("fifo", most=300, lose=False, price_per_hour=first).events)
    t = board.history.t_last
    done = cost.of(board.history, t).hours
    board.apply(
        Opened(t=t, by="driver", driver="d", slots=4, trials=41, settings={"price_per_hour": 5.0})
    )
    assert cost.of(board.history, t).money == pytest.approx(share * done)
    assert f"cost {money(share * done)} at " in text.spent(board.history, t)


def test_while_nobody_runs_it_no_time_goes_on() -> None:
    board = shown(simulated("fifo", lose=False).events)
    banner = "interrupted: no driver runs it"
    early, late = (
        picture(board, now=board.history.t_last + wait, banner=banner) for wait in (0.0, 3600.0)
    )
    assert banner in early
    assert "cut off" in early
    assert " left" not in early
    assert [line.split(" · ")[0] for line in early.splitlines()[:3]] == [
        line.split(" · ")[0] for line in late.splitlines()[:3]
    ]


def test_what_users_write_is_no_code_for_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J"
    run = simulated(
        "fifo",
        most=200,
        lose=False,
        space={"x": {"uniform": [0, 1]}, "kind": {"choice": [evil, evil + "2"]}},
    )
    board = shown(run.events)
    lost = next(iter(board.history.running))
    attempt = board.history.trials[lost].attempts[-1].number
    told = board.apply(
        Ended(
            t=run.now,
            trial=lost,
            attempt=attempt,
            outcome="failed",
            cause="error",
            message=f"bad{evil}",
            by="attempt",
        )
    )
    assert told
    assert "\x1b" not in "".join(told)
    assert "\x1b" not in picture(board)
    assert "\x07" not in picture(board)
    assert "owned" in picture(board)


def test_a_terminal_without_unicode_gets_signs_that_it_has() -> None:
    board = shown(simulated("pbt", most=2000).events)
    for width, height in SIZES:
        found = compose(board, width=width, height=height, now=board.history.t_last, signs=ASCII)
        assert all(line.plain.isascii() for line in found)


def test_columns_that_do_not_fit_go_the_least_important_first() -> None:
    columns = [
        GridColumn("a"),
        GridColumn("b", rank=1),
        GridColumn("c", rank=2),
        GridColumn("d", flex=True),
    ]
    row = ["1", "x" * 10, "y" * 10, "日本語の長い文字列です"]
    widths = {
        width: [line.plain for line in lines(columns, [row], width, Signs())][1]
        for width in (60, 41, 29, 10)
    }
    assert widths[60] == f"1  {'x' * 10}  {'y' * 10}  日本語の長い文字列です"
    assert widths[41] == f"1  {'x' * 10}  {'y' * 10}  日本語の長い…"
    assert widths[29] == f"1  {'x' * 10}  日本語の長い…"
    assert widths[10] == "1  日本語…"


def test_facts_flow_over_lines_and_the_last_ones_go() -> None:
    facts = [("aaaa", ""), ("bbbbbbbb", ""), ("cc", "")]
    assert [line.plain for line in flow(facts, 9, 2, Signs())] == ["aaaa", "bbbbbbbb"]
    assert [line.plain for line in flow(facts, 20, 1, Signs())] == ["aaaa · bbbbbbbb · cc"]
    assert [line.plain for line in flow(facts, 10, 1, Signs())] == ["aaaa · cc"]


def test_a_curve_is_drawn_from_its_least_to_its_greatest_value() -> None:
    assert spark([0.0, 0.3, 1.0], 16, Signs()) == "▁▃█"
    assert len(spark([float(n) for n in range(1000)], 16, Signs())) == 16
    assert spark([1.0], 16, Signs()) == ""
    assert spark([1.0, 1.0], 16, Signs()) == "▁▁"


def test_a_pace_is_that_of_the_last_minute_or_of_the_last_twenty_moments() -> None:
    quick = BoardPace()
    for second in range(1000):
        quick.add(second, 2.0)
    assert quick.rate(999.0) == pytest.approx(2.0, rel=0.02)
    slow = BoardPace()
    for hour in range(30):
        slow.add(hour * 3600.0)
    assert slow.rate(29 * 3600.0) == pytest.approx(1 / 3600)
    assert slow.rate(1e9) is not None
    assert (slow.rate(1e9) or 0) < 1e-6
    assert BoardPace().rate(0.0) is None


def test_a_thousand_trials_are_drawn_without_looking_at_all_of_them() -> None:
    board = shown(simulated("asha", most=None, lose=False, trials=1000).events)
    touched = 0

    class Counted(list[Any]):
        def __iter__(self) -> Any:
            nonlocal touched
            touched += 1
            return super().__iter__()

    board.history.trials = Counted(board.history.trials)
    began = time.perf_counter()
    picture(board)
    print(f"a picture of 1,000 trials: {(time.perf_counter() - began) * 1e3:.1f} ms")
    assert touched == 0
