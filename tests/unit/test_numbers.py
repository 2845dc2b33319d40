"""Numbers for people: nothing looks like the bound or the neighbour that it is not."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regrow.search.numbers import columned, mean, readable


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.99996, "0.99996"),
        (0.9999996, "0.9999996"),
        (0.29999999999907195, "0.3"),
        (2.9999999999999996, "3"),
        (1.0000001, "1.0000001"),
        (123456.7, "123457"),
        (1234567.0, "1234567"),
        (4e-5, "4e-05"),
        (1e20, "1e+20"),
        (7, "7"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
    ],
)
def test_a_number_has_the_digits_that_tell(value: float, shown: str) -> None:
    assert readable(value) == shown


@given(st.floats(-1e5, 1e5, allow_subnormal=False))
def test_what_is_no_whole_number_is_not_shown_as_one(value: float) -> None:
    shown = float(readable(value))
    assert math.isclose(shown, value, rel_tol=1e-4, abs_tol=1e-300)
    if shown.is_integer() and abs(value) < 1e5:
        assert math.isclose(shown, value, rel_tol=1e-12, abs_tol=1e-12)


def test_different_numbers_of_a_column_are_shown_differently() -> None:
    assert columned([0.5, 0.50000001, None, "none", 3]) == ["0.5", "0.50000001", "", "none", "3"]


@pytest.mark.parametrize("many", [1, 2, 3, 6, 7, 100])
def test_the_mean_of_numbers_at_the_end_of_what_a_float_holds_is_one_of_them(many: int) -> None:
    assert mean([sys.float_info.max] * many) == sys.float_info.max
    assert mean([-sys.float_info.max] * many) == -sys.float_info.max
