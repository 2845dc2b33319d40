"""Whatever workers send, in whatever order, and whoever dies meanwhile: the log replays, verifies,
closes, and is shown.

A few seconds of it here. REGROW_FUZZ_MINUTES=60 is an hour of it, each time with other messages.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings

from tests.unit.messaging import PLANS, Stage

MINUTES = float(os.environ.get("REGROW_FUZZ_MINUTES", "0"))
COUNTED: Counter[str] = Counter()


@settings(max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(PLANS)
def plays(plan: tuple[str, list[Any]]) -> None:
    spec, steps = plan
    stage = Stage(spec)
    stage.play(steps)
    COUNTED.update(
        plays=1,
        messages=stage.messages,
        refused=stage.refused,
        events=len(list(stage.store.list("log/"))),
    )


def test_the_log_that_comes_of_any_messages_can_be_read_verified_closed_and_shown() -> None:
    until = time.monotonic() + 60 * MINUTES
    plays()
    while time.monotonic() < until:
        plays()
    print(dict(COUNTED))
    assert COUNTED["refused"], "else nothing odd was sent"
