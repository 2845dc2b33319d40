"""What the processes of a running experiment know of Prefect: the driver alone has to do with
it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import Desk, desk_in

TRAIN = """
import json, os, sys, time
from pathlib import Path

def train(trial):
    for step in trial.steps():
        trial.report({"score": step})
        if trial.number > 1:
            continue
        seen = {"prefect": "prefect" in sys.modules, "names": sorted(n for n in os.environ if n.startswith("PREFECT_"))}
        seen["loaded"] = sorted(sys.modules)
        Path("FOLDER", f"seen-{trial.number}.json").write_text(json.dumps(seen))
        while not Path("FOLDER", "go").exists():
            time.sleep(0.05)
"""


def ray_processes(mark: Path) -> dict[str, dict[str, str]]:
    """Title and environment of Ray's processes of a test, its workers among them."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            environment = dict(
                pair.split("=", 1)
                for pair in (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                if "=" in pair
            )
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, NotADirectoryError):
            continue
        if environment.get("REGROW_TEST_MARK") == str(mark) and (
            title.startswith("ray::") or "/raylet" in title
        ):
            found[f"{entry.name} {title}"] = environment
    return found


@dataclass(frozen=True, kw_only=True)
class Looked:
    """What was seen of an experiment of a hundred short trials, of which the first two wait for each
    other.
    """

    desk: Desk
    said: str
    processes: dict[str, dict[str, str]]
    """See `ray_processes`."""
    imported: set[str]
    """Modules that the driver has imported."""
    workers: list[dict[str, Any]]
    """What the trials have seen of their workers."""


@pytest.fixture(scope="module")
def looked(
    tmp_path_factory: pytest.TempPathFactory, prefect_of_session: dict[str, str]
) -> Iterator[Looked]:
    with desk_in(tmp_path_factory.mktemp("workers")) as desk:
        desk.environment |= prefect_of_session
        train = TRAIN.replace("FOLDER", str(desk.folder))
        file = desk.write("many", train=train, trials=100, max_steps=1)
        given = {"PREFECT_API_KEY": "pnu_secret", "PYTHONPROFILEIMPORTTIME": "1"}
        out, err = desk.folder / "stdout", desk.folder / "stderr"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "regrow", "run", file],
                cwd=desk.folder,
                env={**desk.environment, **given},
                stdout=stdout,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                text=True,
                process_group=0,
            )
        desk.started.append(process)
        seen = [desk.folder / f"seen-{number}.json" for number in range(2)]
        while not all(path.exists() and path.read_text() for path in seen):
            assert process.poll() is None, err.read_text()
            time.sleep(0.05)
        processes = ray_processes(desk.folder)
        (desk.folder / "go").touch()
        assert process.wait(timeout=120) == 0
        lines = err.read_text().splitlines()
        yield Looked(
            desk=desk,
            said=out.read_text(),
            processes=processes,
            imported={
                line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")
            },
            workers=[json.loads(path.read_text()) for path in seen],
        )


def test_no_worker_has_anything_of_prefect(looked: Looked) -> None:
    assert any(" ray::trial-0000" in name for name in looked.processes), list(looked.processes)
    assert any(" ray::WaitingCoordinator" in name for name in looked.processes), list(
        looked.processes
    )
    for name, environment in looked.processes.items():
        assert [variable for variable in environment if variable.startswith("PREFECT_")] == [], name
    for found in looked.workers:
        assert (found["prefect"], found["names"]) == (False, [])


def test_a_plain_run_imports_no_application_and_no_integration(looked: Looked) -> None:
    imported = looked.imported.union(*(found["loaded"] for found in looked.workers))
    assert "regrow.flows.launch" in looked.imported
    assert all("regrow.tasks.attempt.attempt" in found["loaded"] for found in looked.workers)
    extra = ("regrow.apps.", "regrow.integrations.", "ray.rllib", "ray.tune", "wandb", "torch")
    assert sorted(name for name in imported if name.startswith(extra)) == []


def test_a_hundred_short_trials_are_all_there(looked: Looked) -> None:
    assert "many finished: 100 of 100 trials (100 done)" in looked.said
    runs = looked.desk.task_runs("many")
    assert {(run["state_type"], run["run_count"]) for run in runs} == {("COMPLETED", 1)}
    # one that takes others along is named "trial-0002 and 7 more"
    carried = [int(run["name"].partition(" and ")[2].partition(" ")[0] or 0) for run in runs]
    assert len(runs) + sum(carried) == 100
    assert any(carried)
