"""Proposals do not wait for threads of BLAS that wait for each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.linalg
from optuna.samplers import RandomSampler
from threadpoolctl import threadpool_info, threadpool_limits

from regrow.search.one_thread import on_one_thread
from regrow.search.samplers import make
from regrow.search.samplers.acquisition import CubePoints
from regrow.search.samplers.cube import modelled
from regrow.search.samplers.mobster_model import MobsterModel
from tests.unit.fresh import printed
from tests.unit.mixed_space import LINE, setting
from tests.unit.replaying import on_paper, seed_of

scipy.linalg.cholesky(np.eye(2))  # with SciPy's own BLAS


@pytest.fixture(autouse=True)
def several() -> Iterator[None]:
    with threadpool_limits(2, user_api="blas"):
        yield


def threads() -> set[int]:
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


def test_there_is_one_while_a_function_runs_and_as_many_as_before_after_it_even_if_it_raises() -> (
    None
):
    @on_one_thread
    def function(fails: bool) -> set[int]:
        if fails:
            raise ValueError
        return threads()

    assert (function(False), threads()) == ({1}, {2})
    with pytest.raises(ValueError, match=r"^$"):
        function(True)
    assert threads() == {2}


FRESH = """
from regrow.search.one_thread import on_one_thread

def threads():
    from threadpoolctl import threadpool_info
    return {one["num_threads"] for one in threadpool_info()}

@on_one_thread
def first():
    import scipy.linalg
    return threads()

print(first(), threads())
"""


def test_it_holds_for_the_first_call_of_a_process_which_is_what_loads_the_libraries() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
    assert printed(FRESH, env=environment) == "{1} {2}\n"


class Looking(RandomSampler):
    """Looks how many there are while it proposes."""

    seen: ClassVar[set[int]] = set()

    def sample_independent(self, *args: Any, **kwargs: Any) -> Any:
        Looking.seen |= threads()
        return super().sample_independent(*args, **kwargs)


def test_a_sampler_of_optuna_has_one() -> None:
    path = f"{__name__}:Looking"
    on_paper(make({"optuna": {"sampler": path}}, setting(LINE)).ask(0, seed_of(0)))
    assert (Looking.seen, threads()) == ({1}, {2})


def test_the_process_over_curves_has_one() -> None:
    seen = set()

    def looking(points: Any) -> Any:
        seen.update(threads())
        return np.zeros((len(points), 1))

    model = MobsterModel(CubePoints(LINE, modelled(LINE)), 3, looking)
    points = {n: [n / 9] for n in range(9)}
    model.propose(points, {n: [(1.0, n / 9)] for n in range(9)}, {}, [], set(), 0)
    assert (seen, threads()) == ({1}, {2})
