"""How the runs of a schedule are named, found, begun with the last one, and removed."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.server.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule

from regrow.infra.prefect.clocks import clock
from regrow.search.recurrence import (
    LONGEST,
    before,
    experiments_of,
    name_prefix,
    outdated,
    run_name,
    run_seed,
)
from regrow.search.spec import NAME, When
from tests.unit.fresh import printed


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ((2, 0, 0), "digits-2026-11-22T02"),
        ((2, 30, 0), "digits-2026-11-22T0230"),
        ((2, 0, 5), "digits-2026-11-22T020005"),
        ((0, 0, 0), "digits-2026-11-22T00"),
    ],
)
def test_the_name_is_the_time_in_the_shortest_form_that_is_exact(
    at: tuple[int, int, int], expected: str
) -> None:
    assert run_name("digits", datetime(2026, 11, 22, *at, tzinfo=UTC), ()) == expected


def test_a_trigger_s_fraction_of_a_second_is_left_out() -> None:
    assert (
        run_name("digits", datetime(2026, 11, 22, 2, 0, 5, 999_999, tzinfo=UTC), ())
        == "digits-2026-11-22T020005"
    )


def test_one_that_is_taken_is_numbered() -> None:
    at = datetime(2026, 11, 22, 2, tzinfo=UTC)
    assert run_name("a", at, {"a-2026-11-22T02"}) == "a-2026-11-22T02-2"
    assert run_name("a", at, {"a-2026-11-22T02", "a-2026-11-22T02-2"}) == "a-2026-11-22T02-3"


def test_the_hour_that_comes_twice_gives_two_names_and_the_one_that_is_left_out_none() -> None:
    zone = ZoneInfo("Europe/Zurich")
    taken: list[str] = []
    for hours in range(4):  # 00:00 UTC is 02:00 in summer; an hour later it is 02:00 again
        at = (datetime(2026, 10, 25, 0, tzinfo=UTC) + timedelta(hours=hours - 1)).astimezone(zone)
        taken.append(run_name("a", at, taken))
    assert taken == ["a-2026-10-25T01", "a-2026-10-25T02", "a-2026-10-25T02-2", "a-2026-10-25T03"]
    assert experiments_of("a", taken[::-1]) == taken
    spring = [datetime(2026, 3, 29, 0, tzinfo=UTC) + timedelta(hours=hours) for hours in range(2)]
    assert [run_name("a", at.astimezone(zone), ()) for at in spring] == [
        "a-2026-03-29T01",
        "a-2026-03-29T03",
    ]


def seen(times: CronSchedule | IntervalSchedule, day: datetime) -> list[datetime]:
    """All that a scheduler has made due from two days before `day` to four after it, which looks
    what is next now and then.
    """
    first, last = day - timedelta(days=2), day + timedelta(days=4)

    async def look() -> list[datetime]:
        looks = [first + timedelta(hours=hours) for hours in range(0, 6 * 24, 7)]
        return [at for one in looks for at in await times.get_dates(8, start=one)]

    return sorted(
        {datetime.fromtimestamp(at.timestamp(), UTC) for at in asyncio.run(look()) if at <= last}
    )


CHANGES = [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)]
"""Days on which clocks change in Europe."""


@pytest.mark.parametrize("day", CHANGES)
@pytest.mark.parametrize("hours", [1, 24, 36, 48])
def test_every_counts_elapsed_time_over_a_change_of_clocks(hours: int, day: datetime) -> None:
    times = IntervalSchedule.model_validate(
        clock(When(every=3600 * hours, timezone="Europe/Zurich"))
    )
    assert {b - a for a, b in pairwise(seen(times, day))} == {timedelta(hours=hours)}, (
        "none twice, none left out"
    )
    midnight = datetime(2020, 1, 1, tzinfo=ZoneInfo("Europe/Zurich"))
    assert asyncio.run(times.get_dates(1, start=midnight)) == [midnight]


@pytest.mark.parametrize("day", CHANGES)
def test_cron_comes_once_on_a_day_on_which_its_hour_is_left_out_or_comes_twice(
    day: datetime,
) -> None:
    zone = ZoneInfo("Europe/Zurich")
    times = CronSchedule.model_validate(clock(When(cron="30 2 * * *", timezone=zone.key)))
    due = [at.astimezone(zone) for at in seen(times, day)]
    assert {b.date() - a.date() for a, b in pairwise(due)} == {timedelta(days=1)}
    odd = [at for at in due if (at.hour, at.minute) != (2, 30)]
    assert [f"{at:%m-%dT%H%M}" for at in odd] == (["03-29T0130"] if day == CHANGES[0] else []), (
        "as the hour begins that is left out"
    )


def test_the_end_of_a_rule_in_utc_is_the_same_moment_in_the_schedules_time_zone() -> None:
    rule = "FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0;UNTIL=20991203T080000Z"
    made = clock(When(rrule=rule, timezone="Europe/Zurich")) or {}
    assert made["rrule"].endswith("UNTIL=20991203T090000")
    start = datetime(2099, 12, 1, tzinfo=UTC)
    times = asyncio.run(RRuleSchedule.model_validate(made).get_dates(9, start=start))
    assert [f"{at.astimezone(UTC):%dT%H}" for at in times] == ["01T08", "02T08", "03T08"]


NEVER = """
import prefect.server.schemas.schedules, regrow.infra.prefect.private
from regrow.infra.prefect import clocks
from regrow.search.errors import SpecError
from regrow.search.spec import When

