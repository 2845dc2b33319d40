"""What a host of the lab has of systemd: it starts one unit, starts it again and runs what follows
its end, as the unit says.

`python systemd.py systemctl enable --now FILE`, `python systemd.py systemd-run [OPTIONS] WORDS`,
`python systemd.py journalctl`. There is no manager: each unit has a process of its own.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.lab.hosts import Host

_JOURNAL = Path("/root/.journal")
_COMMANDS = ("systemctl", "systemd-run", "journalctl")


def install(host: Host) -> None:
    """Give a host the commands."""
    for name in _COMMANDS:
        file = host.home / "bin" / name
        line = shlex.join([sys.executable, "-m", "tests.lab.systemd", name])
        root = Path(__file__).resolve().parents[2]
        file.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} exec {line} "$@"\n')
        file.chmod(0o755)


def _unit(file: Path) -> None:
    """Run a unit until it has ended for good."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the manager ends last
    said = dict(
        line.split("=", 1)
        for line in file.read_text().splitlines()
        if "=" in line and line[0] != "#"
    )
    prevented = said["RestartPreventExitStatus"].split()
    while True:
        with _JOURNAL.open("ab") as journal:
            code = subprocess.run(
                shlex.split(said["ExecStart"]), stdout=journal, stderr=journal, check=False
            ).returncode
        status = str(code) if code >= 0 else signal.Signals(-code).name.removeprefix("SIG")
        after = said["ExecStopPost"].removeprefix("+").replace("$EXIT_STATUS", status)
        subprocess.run(shlex.split(after), check=True)
        if status == "0" or status in prevented:
            return
        time.sleep(float(said["RestartSec"]))


def main(name: str, words: list[str]) -> None:
    if name == "journalctl":
        sys.stdout.write(_JOURNAL.read_text() if _JOURNAL.exists() else "")
    elif name == "systemctl" and "regrow-expiry" in words[-1]:
        pass  # its timer: no test lasts that long
    elif name == "systemctl":
        assert words[:2] == ["enable", "--now"], words
        _apart([sys.executable, "-m", "tests.lab.systemd", "unit", words[2]])
    elif name == "unit":
        _unit(Path(words[0]))
    else:
        _apart([word for word in words if not word.startswith("--")])


def _apart(words: list[str]) -> None:
    subprocess.Popen(words, start_new_session=True, env=dict(os.environ))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
