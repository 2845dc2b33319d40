"""What the processes of a running experiment know of Prefect: the driver alone has to do with
it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.system.conftest import Desk
from tests.system.test_main_job import prefect

TRAIN = """
import json, os, sys, time
from pathlib import Path

def train(trial):
    for step in trial.steps(until=2):
        trial.report({"score": step})
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


def test_no_worker_has_anything_of_prefect(desk: Desk) -> None:
    file = desk.write(
        "apart", train=TRAIN.replace("FOLDER", str(desk.folder)), trials=2, max_steps=2
    )
    process = desk.start("run", file, PREFECT_API_KEY="pnu_secret")
    seen = [desk.folder / f"seen-{number}.json" for number in range(2)]
    while not all(path.exists() and path.read_text() for path in seen):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    processes = ray_processes(desk.folder)
    assert any(" ray::trial-0000" in name for name in processes), list(processes)
    assert any(" ray::Coordinator" in name for name in processes), list(processes)
    for name, environment in processes.items():
        assert [variable for variable in environment if variable.startswith("PREFECT_")] == [], name
    (desk.folder / "go").touch()
    process.communicate(timeout=120)
    assert process.returncode == 0
    for path in seen:
        found = json.loads(path.read_text())
        assert (found["prefect"], found["names"]) == (False, [])


def test_a_plain_run_imports_no_application_and_no_integration(desk: Desk) -> None:
    file = desk.write(
        "plain", train=TRAIN.replace("FOLDER", str(desk.folder)), trials=1, max_steps=1
    )
    (desk.folder / "go").touch()
    done = desk.run("run", file, PYTHONPROFILEIMPORTTIME="1")
    said = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    driver = {line.rpartition("|")[2].strip() for line in said}
    worker = set(json.loads((desk.folder / "seen-0.json").read_text())["loaded"])
    assert "regrow.flows.launch" in driver
    assert "regrow.tasks.attempt.attempt" in worker
    extra = ("regrow.apps.", "regrow.integrations.", "ray.rllib", "ray.tune", "wandb", "torch")
    assert sorted(name for name in driver | worker if name.startswith(extra)) == []


def test_hundreds_of_short_trials_are_all_there(desk: Desk) -> None:
    train = "def train(trial):\n    trial.report({'score': trial.config['x']})\n"
    file = desk.write("many", train=train, trials=300, max_steps=1)
    assert "many finished: 300 of 300 trials (300 done)" in desk.run("run", file).stdout
    runs = prefect(desk, "select name, state_type, run_count from task_run")
    assert {(state, count) for _, state, count in runs} == {("COMPLETED", 1)}
    carried = sum(
        1 + int(name.split(" and ")[1].split()[0]) if " and " in name else 1 for name, _, _ in runs
    )
    assert carried == 300
