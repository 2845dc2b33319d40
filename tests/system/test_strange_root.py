"""A state root that came from a stranger, full of traps: commands that only look run nothing of it
and follow nothing.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.data import STATES, unpack
from tests.system.conftest import Desk

LOOKS = (
    ("ls",), ("show", "finished"), ("show", "pbt", "--json"), ("trials", "finished", "trials.csv", "--csv"), ("best", "finished", "--save", "saved"),
    ("report", "asha"), ("watch", "finished"), ("status",), ("schedules",), ("logs", "finished", "0"), ("export", "finished", "--optuna", "sqlite:///study.db"),
    ("compare", "finished", "paused"),
)  # fmt: skip
ALL = """
import os, sys, traceback
from regrow.cli.app import app
for words in LOOKS:
    try:
        app(list(words), standalone_mode=False)
    except BaseException as error:
        if getattr(error, "code", 1) != 0:
            traceback.print_exc()
            sys.exit(f"{words} failed")
    if os.path.exists(MARK):
        sys.exit(f"{words} ran {open(MARK).read()!r} of the state root")
"""


class Sprung:
    """A pickle that runs a command."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self._command,)


@pytest.fixture
def strange(desk: Desk) -> Desk:
    """A desk whose state root has a trap wherever a program might look."""
    unpack(max(STATES), desk.folder)
    (desk.folder / "state").rename(desk.folder / ".regrow")
    root, mark = desk.folder / ".regrow", desk.folder / "mark"
    services = root / ".services"
    folders = [
        root,
        services,
        *(
            services / name
            for name in ("prefect", "station", "station/drivers", "mlflow-artifacts")
        ),
        root / "finished",
    ]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)

        def run(what: str, folder: Path = folder) -> str:
            return f"echo {folder.name}/{what} >> {mark}"

        for module in (
            "sitecustomize",
            "usercustomize",
            "conftest",
            "mlflow",
            "prefect",
            "yaml",
            "ray",
            "json",
            "_regrow",
        ):
            (folder / f"{module}.py").write_text(
                f"import os\nos.system({run(module)!r})\nraise ImportError\n"
            )
        (folder / "trap.pth").write_text(f"import os; os.system({run('pth')!r})\n")
        handler = {"()": "os.system", "command": run("logging.yml")}
        logging = {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"trap": handler},
            "root": {"handlers": ["trap"]},
        }
        (folder / "logging.yml").write_text(yaml.safe_dump(logging))
        (folder / "profiles.toml").write_text(
            f'active = "trap"\n[profiles.trap]\nPREFECT_LOGGING_SETTINGS_PATH = "{folder}/logging.yml"\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'
        )
        if folder != root:  # of which a test below tells
            (folder / ".env").write_text(f"PREFECT_LOGGING_SETTINGS_PATH={folder}/logging.yml\n")
            (folder / "prefect.toml").write_text(
                f'[logging]\nconfig_path = "{folder}/logging.yml"\n'
            )
        for name in (
            "storage",
            "memo_store.toml",
            "results.pkl",
            "spec.pkl",
            f"{os.getpid()}.order",
        ):
            (folder / name).write_bytes(pickle.dumps(Sprung(run(name))))
        (folder / "mlflow-auth.ini").write_text("[mlflow]\nauthorization_function = mlflow:trap\n")
    (services / "prefect" / "server.json").write_text(
        json.dumps({"pid": os.getpid(), "port": 9, "api_url": "http://127.0.0.1:9/api"})
    )
    (services / "station" / "station.json").write_text(json.dumps({"pid": os.getpid()}))
    (services / "unfinished").mkdir()
    for link in (
        services / "prefect" / "server.json.partial",
        services / "prefect" / "host",
        services / "unfinished" / "finished",
    ):
        link.symlink_to(desk.folder / "mine")
    (desk.folder / "mine").write_text("mine")
    return desk


def test_commands_that_look_run_nothing_of_it(strange: Desk) -> None:
    mark, root = strange.folder / "mark", strange.folder / ".regrow"
    control = {**strange.environment, "PREFECT_HOME": str(root / ".services" / "prefect")}
    code = (
        "import prefect; from prefect.logging.configuration import setup_logging; setup_logging()"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=control, capture_output=True, check=False
    )
    assert "prefect/logging.yml" in mark.read_text(), "the trap is one"
    mark.unlink()
    state = {"REGROW_STATE": str(root)}
    # Typed in the root as well. `python -m`, by which the tests start it, has what lies there for
    # modules, as the program does not.
    ui = Desk(folder=root, environment=strange.environment, started=strange.started).start(
        "ui", "--no-browser", **state, PYTHONSAFEPATH="1"
    )
    assert ui.stdout is not None
    said = [ui.stdout.readline() for _ in range(4)]
    assert "Ctrl-C ends all" in said[-1], said
    script = f"LOOKS, MARK = {LOOKS!r}, {str(mark)!r}\n{ALL}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=root,
        env={**strange.environment, **state},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ui.terminate()
    assert ui.wait(60) == 0
    assert not mark.exists(), mark.read_text()
    assert (strange.folder / "mine").read_text() == "mine"
    assert (root / ".services").stat().st_mode & 0o777 == 0o700
    (root / "prefect.toml").write_text(f'[logging]\nconfig_path = "{root}/logging.yml"\n')
    words = [sys.executable, "-P", "-m", "regrow", "schedules"]
    refused = subprocess.run(
        words,
        cwd=root,
        env={**strange.environment, **state},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert (
        f"{root / 'prefect.toml'} is in the state root {root}, and Prefect would take its settings from there"
        in refused.stderr
    )
    assert not mark.exists(), mark.read_text()
