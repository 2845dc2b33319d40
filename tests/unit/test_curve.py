"""A trial's curve: what it keeps of its rows, and that going back to a step leaves nothing of what
came after it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.search.constraints import Constraint
from regrow.search.curve import Curve, Scale, counting
from regrow.search.events import Row

PLAIN = Scale(objective="score", most=True)
LIMIT = Constraint(metric="cost", sign="<=", bound=2.0)
SCALES = {
    "max": PLAIN,
    "min": Scale(objective="score", most=False),
    "constraint": Scale(objective="score", most=True, others=("cost",), limits=(LIMIT,)),
    "last": Scale(objective="score", most=True, others=("cost",), limits=(LIMIT,), score="last"),
    "several, min": Scale(objective="score", most=False, others=("cost", "loss")),
}


class Naive:
    """Every row, and the attempt that reported it; what stands is looked for among all of them."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.rows: list[tuple[int, Row]] = []

    def meets(self, row: Row) -> bool:
        return all(limit.violation(row.metrics) <= 0 for limit in self.scale.limits)

    def best(self, rows: Sequence[Row]) -> Row | None:
        found: Row | None = None
        for row in rows:
            value = row.metrics["score"] or 0.0
            if found is None or self.scale.better(value, found.metrics["score"] or 0.0):
                found = row
        return found

    def standing(self) -> Row | None:
        rows = [row for _, row in self.rows]
        if self.scale.score == "last":
            return rows[-1] if rows else None
        return self.best([row for row in rows if self.meets(row)]) or self.best(rows)


VALUES = st.sampled_from([0.0, 1.0, 1.5, 2.0, 3.0])
METRICS = st.fixed_dictionaries(
    {"score": VALUES},
    optional={"cost": st.none() | VALUES, "loss": st.none() | VALUES, "other": st.none() | VALUES},
)
REPORTS = st.lists(st.lists(METRICS, max_size=4), max_size=4)
ATTEMPTS = st.lists(st.tuples(st.floats(0.0, 1.0), REPORTS), min_size=1, max_size=6)
"""Of each attempt: from which share of the steps so far it continues, and what it reports."""


@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from(sorted(SCALES)), attempts=ATTEMPTS)
def test_it_is_what_is_left_of_all_rows_however_often_a_trial_goes_back(
    kind: str, attempts: list[tuple[float, list[list[dict[str, float | None]]]]]
) -> None:
    scale = SCALES[kind]
    curve, naive = Curve(scale), Naive(scale)
    log: list[tuple[int, list[Row]]] = []
    for attempt, (share, reports) in enumerate(attempts, start=1):
        step = int(share * len(curve))
        before = [by for by, row in naive.rows if row.step > step]
        gone = curve.rewind(step)
        assert sorted(gone) == sorted((by, before.count(by)) for by in set(before))
        naive.rows = [(by, row) for by, row in naive.rows if row.step <= step]
        same(curve, naive)
        for metrics in reports:
            rows = [
                Row(n, 10.0 * attempt + n, one)
                for n, one in enumerate(metrics, start=len(curve) + 1)
            ]
            was = curve.best
            improved = curve.extend(attempt, rows, [row.metrics["score"] or 0.0 for row in rows])
            assert improved == (curve.best != was)
            naive.rows += [(attempt, row) for row in rows]
            log.append((attempt, rows))
            same(curve, naive)
    counted = [(by, row) for by, rows in log for row in counting(curve.runs, by, rows)]
    assert counted == naive.rows, "the log's rows, without those that were superseded"
    for _, row in counted:
        curve.recall(row)
    assert not curve.forgotten
    same(curve, naive)


def same(curve: Curve, naive: Naive) -> None:
    """Whatever can be asked of the curve has the answer that all rows give."""
    assert len(curve) == len(naive.rows)
    assert list(curve.values) == [row.metrics["score"] for _, row in naive.rows]
    assert list(curve.times) == [row.t for _, row in naive.rows]
    assert list(curve.lineage()) == [by for by, _ in naive.rows]
    for name in ("score", *naive.scale.others):
        told = [None if math.isnan(value) else value for value in curve.column(name)]
        assert told == [row.metrics.get(name) for _, row in naive.rows]
    for by, row in naive.rows:
        assert curve.attempt_at(row.step) == by
        assert curve.feasible(row.step) == naive.meets(row)
        assert curve.row(row.step) in (None, row)
        assert curve.metrics(row.step) == {
            name: row.metrics.get(name) for name in ("score", *naive.scale.others)
        }
    standing = naive.standing()
    assert curve.representative == (standing.step if standing is not None else 0)
    if standing is None or not naive.meets(standing):
        assert curve.best is None
    else:
        assert curve.best == (standing.metrics["score"], standing.step)
    for step in {len(curve), curve.representative} - {0} - curve.forgotten:
        assert curve.row(step) == naive.rows[step - 1][1]


def told(*values: float, first: int = 1, **more: float) -> list[Row]:
    return [
        Row(step, float(step), {"score": value, **more})
        for step, value in enumerate(values, start=first)
    ]


def grown(rows: Sequence[Row], scale: Scale = PLAIN, attempt: int = 1) -> Curve:
    curve = Curve(scale)
    curve.extend(attempt, rows, [row.metrics["score"] or 0.0 for row in rows])
    return curve


def test_whole_rows_are_kept_of_the_last_step_and_of_the_best_one() -> None:
    curve = grown(told(0.1, 0.9, 0.5, loss=3.0))
    assert (len(curve), curve.representative, curve.best) == (3, 2, (0.9, 2))
    assert [curve.shown(step) for step in (0, 1, 2, 3)] == [
        {},
        {"score": 0.1},
        {"score": 0.9, "loss": 3.0},
        {"score": 0.5, "loss": 3.0},
    ]


def test_after_a_rewind_a_row_that_is_not_known_any_more_is_recalled_from_the_log() -> None:
    rows = told(0.1, 0.5, 0.3, 0.9, loss=3.0)
    curve = grown(rows)
    assert curve.rewind(3) == [(1, 1)]
    assert (curve.best, curve.forgotten) == ((0.5, 2), {2, 3})
    assert curve.shown(2) == {"score": 0.5}, "what decisions look at is known all the same"
    for row in rows:
        curve.recall(row)
    assert curve.forgotten == set()
    assert (curve.row(2), curve.row(3), curve.row(1), curve.row(4)) == (
        rows[1],
        rows[2],
        None,
        None,
    )


def test_the_first_of_equal_values_is_the_best_and_one_that_meets_the_constraints_before_any_other() -> (
    None
):
    assert grown(told(0.5, 0.9, 0.9)).best == (0.9, 2)
    limited = SCALES["constraint"]
    curve = grown(told(0.9, 0.8, cost=3.0), limited)
    assert (curve.best, curve.representative) == (None, 1)
    rows = told(0.1, 0.1, first=3, cost=2.0)
    assert curve.extend(1, rows, [0.1, 0.1])
    assert (curve.best, curve.representative) == ((0.1, 3), 3)
    curve.rewind(2)
    assert (curve.best, curve.representative) == (None, 1)


def test_a_metric_that_decisions_do_not_look_at_has_no_column() -> None:
    curve = grown(told(0.5, loss=1.0))
    with pytest.raises(KeyError, match="loss"):
        curve.column("loss")
