"""The command line as a user runs it: a process of its own, an empty home, no environment of the
developer's.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from regrow.cli.app import app
from regrow.infra.prefect.home import read_record
from regrow.infra.prefect.server import begin
from regrow.infra.state import passwords
from regrow.infra.state.passwords import USER, Passwords
from regrow.infra.state.places import Places

TRAIN = """
import json, os, time
from pathlib import Path


def train(trial):
    total = 0.0
    if trial.restored:
        total = json.loads((trial.restored / "model.json").read_text())["total"]

    def save(folder):
        (folder / "model.json").write_text(json.dumps({"total": total}))

    for step in trial.steps():
        time.sleep(SECONDS)
        total += trial.config["x"]
        print(f"trial {trial.number} attempt {trial.attempt} step {step}")
        trial.report({"score": total, "step_seen": step}, checkpoint=save)
"""
SPEC = {
    "trainable": "work.py:train",
    "metric": "score",
    "mode": "max",
    "space": {"x": {"uniform": [0.1, 1.0]}, "kind": {"choice": ["a", "b"]}},
    "search": "random",
    "trials": 4,
    "max_steps": 3,
    "concurrency": 2,
}


@dataclass
class Desk:
    """A user's folder with a trainable and its specification, and the command line in it."""

    folder: Path
    environment: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    LOOK_SECONDS: ClassVar[float] = 0.01

    def write(
        self, name: str, *, train: str | None = None, seconds: float = 0.1, **changes: Any
    ) -> Path:
        """Writes work.py and NAME.yaml; JSON is YAML."""
        (self.folder / "work.py").write_text((train or TRAIN).replace("SECONDS", str(seconds)))
        spec = {"name": name, **SPEC, **changes}
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps({k: v for k, v in spec.items() if v is not None}))
        return file

    def run(
        self, *arguments: object, expect: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs `regrow ...` to its end."""
        done = subprocess.run(
            self._command(arguments),
            cwd=self.folder,
            env={**self.environment, **environment},
            text=True,
            capture_output=True,
            timeout=240,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        """Starts `regrow ...` in a process group of its own."""
        return self._started(self._command(arguments), environment)

    def start_script(self, file: str, *arguments: str) -> subprocess.Popen[str]:
        """Starts a Python script of the folder, as its user does."""
        return self._started([sys.executable, file, *arguments], {})

    def _started(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={**self.environment, **environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        self.started.append(process)
        return process

    @property
    def places(self) -> Places:
        """Where its state is."""
        return Places.at(str(self.folder / ".regrow"))

    @property
    def passwords(self) -> Passwords:
        """Those of the servers of the state root."""
        return passwords.make(self.places.services)

    def prefect(self, method: str, path: str, **given: Any) -> Any:
        """What its Prefect server answers, the shared one or that of the state root, to who has the
        password.
        """
        if shared := self.environment.get("PREFECT_API_URL"):
            user, _, password = self.environment["PREFECT_API_AUTH_STRING"].partition(":")
            url = f"{shared}/{path}"
        else:
            user, password = USER, self.passwords.prefect
            url = f"{read_record(self.places.prefect_home)['api_url']}/{path}"
        answer = httpx.request(
            method, url, auth=(user, password), timeout=30, **given
        ).raise_for_status()
        return answer.json() if answer.content else None

    def task_runs(self, name: str) -> list[dict[str, Any]]:
        """Those of an experiment, as Prefect has them."""
        (flow_run,) = {e["flow_run"] for e in self.events(name) if e.get("flow_run")}
        of_it = {"flow_runs": {"id": {"any_": [flow_run]}}}
        return list(self.prefect("POST", "task_runs/filter", json=of_it))

    def show(self, name: str) -> dict[str, Any]:
        """What `regrow show NAME --json` prints."""
        view: dict[str, Any] = json.loads(self.look("show", name, "--json"))
        return view

    def points(self, name: str) -> list[dict[str, Any]]:
        """What `regrow trials NAME --history --json` prints."""
        lines = self.look("trials", name, "--history", "--json").splitlines()
        return [json.loads(line) for line in lines]

    def look(self, *arguments: object) -> str:
        """What a command that only reads prints, run in this process: another one would take a
        second to start.
        """
        root = self.environment.get("REGROW_STATE", str(self.folder / ".regrow"))
        with redirect_stdout(io.StringIO()) as printed:
            code = app([*map(str, arguments), "--state", root], standalone_mode=False)
        assert not code, printed.getvalue()
        return printed.getvalue()

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log as it is on disk."""
        found: list[dict[str, Any]] = []
        for segment in sorted((self.folder / ".regrow" / name / "log").glob("*.jsonl")):
            found += [e for e in map(json.loads, segment.read_text().splitlines()) if "event" in e]
        return found

    def await_events(
        self, name: str, kind: str, count: int, process: subprocess.Popen[str]
    ) -> None:
        """Returns once the log holds `count` events of a kind, or the process has ended.

        Read again only when it has changed: else a test would take a third of a core from what it
        waits for.
        """
        seen: object = None
        while process.poll() is None:
            with suppress(FileNotFoundError, json.JSONDecodeError):
                if (there := self._extent(name)) != seen:
                    if sum(e["event"] == kind for e in self.events(name)) >= count:
                        return
                    seen = there
            time.sleep(self.LOOK_SECONDS)

    def _extent(self, name: str) -> object:
        """What is another once the log is."""
        segments = (self.folder / ".regrow" / name / "log").glob("*.jsonl")
        return sorted((segment.name, segment.stat().st_size) for segment in segments)

    @staticmethod
    def _command(arguments: tuple[object, ...]) -> list[str]:
        return [sys.executable, "-m", "regrow", *map(str, arguments)]


def running(folder: Path, title: str = "", *marks: str) -> dict[int, list[str]]:
    """Command lines of the processes that were started from a desk's folder, by process: those
    whose command line begins so, and whose environment carries these marks as well.
    """
    wanted = {mark.encode() for mark in (f"REGROW_TEST_MARK={folder}", *marks)}
    found: dict[int, list[str]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (entry / "cmdline").read_bytes().rstrip(b"\0 ").decode(errors="replace")
            if not line.startswith(title) or not line or entry.name == str(os.getpid()):
                continue
            if wanted <= {*(entry / "environ").read_bytes().split(b"\0")}:
                found[int(entry.name)] = line.split("\0")
    return found


def await_no_process(folder: Path, seconds: float = 60.0) -> list[str]:
    """Waits until nothing that was started from this folder runs any more; returns what still
    does.
    """
    deadline = time.monotonic() + seconds
    while (left := running(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [" ".join(words) for words in left.values()]


def kill_all(folder: Path) -> None:
    """SIGKILL for everything that was started from this folder."""
    for process in running(folder):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with desk_in(tmp_path) as found:
        yield found


@pytest.fixture(scope="session")
def prefect_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a Prefect server for all tests that do not look at Prefect, of all processes
    of pytest's: one of its own costs a session of `regrow` 5 s of CPU, a quarter of what it needs,
    and an idle one 1.6 % of a core.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder /= "shared"
    folder.mkdir(exist_ok=True)
    # else it would end with the S3 server of the process that started it
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("REGROW_S3_TEST_")]:
            patch.delenv(name)
        handle = begin(folder / "prefect", adopt=False)
    try:
        yield handle.wait().environment()
    finally:
        handle.close()


@pytest.fixture
def shared_prefect(desk: Desk, prefect_of_session: dict[str, str]) -> None:
    """Has what is started at the desk use that server."""
    desk.environment |= prefect_of_session


@contextmanager
def desk_in(folder: Path) -> Iterator[Desk]:
    """A desk in an empty folder; what was started at it is killed at the end of the block."""
    home = folder / "home"
    home.mkdir()
    work = folder / "work"
    work.mkdir()
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "REGROW_TEST_MARK": str(work),
        "COLUMNS": "160",
    }
    desk = Desk(folder=work, environment=environment)
    try:
        yield desk
    finally:
        # of a test that failed: forgotten ones would make the next test fail, too
        for process in desk.started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        kill_all(work)
