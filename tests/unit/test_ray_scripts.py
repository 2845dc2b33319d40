"""The two scripts that a raylet of ours starts in place of Ray's own: who sets a worker up, and who
stands in for an agent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import regrow.infra.ray

SCRIPTS = Path(regrow.infra.ray.__path__[0])
SAYS = "import os, sys; print({who!r}, os.environ.get('REGROW_TRIAL'), *sys.argv[1:])"
PLAIN = {
    "command_prefix": [],
    "env_vars": {"REGROW_TRIAL": "1"},
    "py_executable": sys.executable,
    "java_jars": [],
}


def started(folder: Path, context: dict[str, Any]) -> str:
    for name in ("setup_worker", "default_worker"):
        (folder / f"{name}.py").write_text(SAYS.format(who=name))
    words = [
        "--port=7",
        "--language=PYTHON",
        f"--serialized-runtime-env-context={json.dumps(context)}",
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


def test_who_stands_in_for_the_agent_says_that_it_has_no_ports_and_ends_with_the_raylet(
    tmp_path: Path,
) -> None:
    agent = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SCRIPTS / "no_agent.py"), str(tmp_path)],
        stdin=subprocess.PIPE,
        env={**os.environ, "RAY_NODE_ID": "abc"},
    )
    with pytest.raises(subprocess.TimeoutExpired):
        agent.wait(1.0)
    agent.communicate(timeout=30)
    assert agent.returncode == 0
    names = {
        f"{name}_port_abc" for name in ("metrics_agent", "metrics_export", "dashboard_agent_listen")
    }
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys(
        names, "-1"
    )
