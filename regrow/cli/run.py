"""`run` and `resume`: run an experiment from its YAML file, or continue one that has a log."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

from regrow.cli import exit_codes, options
from regrow.cli.options import include_in_uploads, option, take_gpus, with_limits
from regrow.infra.log.reading import replay
from regrow.infra.machine.streams import redirect_to_null
from regrow.infra.state import notes
from regrow.infra.state.places import Places
from regrow.search.spec import Spec
from regrow.show.live.terminal import echo
from regrow.tasks.errors import UserError
from regrow.tasks.process.interrupted import check


def run(
    file: options.File,
    name: options.OtherName = None,
    trials: options.OtherTrials = None,
    changes: options.Set = None,
    budget: options.Budget = None,
    dollars: options.Dollars = None,
    deadline: options.Deadline = None,
    retry_failed: options.RetryFailed = False,
    state: options.State = None,
    quiet: options.Quiet = False,
    as_json: options.Events = False,
    prefect_port: options.Port = None,
    gpus: options.Gpus = None,
    on: Annotated[
        Path | None,
        option(
            "A cluster's YAML file: start agents there, and follow the experiment",
            metavar="CLUSTER",
            readable=False,
        ),
    ] = None,
    include: options.Include = None,
    yes: Annotated[
        bool, option("With --on: do not ask before it costs money", "--yes", "-y")
    ] = False,
) -> None:
    """Run the experiment that FILE describes, or resume it if it exists already."""
    include_in_uploads(include)
    changes = with_limits(changes, budget, dollars, deadline)
    if on is not None and gpus is not None:
        raise UserError("--gpus is for this machine; a cluster's file lists its machines")
    take_gpus(gpus)
    given: dict[str, Any] = {
        "trials": trials,
        "quiet": quiet,
        "as_json": as_json,
        "retry_failed": retry_failed,
    }
    if on is not None:
        from regrow.cli.cluster import run_on

        if prefect_port is not None:
            raise UserError(
                "--prefect-port is for this machine; `regrow ui` opens the page of a run --on a"
                " cluster"
            )
        given |= {"name": name, "changes": changes, "state": state}
        run_on(file, on, yes=yes, **given)
    if yes:
        raise UserError("--yes goes with --on CLUSTER")
    from regrow.cli.spec_file import located_in, named, read

    spec = read(file, trials, changes=changes)
    with located_in(file):
        spec = named(spec, name)
        places = Places.at(state or spec.state)
        run_session(places, spec.name, spec=spec, prefect_port=prefect_port, **given)


def resume(
    name: options.Name,
    trials: Annotated[int | None, option("Raise the total number of trials to this", min=1)] = None,
    changes: options.Set = None,
    budget: options.Budget = None,
    dollars: options.Dollars = None,
    deadline: options.Deadline = None,
    code: Annotated[
        Path | None,
        option(
            "Folder of the code [default: the recorded one, else the current folder, else the"
            " snapshot in the state]",
            "--code",
            metavar="FOLDER",
        ),
    ] = None,
    retry_failed: Annotated[
        bool, option("Try failed trials again, from their last checkpoints", "--retry-failed")
    ] = False,
    state: options.State = None,
    quiet: options.Quiet = False,
    as_json: options.Events = False,
    prefect_port: options.Port = None,
    gpus: options.Gpus = None,
) -> None:
    """Resume an experiment that was interrupted, stopped or lost its driver."""
    take_gpus(gpus)
    places, spec = Places.at(state), None
    changes = with_limits(changes, budget, dollars, deadline)
    if changes or code is not None:
        from regrow.infra.state.spec_file import changed_spec
        from regrow.infra.state.yaml_file import set_values

        given = set_values(changes)
        if code is not None:
            if not code.is_dir():
                raise UserError(f"--code {code}: there is no such folder")
            given["working_dir"] = str(code.resolve())
        spec = changed_spec(places, name, given)
    run_session(
        places,
        name,
        spec=spec,
        trials=trials,
        quiet=quiet,
        as_json=as_json,
        prefect_port=prefect_port,
        retry_failed=retry_failed,
    )


LAST_SECONDS = 10.0
"""How long an interrupted command may take to end after its last output."""


def run_session(
    places: Places,
    name: str,
    *,
    spec: Spec | None,
    quiet: bool = False,
    as_json: bool,
    prefect_port: int | None = None,
    trials: int | None = None,
    retry_failed: bool = False,
) -> NoReturn:
    """Run the experiment with the live view or its events, print its state at the end, and exit
    with the matching code.

    `spec` None: the specification in the log. `trials`: new total number of trials; None:
    unchanged.
    """
    from regrow.show.live import Live
    from regrow.show.live.terminal import Terminal, only_events
    from regrow.show.live.text import ending

    with only_events() if as_json else nullcontext() as events:
        console = Terminal(stderr=as_json)
        store = places.store(name)
        live = Live(console, quiet=quiet, events=events, notes=lambda: notes.read(store))
        on_station = None if prefect_port is not None else station_of(places, live.announce)
        given: dict[str, Any] = {
            "name": name,
            "spec": spec,
            "places": places,
            "trials": trials,
            "retry_failed": retry_failed,
            "announce": live.announce,
        }
        try:
            check()
            history = None
            if on_station is None or not on_station(viewer=live.viewer, **given):
                from regrow.flows.launch import launch
                from regrow.flows.session import Session

                session = Session(
                    watch=live.watch, prefect_port=prefect_port, warn=live.warn, **given
                )
                launch(session)
                history = session.history
        except KeyboardInterrupt:  # or SIGTERM; Typer would exit with 130 without a message
            exit_codes.ignore_signals()
            console.print("interrupted before the experiment began; nothing is lost")
            sys.stdout.flush()
            # Do not wait for library threads that still try to reach servers that have ended: waits
            # of 40 s were seen.
            end = threading.Timer(LAST_SECONDS, os._exit, [exit_codes.ExitCode.INTERRUPTED])
            end.daemon = True
            end.start()
            sys.exit(exit_codes.ExitCode.INTERRUPTED)
        exit_codes.ignore_signals()  # the exit code no longer changes
        live.finish(store)
        history = history or replay(store, name)
        if not (as_json and quiet):
            for line in ending(history, places):
                console.print(line, soft_wrap=True)
    if console.lost:
        # else its buffer is written once more at exit, which then fails
        redirect_to_null(console.file)
        with suppress(OSError):
            echo(
                f"not all could be printed ({console.lost}); `{places.command('show', name)}` shows"
                " its state",
                error=True,
            )
    sys.exit(exit_codes.of_experiment(history))


def station_of(places: Places, announce: Callable[[str], None]) -> Callable[..., bool] | None:
    """Return what runs a session on the station of the state root; None if none can."""
    from regrow.infra.state import station_record as record

    station = record.find(places)
    if station is None or station.ending:
        return None
    if (other := station.unlike(os.environ)) is not None:
        announce(
            f"{other} names another server than the station's; this session runs without the"
            " station"
        )
        return None
    if not station.same_environment:
        announce(
            f"the station runs in another Python environment, {station.prefix}; this session runs"
            " without it"
        )
        return None
    from regrow.apps.station.client import run_there

    return partial(run_there, station)
