"""What is told of a task run that ended without telling how, and which attempts are not made after
all.
"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import ray.exceptions

from regrow.flows.attempts import Attempts, _Submission, _TrialRun
from regrow.infra.ray.executor import last_line


def test_of_rays_traceback_the_cause_is_told_without_colours() -> None:
    told = '\x1b[36mray::trial-0000()\x1b[39m (pid=1)\n  File "x.py", line 1\nTypeError: too many positional arguments\n\n'
    assert last_line(ray.exceptions.RayError(told)) == "TypeError: too many positional arguments"


def test_of_one_that_says_nothing_its_type() -> None:
    assert last_line(ray.exceptions.RayError()) == "RayError"


def test_an_attempt_that_is_given_up_behind_the_one_before_it_is_not_made() -> None:
    parts: Any = SimpleNamespace()
    at = Attempts(
        runner=parts, executor=parts, lost=parts, flow_run_id=uuid4(), experiment_id="e", logs=parts
    )
    orders: Any = [
        _Submission(assignment=SimpleNamespace(trial=0, attempt=n), avoid=())  # type: ignore[arg-type]  # all that is asked of it
        for n in (3, 4)
    ]
    run = at._runs[0] = _TrialRun(id=uuid4(), orders=deque(orders), attempt=2)
    at._forget(0, 3)
    assert [order.assignment.attempt for order in run.orders] == [4]
    at._forget(1, 1)
