"""What joblib keeps from one call to the next ends with an attempt, and the next attempt begins its
own.
"""

from __future__ import annotations

from joblib import Parallel, delayed
from joblib.externals.loky import reusable_executor

from regrow.infra.machine import descendants
from regrow.tasks.attempt.training import end_process_pools


def test_the_pool_of_an_attempt_ends_with_it_and_the_next_one_has_its_own() -> None:
    end_process_pools()
    # and none was started
    assert reusable_executor._executor is None or reusable_executor._executor._flags.shutdown
    for _ in range(2):
        assert Parallel(n_jobs=2)(delayed(abs)(number) for number in (-1, 2, -3)) == [1, 2, 3]
        end_process_pools()
        descendants.end_children()
