"""`ui`: the web pages of Prefect and MLflow on a state root."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer
from rich.console import Console

from regrow.cli.options import PortOption, StateOption
from regrow.infra.local import obituary
from regrow.infra.log.reading import replay
from regrow.infra.mlflow.check import check
from regrow.infra.mlflow.ui import mlflow_ui, runs_page
from regrow.infra.prefect import server as prefect_server
from regrow.infra.state.places import Places
from regrow.station import record
from regrow.tasks.addresses import redacted


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
    """Open the station's page on the state root; without a station, serve Prefect's and MLflow's pages until Ctrl-C."""
    places = Places.at(state)
    if (station := record.find(places)) is not None:
        if name is not None:
            places.has(name)
        page = station.page_url + (f"/e/{name}" if name is not None else "")
        for line in (f"page:    {page}", f"Prefect: {station.prefect_url}", f"MLflow:  {station.mlflow_url}"):
            print(line)
        if browser:
            _open(page)
        return
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
        console.print(f"Prefect: {redacted(flow)}", markup=False, soft_wrap=True)
        console.print(f"MLflow:  {redacted(trials)}", markup=False, soft_wrap=True)
        console.print("Ctrl-C ends both", markup=False)
        if browser:
            _open(trials, flow)
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        ended.wait()


def _open(*pages: str) -> None:
    import webbrowser

    for page in pages:
        webbrowser.open(page)
