"""`regrow schedule --on`: a station on the laptop has a search run by agents on other machines, by
the clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regrow.infra.state.places import Places
from tests.lab import hosts as lab
from tests.system.hosts import await_
from tests.system.test_ssh_cluster import Field

pytestmark = [
    pytest.mark.skipif(bool(lab.why_not()), reason=lab.why_not() or "hosts can be made"),
    pytest.mark.timeout(900),  # a station twice
    pytest.mark.nightly,
]


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    with lab.lab(tmp_path, 3) as hosts:
        yield Field(hosts, tmp_path)


def runs(field: Field) -> list[dict[str, Any]]:
    """The schedule's flow runs, the newest first."""
    lines = field.regrow("schedules", "--json", "--state", field.state).stdout.splitlines()
    found: list[dict[str, Any]] = json.loads(lines[0])["runs"]
    return found


def test_a_schedule_runs_on_other_machines_and_leaves_nothing_running(field: Field) -> None:
    field.write("night", wait=0.1, trials=2, steps=10)
    field.regrow("up", "--state", field.state)
    try:
        said = field.regrow(
            "schedule", "night.yaml", "--every", "15s", "--overlap", "skip", "--on", "cluster.yaml"
        ).stdout
        assert "on lab, ssh: agents on the machines of lab" in said
        known = Places.at(field.state)
        await_(known.experiments, "the first run's experiment", seconds=240)
        field.regrow("schedules", "--pause", "night", "--state", field.state)
        (name,) = known.experiments()
        # The station is lost with the run: what runs elsewhere continues, and the next station
        # follows it.
        field.regrow("down", "--state", field.state)
        field.regrow("up", "--state", field.state)
        await_(lambda: field.history(name).closed, "end of the experiment", seconds=120)
        await_(
            lambda: [
                one
                for one in runs(field)
                if one["experiment"] == name and one["state"] == "Completed"
            ],
            "end of the flow run",
            seconds=240,
        )
        field.whole(name, 2, 10)
        await_(lambda: not field.left(), "the end of the agents")
        assert not [file.name for file in field.project.glob(".*.yaml")]
    finally:
        field.regrow("down", "--state", field.state)
