"""The task of SkyPilot that `regrow cluster export --sky` writes, against the schema of SkyPilot
0.14.1 (of the keys that are used).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from typer.testing import CliRunner

from regrow.cli.app import app
from tests.unit.test_clusters import AWS, SSH

SCHEMA = json.loads((Path(__file__).parents[1] / "data" / "skypilot-0.14.1.json").read_text())


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_HOME", str(tmp_path / "home"))


def exported(folder: Path, cluster: dict[str, Any], *words: str) -> tuple[int, str]:
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump(cluster))
    done = CliRunner().invoke(
        app, ["cluster", "export", str(file), "--sky", "-o", str(folder / "out"), *words]
    )
    return (
        done.exit_code,
        done.output if done.exception is None else f"{done.output}{done.exception}",
    )


def test_the_task_is_what_skypilot_takes_and_the_same_each_time(tmp_path: Path) -> None:
    cluster = {
        **AWS,
        "python": "/opt/venv/bin/python",
        "env": {"A": "plain", "KEY": "$SECRET"},
        "setup": ["nvidia-smi"],
    }
    assert exported(tmp_path, cluster)[0] == 0
    written = (tmp_path / "out" / "sky.yaml").read_bytes()
    assert exported(tmp_path, cluster)[0] == 0
    assert (tmp_path / "out" / "sky.yaml").read_bytes() == written
    task = yaml.safe_load(written)
    jsonschema.validate(task, SCHEMA)
    assert task["num_nodes"] == 30
    assert [
        (kind["infra"], kind["instance_type"], kind["use_spot"])
        for kind in task["resources"]["ordered"]
    ] == [
        ("aws/us-west-2", "g5.xlarge", True),
        ("aws/us-west-2", "g5.xlarge", False),
    ]
    assert task["envs"] == {"A": "plain", "EXPERIMENT": None, "STATE": None}
    assert task["secrets"] == {"KEY": None}
    assert b"--secret KEY" in written
    for script in (task["setup"], task["run"]):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_what_the_environment_is_made_of_is_beside_the_task(tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text("ray==2.60.0\n")
    cluster = {**AWS, "lock": str(tmp_path / "lock.txt"), "zones": ["us-west-2b", "us-west-2a"]}
    code, said = exported(tmp_path, cluster)
    assert code == 0, said
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert {"sky.yaml", "requirements.txt"} < names
    task = yaml.safe_load((tmp_path / "out" / "sky.yaml").read_text())
    jsonschema.validate(task, SCHEMA)
    assert {
        here.removeprefix("./") for here in task["file_mounts"].values() if here.startswith("./")
    } == names - {"sky.yaml"}
    assert [kind["infra"] for kind in task["resources"]["ordered"][:2]] == [
        "aws/us-west-2/us-west-2b",
        "aws/us-west-2/us-west-2a",
    ]


def test_machines_of_ones_own_are_no_task(tmp_path: Path) -> None:
    code, said = exported(tmp_path, SSH)
    assert code != 0
    assert "--sky: is for clusters on aws, gcp or azure, and lab is on ssh; leave it out" in said
