"""`ui`: the web pages of Prefect and MLflow on a state root."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer
from rich.console import Console

from regrow.cli.options import PortOption, StateOption
from regrow.infra import prefect_server
from regrow.infra.mlflow_check import check, shown
from regrow.infra.mlflow_ui import mlflow_ui, runs_page
from regrow.infra.places import Places


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
    if name is not None:
        places.known(name)
    check(places.mlflow_uri, 5.0)
    console = Console(highlight=False)
    with (
        prefect_server.prefect_server(places.writable().prefect_home, port=prefect_port) as prefect,
        mlflow_ui(places.mlflow_uri, places.mlflow_artifacts, port=mlflow_port) as mlflow_url,
    ):
        page = mlflow_url if name is None else runs_page(mlflow_url, name)
        console.print(f"Prefect: {shown(prefect.ui_url)}/runs", markup=False, soft_wrap=True)
        console.print(f"MLflow:  {shown(page)}", markup=False, soft_wrap=True)
        console.print("Ctrl-C ends both", markup=False)
        if browser:
            import webbrowser

            webbrowser.open(page)
            webbrowser.open(f"{prefect.ui_url}/runs")
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        ended.wait()
