"""The systemd user unit that keeps a station running: its text, and the commands to enable it."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

from regrow.apps.station.parts import NO_KEEPER, WORKER_SECONDS
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError

_FORWARDED = (
    "REGROW_HOME",
    "REGROW_STATION_HOST",
    "RAY_ADDRESS",
    "XDG_DATA_HOME",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
)
"""Variables of this terminal that say where things are; none of them is a secret."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and bytes of a path that are no UTF-8."""
_MARGIN_SECONDS = 30
"""Time for all parts but the worker, which end one after the other."""


def name(places: Places) -> str:
    return f"regrow-{hashlib.sha256(places.root.encode()).hexdigest()[:12]}.service"


def folder() -> Path:
    chosen = os.environ.get("XDG_CONFIG_HOME", "")
    return (
        (Path(chosen) if os.path.isabs(chosen) else Path("~/.config").expanduser())
        / "systemd"
        / "user"
    )


def text(places: Places, working: Path, *, host: str | None = None) -> str:
    """Return the unit file. `working`: base folder of its experiments' relative paths.

    Raises UserError for a folder that no unit can name.
    """
    for folder in (places.root, str(working)):
        if _CONTROL.search(folder):
            raise UserError(
                f"{folder!r} has a line break or another control character, or is no UTF-8, and a"
                " unit of systemd cannot name it; rename the folder"
            )
    command = [sys.executable, "-P", "-m", "regrow", "up", "--foreground", "--state", places.root]
    command += [] if host is None else ["--host", host]
    kept = {
        name: value
        for name in _FORWARDED
        if (value := os.environ.get(name)) and "@" not in value and not _CONTROL.search(value)
    }
    start = " ".join(_quoted(word).replace("$", "$$") for word in command)
    lines = "".join(
        f"Environment={_quoted(f'{name}={value}')}\n"
        for name, value in {NO_KEEPER: "1", **kept}.items()
    )
    return f"""[Unit]
Description=regrow's station of {places.root.replace("%", "%%")}
StartLimitIntervalSec=0

[Service]
ExecStart={start}
WorkingDirectory={str(working).replace("%", "%%")}
{lines}Restart=always
RestartSec=5
# SIGTERM to the supervisor alone, which ends its parts in order: drivers save checkpoints first.
KillMode=mixed
TimeoutStopSec={int(WORKER_SECONDS) + _MARGIN_SECONDS}

[Install]
WantedBy=default.target
"""


def write(places: Places, working: Path, *, host: str | None = None) -> list[str]:
    """Write the unit and return instructions for people. Nothing is started."""
    content, file = text(places, working, host=host), folder() / name(places)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(content)
    partial.replace(file)
    return [
        f"wrote {file}; nothing was started",
        "systemctl --user daemon-reload",
        f"systemctl --user enable --now {file.name}",
        "loginctl enable-linger   # it starts with the machine, not with your first login",
        (
            f"# its words: journalctl --user -u {file.name}; to end it for good: systemctl --user"
            f" disable --now {file.name}"
        ),
    ]


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
