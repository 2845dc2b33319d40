"""The head of a local Ray cluster is lost while a group of workers trains."""

from __future__ import annotations

import pytest

from tests.system.conftest import Desk, await_no_process
from tests.system.grouped import END, alive, event, events, ranks, scores, until, wait, write
from tests.system.test_main_job import check_whole
from tests.system.test_services_lost import kill_each

STEPS, SAVED = 12, 4


@pytest.mark.nightly
def test_a_group_whose_head_is_lost_goes_on_at_its_next_step_and_no_old_rank_lives(
    desk: Desk,
) -> None:
    file = write(desk, "headless", max_steps=STEPS)
    process = desk.start("run", file)
    until(desk, SAVED)
    event(desk, process, "headless", "saved", attempt=1, step=SAVED)
    old = ranks(desk)
    assert old.keys() == {0, 1}
    kill_each(desk, "gcs/gcs_server")
    wait(process, lambda: not any(map(alive, old.values())), "the end of both ranks")
    until(desk, END)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    view = check_whole(desk, "headless", 1)
    assert [p["score"] for p in desk.points("headless")] == scores(3.0, STEPS)
    assert [a["outcome"] for a in view["trials"][0]["attempts"]] == ["lost", "done"]
    assert view["trials"][0]["attempts"][-1]["from_step"] == SAVED
    assert {e["cause"] for e in events(desk, "headless", "ended", outcome="lost")} <= {
        "infrastructure",
        "preempted",
    }
    assert await_no_process(desk.folder, 90.0) == []
