"""`up`: starts a station for a state root, and optionally an S3 server."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from regrow.cli.options import HostOption, ServerFolderOption, StateOption, option
from regrow.infra.local import s3_server
from regrow.infra.state.places import Places
from regrow.show.live.terminal import tell
from regrow.tasks.errors import UserError

_FOREIGN = ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Variables that take precedence over the file with the server's credentials."""


def up(
    state: StateOption = None,
    s3: Annotated[
        bool, option("Start an S3 server on this machine as well, for the state", "--s3")
    ] = False,
    station: Annotated[
        bool, typer.Option(help="--no-station: start nothing but the S3 server")
    ] = True,
    folder: ServerFolderOption = None,
    port: Annotated[
        int | None,
        option("First port of the S3 server [default: any free ones]", min=1, max=55_531),
    ] = None,
    foreground: Annotated[
        bool, option("Stay in this terminal until told to end", "--foreground")
    ] = False,
    host: HostOption = None,
    systemd: Annotated[
        bool, option("Write a systemd unit for the station; start nothing", "--systemd")
    ] = False,
    compose: Annotated[
        bool,
        option(
            "Write a compose.yaml with servers for a team into this folder; start nothing",
            "--compose",
        ),
    ] = False,
    force: Annotated[
        bool, option("With --compose: write over the file that is there", "--force")
    ] = False,
) -> None:
    """Start a station on this machine: Prefect, MLflow, Ray and a worker that stay up, on loopback
    only.

    With a station, schedules run, `regrow run` starts in a moment, and Retry in Prefect's page
    resumes experiments. `regrow down` ends it.
    """
    if systemd or compose:
        for line in _written(state, host, compose=compose, force=force, s3=s3):
            _say(line)
        return
    place = s3_server.home(folder)
    root = _start_s3(place, port, named=folder is not None) if s3 else None
    if not station:
        return
    from regrow.apps.station import start

    places = Places.at(state or root)
    if foreground:
        start.stay(places, s3=place if s3 else None, host=host)
        return
    for line in start.start(places, s3=place if s3 else None, host=host):
        _say(f"# {line}" if s3 else line)


def _say(line: str) -> None:
    tell(line, flush=True)


def _written(
    state: str | None, host: str | None, *, compose: bool, force: bool, s3: bool
) -> list[str]:
    """Write files that start servers later; return the instructions."""
    if compose:
        from regrow.apps.station import compose as servers

        return servers.write(Path.cwd(), force=force)
    if s3:
        raise UserError(
            "--systemd: the unit starts no S3 server; leave --s3 out, and name the state by --state"
            " s3://BUCKET"
        )
    from regrow.apps.station import unit
    from regrow.infra.machine import addresses

    places = Places.at(state).writable()
    return unit.write(places, Path.cwd(), host=addresses.non_loopback(host))


def _start_s3(place: Path, port: int | None, *, named: bool) -> str:
    """Start the S3 server, print its use, set this process up for it; return its state root."""
    from regrow.infra.stores.s3 import is_s3

    server, new = s3_server.start(place, port=port)
    root = os.environ.get("REGROW_STATE", "")
    root = root if is_s3(root) else f"s3://{server.bucket}"
    _say(
        f"# S3 {'serves' if new else 'serves already'} at {server.endpoint}, on loopback only; its"
        f" data is in {server.folder}"
    )
    _say(f"# end it with: regrow down --s3{f' --dir {shlex.quote(str(place))}' if named else ''}")
    for name, value in {**server.environment(), "REGROW_STATE": root}.items():
        _say(f"export {name}={shlex.quote(value)}")
        os.environ[name] = value
    if foreign := [name for name in _FOREIGN if name in os.environ]:
        _say(f"unset {' '.join(foreign)}")
    for name in foreign:
        del os.environ[name]
    return root
