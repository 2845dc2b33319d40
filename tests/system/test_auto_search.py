"""`search: auto` in earnest: what was chosen is said, and outlives its driver and a file in which
the rule would choose otherwise.
"""

from __future__ import annotations

import pytest

from tests.system.conftest import Desk, await_no_process

pytestmark = pytest.mark.usefixtures("shared_prefect")


def test_what_was_chosen_outlives_the_driver_and_a_raised_total(desk: Desk) -> None:
    file = desk.write("chosen", search=None, trials=6, max_steps=9)
    process = desk.start("run", file)
    desk.await_events("chosen", "decided", 1, process)
    process.kill()
    said, _ = process.communicate()
    assert await_no_process(desk.folder) == []
    told = "search: mobster, schedule: hyperband (auto: 6 trials, 2 parameters; trials of at most 9 steps)"
    assert said.count(told) == 1

    # By so many trials the rule takes TPE, for a new experiment.
    file = desk.write(
        "chosen", search=None, trials=2500, max_steps=9, stop={"trials": 8}, seconds=0.01
    )
    assert "search:" not in desk.run("run", file).stdout
    view = desk.show("chosen")
    assert (view["search"], view["schedule"], view["status"]) == (
        {"mobster": {"by_step": True, "augmented": True}},
        {"hyperband": {"grace_period": 2, "guard": 0.2}},
        "finished",
    )
    assert view["auto"] == {
        "search": "6 trials, 2 parameters",
        "schedule": "trials of at most 9 steps",
    }
    assert (view["total"], view["counts"]["done"] + view["counts"]["stopped"] >= 8) == (2500, True)
    assert told in desk.run("show", "chosen").stdout
    assert "all as recorded" in desk.run("verify", "chosen").stdout
