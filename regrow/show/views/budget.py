"""The limits, a budget, money and time, as data: what is used, and what is to be expected."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from regrow.search.bounds import LAST_TIME
from regrow.search.durations import on_clock
from regrow.search.history import History, cost
from regrow.search.planning import budget, forecast, limits


def view(history: History, now: float, *, alive: bool) -> dict[str, Any] | None:
    """Return what is used of the limits, and the forecast, as plain data; None without limits.
    Times are ISO 8601, in UTC.
    """
    stop, given = history.spec.stop, history.spec.budget
    if not history.spec.limited:
        return None
    now = now if alive else history.t_last
    found: dict[str, Any] = {"share": round(limits.share(history, now), 4)}
    if given is not None:
        found |= {"budget": given.to_json(), "used": round(budget.used(history, given, now), 4)}
    if stop.dollars is not None:
        found |= {"dollars": stop.dollars, "spent": round(limits.spent(history, now), 6)}
        paid = cost.of(history, now)
        found["outside_attempts"] = round(paid.rest, 6)
        if paid.traffic:
            found["store"] = round(paid.store, 6)
    if (end := limits.deadline(history)) is not None:
        found["deadline"] = _iso(end)
    if alive and (seen := forecast.of(history, now)) is not None:
        chance = forecast.on_time(history, now)
        found["forecast"] = {
            "ends": _iso(seen.ends),
            "between": [_iso(one) for one in seen.interval],
            "cost": seen.money,
            "cost_between": seen.costs,
            "on_time": None if chance is None else round(chance, 4),
        }
    found["milestones"] = [
        {
            "at": _iso(one.t),
            "limit": one.limit,
            "percent": one.percent,
            "spent": one.spent,
            "expected_end": None if one.ends is None else _iso(one.ends),
            "between": None if one.between is None else [_iso(t) for t in one.between],
            "expected_cost": one.cost,
        }
        for one in history.milestones
    ]
    return found


def outcomes(history: History) -> list[tuple[str, str, str, str]]:
    """Return for each forecast of an experiment that has ended: when it was made, the end that was
    expected, the interval, and what came.
    """
    if history.closed is None:
        return []
    came = history.closed.t - history.t_created
    found = []
    for one in history.milestones:
        if one.ends is None or one.between is None:
            continue
        first, last = (on_clock(t - history.t_created) for t in one.between)
        inside = one.between[0] <= history.closed.t <= one.between[1]
        found.append(
            (
                f"{one.percent} % of {one.limit.removeprefix('stop.')}",
                on_clock(one.ends - history.t_created),
                f"{first} to {last}",
                on_clock(came) + ("" if inside else ", outside"),
            )
        )
    return found


def _iso(t: float) -> str:
    return datetime.fromtimestamp(min(t, LAST_TIME), UTC).isoformat(timespec="seconds")
