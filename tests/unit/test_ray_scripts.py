"""What a raylet of ours starts in place of Ray's own programs: the script that sets a worker up, and
a process in place of a dashboard's agent. And when it starts Ray's own.
"""

from __future__ import annotations

import importlib
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

import regrow.infra.ray
from regrow.infra.ray import private

RAY = Path(ray.__path__[0])
SCRIPTS = Path(regrow.infra.ray.__path__[0])
SAYS = "import os, sys; print({who!r}, os.environ.get('REGROW_TRIAL'), *sys.argv[1:])"
PLAIN = {
    "command_prefix": [],
    "env_vars": {"REGROW_TRIAL": "1"},
    "py_executable": sys.executable,
    "java_jars": [],
}


def started(
    folder: Path, context: dict[str, Any], said_as: str = "--serialized-runtime-env-context="
) -> str:
    for name in ("setup_worker", "default_worker"):
        (folder / f"{name}.py").write_text(SAYS.format(who=name))
    words = [
        "--port=7",
        "--language=PYTHON",
        f"{said_as}{json.dumps(context)}",
    ]
    command = [
        sys.executable,
        str(SCRIPTS / "setup_worker.py"),
        str(folder / "default_worker.py"),
        *words,
    ]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_a_worker_begins_with_the_variables_of_its_environment_and_its_own_words(
    tmp_path: Path,
) -> None:
    assert started(tmp_path, PLAIN) == "default_worker 1 --port=7\n"


@pytest.mark.parametrize(
    "more",
    [
        {"env_vars": {"PATH": "/a:${PATH}"}},
        {"py_executable": "uv run"},
        {"command_prefix": ["cd x &&"]},
    ],
    ids=str,
)
def test_what_else_an_environment_asks_for_is_left_to_rays_own_script(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    context = PLAIN | more
    said = started(tmp_path, context)
    assert said.startswith(
        f"setup_worker None {tmp_path}/default_worker.py --port=7 --language=PYTHON --serialized"
    )
    assert said.endswith(f"{json.dumps(context)}\n")


def test_words_of_another_form_are_left_to_rays_own_script(tmp_path: Path) -> None:
    said = started(tmp_path, PLAIN, "--runtime-env=")
    assert said.startswith("setup_worker None")


def raylet(folder: Path) -> list[str]:
    """The words of a raylet's command that matter here, as Ray 2.60 writes them."""
    worker = [sys.executable, str(RAY / "_private/workers/setup_worker.py"), "worker.py", "--a=b"]
    agent = [sys.executable, str(RAY / "dashboard/agent.py"), "--minimal", "--head"]
    return [
        "/there/raylet",
        f"--node_id={'ab' * 28}",
        f"--python_worker_command={subprocess.list2cmdline(worker)}",
        f"--session_dir={folder}",
        f"--dashboard_agent_command={subprocess.list2cmdline(agent)}",
        "--head",
    ]


def test_a_raylet_starts_our_script_and_no_agent_whose_ports_it_finds(tmp_path: Path) -> None:
    before = raylet(tmp_path)
    after = private.lean_command(before)
    assert [at for at in range(6) if after[at] != before[at]] == [2, 4]
    worker = [sys.executable, str(SCRIPTS / "setup_worker.py"), "worker.py", "--a=b"]
    assert after[2] == f"--python_worker_command={subprocess.list2cmdline(worker)}"
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        f"{name}_port_{'ab' * 28}": "-1"
        for name in ("metrics_agent", "metrics_export", "dashboard_agent_listen")
    }
    agent = subprocess.Popen(
        shlex.split(after[4].partition("=")[2]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert agent.communicate(timeout=30)[0] == b"", "it ends with its raylet"
    assert agent.returncode == 0


@pytest.mark.parametrize(
    ("theirs", "other"),
    [
        ("--session_dir=", "--session="),
        ("--node_id=", "--node="),
        ("--dashboard_agent_command=", "--agent_command="),
        ("--python_worker_command=", "--worker_command="),
        ("setup_worker.py", "setup.py"),
        (" --minimal", ""),
    ],
)
def test_a_raylets_command_that_is_not_as_expected_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, theirs: str, other: str
) -> None:
    caplog.set_level("DEBUG", private.__name__)
    changed = [word.replace(theirs, other) for word in raylet(tmp_path)]
    assert changed != raylet(tmp_path)
    assert private.lean_command(changed) == changed
    assert len(caplog.messages) == 1
    assert [*tmp_path.iterdir()] == []


def test_a_port_that_is_not_known_leaves_the_agent_to_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the raylet would wait for it until it has timed out."""
    compiled = importlib.import_module("ray._raylet")
    monkeypatch.setattr(compiled, "NEW_PORT_NAME", "new_port", raising=False)
    assert private.lean_command(raylet(tmp_path)) == raylet(tmp_path)
