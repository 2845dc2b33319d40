"""`up`, `down` and `status`: the station of a state root, and optionally an S3 server."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regrow.cli import options
from regrow.cli.console import plain_console
from regrow.cli.options import option
from regrow.cli.tables import plain_table
from regrow.infra.local import s3_server
from regrow.infra.state import passwords
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places
from regrow.show.live.terminal import echo
from regrow.show.live.text import age
from regrow.tasks.errors import UserError

if TYPE_CHECKING:
    from regrow.apps.station.state import Serving

_FOREIGN = ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Variables that take precedence over the file with the server's credentials."""


def up(
    state: options.State = None,
    s3: Annotated[
        bool, option("Start an S3 server on this machine as well, for the state", "--s3")
    ] = False,
    station: Annotated[
        bool, typer.Option(help="--no-station: start nothing but the S3 server")
    ] = True,
    folder: options.ServerFolder = None,
    port: Annotated[
        int | None,
        option("First port of the S3 server [default: any free ones]", min=1, max=55_531),
    ] = None,
    foreground: Annotated[
        bool, option("Stay in this terminal until interrupted", "--foreground")
    ] = False,
    host: options.Host = None,
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
        bool, option("With --compose: overwrite the existing file", "--force")
    ] = False,
) -> None:
    """Start a station on this machine: Prefect, MLflow, Ray and a worker that stay up, on loopback
    only.

    With a station, schedules run, `regrow run` starts in a moment, and Retry in Prefect's page
    resumes experiments. `regrow down` ends it.
    """
    _refuse_without_effect(
        {
            "--dir goes with --s3": folder is not None and not s3,
            "--port goes with --s3": port is not None and not s3,
            "--no-station goes with --s3": not station and not s3,
            "--force goes with --compose": force and not compose,
            "--systemd and --compose exclude each other": systemd and compose,
        }
    )
    if systemd or compose:
        try:
            lines = _written(state, host, compose=compose, force=force, s3=s3)
        except OSError as error:
            if error.filename is None:  # the current folder was deleted
                raise
            raise UserError(f"{error.filename} cannot be written: {error.strerror}") from None
        for line in lines:
            _say(line)
        return
    place = s3_server.home(folder)
    root = _start_s3(place, port, named=folder is not None) if s3 else None
    if not station:
        return
    from regrow.apps.station import start

    places = Places.at(state or root)
    if foreground:
        start.run_station(places, s3=place if s3 else None, host=host)
        return
    for line in start.start(places, s3=place if s3 else None, host=host):
        _say(f"# {line}" if s3 else line)


def _refuse_without_effect(wrong: dict[str, bool]) -> None:
    """Raise UserError for options that would be without effect."""
    for why, is_so in wrong.items():
        if is_so:
            raise UserError(why)


def down(
    state: options.State = None,
    s3: Annotated[
        bool, option("End the S3 server of `regrow up --s3` as well; its data stays", "--s3")
    ] = False,
    folder: options.ServerFolder = None,
) -> None:
    """End the station of the state root: running experiments save a checkpoint first. State and
    schedules stay.
    """
    from regrow.apps.station import start

    _refuse_without_effect({"--dir goes with --s3": folder is not None and not s3})
    places, place = Places.at(state), s3_server.home(folder)
    server = s3_server.running(place) if s3 else None
    if start.end(places):  # ends the S3 server, too, if it was started with it
        echo(f"the station of {places.root} has ended")
    elif not s3:
        _check_readable(places)
        echo(f"no station runs on {places.root}")
    if server is not None:
        s3_server.stop(place)
        echo(f"the S3 server at {server.endpoint} has ended; its data stays in {place}")
    elif s3:
        echo(f"no S3 server of {place} is running")


def status(state: options.State = None, as_json: options.Json = False) -> None:
    """Show the parts of the station, since when they run, their memory, and the addresses of its
    pages.
    """
    from regrow.apps.station.state import serving, station_status

    places = Places.at(state)
    station = record.find(places)
    if station is None:
        _check_readable(places)
    found = None if station is None else station_status(station, places)
    if as_json:
        print(json.dumps(found))
    elif station is None or found is None:
        echo(f"no station runs on {places.root}; `regrow up` starts one")
    else:
        from regrow.apps.station.triggers import aside

        now = time.time()
        ends = ", is ending" if station.ending else ""
        echo(f"station of {places.root}, up since {age(now - station.since)}{ends}")
        columns = ("part", "state", "process", "up since", "restarts", "memory")
        table = plain_table(*columns, right=("process", "restarts", "memory"), wraps=True)
        table.header_style = "dim"
        for part in found["parts"]:
            table.add_row(
                part["name"],
                part["state"],
                str(part["pid"] or "-"),
                age(now - part["since"]) if part["pid"] else "-",
                str(part["restarts"]),
                f"{part['memory'] / 1e6:,.0f} MB" if part["memory"] else "-",
            )
        plain_console().print(table)
        for line in station.pages(passwords.make(places.services).shown):
            echo(line)
        for served in serving(station, places):
            for line in server_lines(served, now):
                echo(line)
        for mark, lines in (
            ("next:    ", found["scheduled"]),
            ("events:  ", aside.lines(places)),
            ("stuck:   ", found["unhealed"]),
            ("runs:    ", found["running"]),
        ):
            for line in lines:
                echo(f"{mark}{line}")


def _check_readable(places: Places) -> None:
    """Raise UserError if the state root is a folder that cannot be read: whether a station of this
    user runs there is unknown then.
    """
    if places.folder is not None:
        places.experiments()


def server_lines(served: Serving, now: float) -> Iterator[str]:
    """Describe a server: its address, its checkpoint, the last refusal, the current problem."""
    status = served.status
    yield (
        f"serves:  {served.name}:"
        f" {status.url or served.state}{'' if status.main is None else f' {status.main.text}'}"
    )
    if status.url and status.main is None:
        yield "         waits for a checkpoint to serve"
    if status.canary is not None:
        yield f"         canary: {status.canary.text}"
    if status.refused:
        yield f"         refused {age(now - status.refused_at)} ago: {status.refused}"
    if status.trouble:
        yield f"         {status.trouble}; it is tried again"


def _say(line: str) -> None:
    echo(line, flush=True)


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
    return unit.write(places, Path.cwd(), host=addresses.beside_loopback(host))


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
