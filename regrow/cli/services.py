"""`ui`: the web pages of Prefect and MLflow on a state root. `up` and `down`: an S3 server of one's own."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from regrow.cli.options import PortOption, StateOption
from regrow.infra import obituary, prefect_server, s3_server
from regrow.infra.mlflow_check import check
from regrow.infra.mlflow_ui import mlflow_ui, runs_page
from regrow.infra.places import Places, replay
from regrow.tasks.addresses import shown


def ui(
    name: Annotated[str | None, typer.Argument(help="The experiment to open [default: all]", show_default=False)] = None,
    state: StateOption = None,
    prefect_port: PortOption = None,
    mlflow_port: Annotated[
        int | None,
        typer.Option("--mlflow-port", min=1, max=65535, help="Port of MLflow's page [default: any free one]", show_default=False),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the pages in a browser")] = True,
) -> None:
    """Serve the Prefect and MLflow pages of the state root until Ctrl-C."""
    places = Places.at(state)
    obituary.tell_in_background(places)
    history = replay(places.known(name), name) if name is not None else None
    check(places.mlflow_uri, 5.0)
    console = Console(highlight=False)
    with (
        prefect_server.prefect_server(places.writable().prefect_home, port=prefect_port) as prefect,
        mlflow_ui(places.mlflow_uri, places.mlflow_artifacts, port=mlflow_port) as mlflow_url,
    ):
        trials, flow = mlflow_url, f"{prefect.ui_url}/runs"
        if history is not None:
            objective = history.spec.objective
            trials = runs_page(
                mlflow_url, history.spec.recorded_as, objective.name, objective.mode, only=history.id
            )
            flow += f"/flow-run/{history.opened.flow_run}" if history.opened is not None and history.opened.flow_run else ""
        console.print(f"Prefect: {shown(flow)}", markup=False, soft_wrap=True)
        console.print(f"MLflow:  {shown(trials)}", markup=False, soft_wrap=True)
        console.print("Ctrl-C ends both", markup=False)
        if browser:
            import webbrowser

            webbrowser.open(trials)
            webbrowser.open(flow)
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        ended.wait()


DirOption = Annotated[
    Path | None,
    typer.Option(
        "--dir", help="Folder of the server's data [default: s3 in $REGROW_HOME or ~/.local/share/regrow]", show_default=False
    ),
]


def up(
    folder: DirOption = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=55_531, help="First of its ports [default: any free ones]", show_default=False)
    ] = None,
) -> None:
    """Start an S3 server on this machine for the state of experiments, and say how to use it."""
    place = s3_server.home(folder)
    server, new = s3_server.start(place, port=port)
    console = Console(highlight=False)

    def say(line: str) -> None:
        console.print(line, markup=False, soft_wrap=True)

    say(f"# S3 {'serves' if new else 'serves already'} at {server.endpoint}, on loopback only; its data is in {server.folder}")
    say(f"# end it with: regrow down{f' --dir {shlex.quote(str(place))}' if folder is not None else ''}")
    for name, value in {**server.environment(), "REGROW_STATE": f"s3://{server.bucket}"}.items():
        say(f"export {name}={shlex.quote(value)}")
    # These would come before the file with the server's own.
    others = ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    if foreign := [name for name in others if name in os.environ]:
        say(f"unset {' '.join(foreign)}")


def down(folder: DirOption = None) -> None:
    """End the S3 server that `up` started; its data stays."""
    place = s3_server.home(folder)
    server = s3_server.running(place)
    if server is None or not s3_server.stop(place):
        print(f"no S3 server of {place} is running")
        return
    print(f"the S3 server at {server.endpoint} has ended; its data stays in {place}")