clocks._LOOK_SECONDS = 0.5
for given in ({"cron": "0 0 30 2 *"}, *({"rrule": f"FREQ=DAILY;{rest}"} for rest in (
    "UNTIL=20991301T000000Z", "UNTIL=20200101T000000Z", "COUNT=0", "INTERVAL=0"
))):
    try:
        clocks.clock(When(**given))
    except SpecError as error:
        print(error.problem)
"""


def test_times_that_never_come_are_told() -> None:
    assert printed(NEVER).splitlines() == [
        "has no times (failed to find next date)",
        "has no times (20991301T000000Z)",
        "never comes",
        "never comes",
        "has no next time that is found within 0.5 s",
    ], "and the last search ends with its process"


def test_only_names_of_the_schedule_s_own_form_are_its_experiments() -> None:
    own = [
        "a.b-2026-11-22T02",
        "a.b-2026-11-22T0230",
        "a.b-2026-11-22T03",
        "a.b-2026-11-22T03-2",
        "a.b-2026-11-22T03-10",
    ]
    others = [
        "a.b",
        "a.b-2026",
        "a.b-2026-11-22",
        "axb-2026-11-22T02",
        "a.b-c-2026-11-22T02",
        "a.b-2026-11-22T02-best",
        "z",
    ]
    assert experiments_of("a.b", [*others, *own[::-1]]) == own


def test_a_run_begins_with_those_before_it_the_last_first() -> None:
    names = [
        "a-2026-11-20T02",
        "a-2026-11-21T02",
        "a-2026-11-22T02",
        "a-2026-11-23T02",
        "b-2026-11-21T02",
    ]
    assert before("a", "a-2026-11-22T02", names) == ["a-2026-11-21T02", "a-2026-11-20T02"]
    assert before("a", "a-2026-11-20T02", names) == []


def test_the_latest_are_kept() -> None:
    names = ["a-2026-11-22T02", "a-2026-11-20T02", "a-2026-11-21T02", "b-2026-11-01T02"]
    assert outdated("a", names, 2) == ["a-2026-11-20T02"]
    assert outdated("a", names, 3) == outdated("a", names, 9) == outdated("a", names, None) == []


@given(st.from_regex(NAME, fullmatch=True), st.datetimes(timezones=st.just(UTC)))
def test_every_name_may_be_an_experiment_s_and_is_found_again(schedule: str, at: datetime) -> None:
    at = at.replace(year=2000 + at.year % 1000, day=min(at.day, 28))
    taken: list[str] = []
    for _ in range(12):
        taken.append(run_name(schedule, at, taken))
    assert all(len(name) <= LONGEST and re.fullmatch(NAME, name) for name in taken)
    assert experiments_of(schedule, taken) == taken


def test_long_names_that_begin_alike_stay_apart() -> None:
    one, other = "x" * 60 + "1", "x" * 60 + "2"
    assert name_prefix(one) != name_prefix(other)
    names = [run_name(one, datetime(2026, 11, 22, tzinfo=UTC), ())]
    assert experiments_of(other, names) == []
    at, longest = datetime(2026, 11, 22, 2, 30, 15, tzinfo=UTC), "x" * LONGEST
    numbered = [run_name(longest, at, ())] + [
        f"{run_name(longest, at, ())}-{number}" for number in range(2, 999)
    ]
    assert len(run_name(longest, at, numbered)) == LONGEST, (
        "there is room for the time to the second, and a number"
    )
    lengths = [len(name_prefix("x" * n)) for n in range(1, LONGEST + 1)]
    assert all(b - a in (0, 1) for a, b in pairwise(lengths)), "cut only where it must be"


def test_each_run_has_a_seed_of_its_own_that_follows_from_the_file_s() -> None:
    assert run_seed(0, "a-2026-11-22T02") == run_seed(0, "a-2026-11-22T02") >= 0
    assert (
        len(
            {
                run_seed(seed, name)
                for seed in (0, 1)
                for name in ("a-2026-11-22T02", "a-2026-11-22T03")
            }
        )
        == 4
    )
