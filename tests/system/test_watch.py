"""Two people's terminals, by tmux: one runs an experiment, the other watches it while the first is
killed and resumed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.conftest import Desk, await_no_process, running

pytestmark = [
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
    pytest.mark.usefixtures("shared_prefect"),
]


@dataclass(frozen=True, slots=True)
class Terminals:
    """The windows of a tmux server of this test's own."""

    socket: Path
    environment: dict[str, str]

    def tmux(self, *arguments: str) -> str:
        """What a tmux command prints."""
        command = ["tmux", "-S", str(self.socket), "-f", "/dev/null", *arguments]
        return subprocess.run(
            command, env=self.environment, text=True, capture_output=True, check=True, timeout=60
        ).stdout

    def open(self, name: str, width: int, height: int) -> None:
        """A window of that size with a shell in it."""
        size = ["-x", str(width), "-y", str(height)]
        self.tmux(
            "new-session", "-d", "-s", name, *size, "-e", "PS1=READY ", "bash --norc --noprofile"
        )
        self.tmux("set-option", "-t", name, "status", "off")

    def type(self, name: str, *words: str) -> None:
        """Types a command and presses Enter."""
        self.tmux("send-keys", "-t", name, shlex.join(words), "Enter")

    def seen(self, name: str) -> str:
        """What a person sees in a window."""
        return self.tmux("capture-pane", "-p", "-t", name).rstrip()

    def await_seen(self, name: str, pattern: str, seconds: float = 180.0) -> str:
        """Waits until a person sees something, and returns the whole window."""
        deadline = time.monotonic() + seconds
        while not re.search(pattern, found := self.seen(name), re.MULTILINE):
            assert time.monotonic() < deadline, (
                f"{pattern!r} is not seen in window {name!r}:\n{found}"
            )
            time.sleep(0.1)
        return found


@pytest.fixture
def terminals(desk: Desk, tmp_path: Path) -> Iterator[Terminals]:
    environment = {k: v for k, v in desk.environment.items() if k != "COLUMNS"} | {
        "TERM": "xterm-256color"
    }
    opened = Terminals(tmp_path / "tmux", environment)
    try:
        yield opened
    finally:
        subprocess.run(
            ["tmux", "-S", str(opened.socket), "kill-server"], capture_output=True, check=False
        )


def driver(folder: Path) -> int:
    """The process that runs the experiment from this folder."""
    return next(
        process
        for process, words in running(folder).items()
        if words[1:3] == ["-m", "regrow"] and words[3] in ("run", "resume")
    )


def test_a_watcher_sees_the_driver_killed_and_somebody_else_go_on(
    desk: Desk, terminals: Terminals
) -> None:
    desk.write(
        "seen",
        seconds=0.5,
        trials=12,
        max_steps=6,
        search=None,
        price_per_hour=3600.0,
        schedule={"asha": {"grace_period": 2}},
    )
    regrow = (sys.executable, "-m", "regrow")
    for name, width, height in (("one", 100, 30), ("two", 110, 40)):
        terminals.open(name, width, height)
        terminals.type(name, "cd", str(desk.folder))

    terminals.type("two", *regrow, "watch", "seen")
    terminals.await_seen("two", r"there is no experiment 'seen' in ")
    terminals.type("one", *regrow, "run", "seen.yaml")
    chosen = r"^search: mobster, schedule: asha \(auto: 12 trials, 2 parameters\)$"
    terminals.await_seen("one", chosen)
    desk_sees = terminals.await_seen("one", r"^best +score ↑")
    assert re.search(r"^seen +[━─]+ +\d+ % +\d+/12 trials", desk_sees, re.MULTILINE)
    assert re.search(r"^running +step +score", desk_sees, re.MULTILINE)

    found = terminals.await_seen("two", r"^ +\d+ +[1-6]/6 +\d")
    assert re.search(r"cost \d+\.\d\d", found)
    assert re.search(r"\d slot-hours", found)
    assert "interrupted" not in found

    log = desk.folder / ".regrow" / "seen"
    pid = driver(desk.folder)
    os.kill(pid, signal.SIGKILL)
    found = terminals.await_seen(
        "two",
        r"^interrupted: no driver runs it \(last event \d+s ago\); waiting for regrow resume seen$",
    )
    assert re.search(r"^cut off +step", found, re.MULTILINE)
    assert " left" not in found
    cursor = terminals.tmux("display-message", "-p", "-t", "one", "#{cursor_flag}")
    assert cursor.strip() == "1", "a killed driver leaves a terminal with a cursor"
    before = sorted(path.name for path in log.rglob("*") if path.is_file())

    terminals.tmux("resize-window", "-t", "two", "-x", "60", "-y", "14")
    found = terminals.await_seen("two", r"^interrupted: no driver runs it.*…$")
    assert max(map(len, found.splitlines())) <= 60
    assert found.count("interrupted") == 1, found
    assert len(re.findall(r"^seen  ", found, re.MULTILINE)) == 1, found
    terminals.tmux("resize-window", "-t", "two", "-x", "110", "-y", "40")
    terminals.await_seen("two", r"waiting for regrow resume seen$")
    assert sorted(path.name for path in log.rglob("*") if path.is_file()) == before, (
        "who watches writes nothing"
    )

    terminals.tmux("send-keys", "-t", "one", "clear", "Enter")
    terminals.type("one", *regrow, "resume", "seen")
    # Not always both: one that had just reached a rung comes back once ASHA promotes it.
    found = terminals.await_seen(
        "two", r"^ +driver +\S+ +gone for .*; [12] of the [12] trials that ran are back"
    )
    assert "interrupted" not in found
    terminals.await_seen("two", r"^rung +reached")  # the driver may have ended before the first

    for name in ("one", "two"):
        found = terminals.await_seen(name, r"more trials: regrow resume seen --trials 22")
        assert re.search(r"^seen finished: 12 of 12 trials", found, re.MULTILINE)
        assert re.search(r"^best: trial \d+, score \S+ at step \d", found, re.MULTILINE)
        assert re.search(
            r"  # its checkpoint: \S+/\.regrow/seen/manifests/\S+\.json  # its files: ",
            found.replace("\n", ""),
        )
        assert "look at it: regrow show seen, regrow report seen, regrow ui seen" in found
        assert "━" not in found, "the picture is gone when it is over"
    terminals.tmux("send-keys", "-t", "two", "echo code=$?", "Enter")
    terminals.await_seen("two", r"^code=0$")

    # The same for machines: the log as it is, and nothing else.
    watched = desk.run("watch", "seen", "--json")
    lines = [json.loads(line) for line in watched.stdout.splitlines()]
    assert lines == desk.events("seen")
    assert desk.run("watch", "seen", "--json", "--quiet").stderr == ""
    assert desk.run("watch", "seen", NO_COLOR="1", TERM="dumb").stdout.startswith(
        "seen finished: 12 of 12 trials"
    )
    shown = desk.look("show", "seen")
    assert re.search(chosen, shown, re.MULTILINE), "the next driver has found it in the log"
    assert re.search(r"^ +driver +\S+ +gone for", shown, re.MULTILINE)
    assert desk.show("seen")["cost"] == pytest.approx(
        desk.show("seen")["slot_hours"] * 3600.0, rel=1e-3
    )
    terminals.tmux("kill-server")
    assert not await_no_process(desk.folder)
