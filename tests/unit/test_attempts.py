"""What is told of a task run that ended without telling how."""

from __future__ import annotations

import ray.exceptions

from regrow.infra.ray.executor import last_line


def test_of_rays_traceback_the_cause_is_told_without_colours() -> None:
    told = '\x1b[36mray::trial-0000()\x1b[39m (pid=1)\n  File "x.py", line 1\nTypeError: too many positional arguments\n\n'
    assert last_line(ray.exceptions.RayError(told)) == "TypeError: too many positional arguments"


def test_of_one_that_says_nothing_its_type() -> None:
    assert last_line(ray.exceptions.RayError()) == "RayError"
