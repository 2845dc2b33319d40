"""`ui`: opens the web pages of Prefect and MLflow on a state root."""

from __future__ import annotations

import html
import signal
import threading
from typing import Annotated

import typer

from regrow.cli.options import PortOption, StateOption
from regrow.flows import crash_report
from regrow.infra.log.reading import replay
from regrow.infra.machine import private_files
from regrow.infra.mlflow.check import check
from regrow.infra.mlflow.ui import mlflow_ui, runs_page
from regrow.infra.prefect import server as prefect_server
from regrow.infra.prefect.settings import refuse_settings
from regrow.infra.state import passwords
from regrow.infra.state import station_record as record
from regrow.infra.state.places import Places
from regrow.show.live.terminal import PlainConsole, tell
from regrow.tasks.process.addresses import redacted


def ui(
    name: Annotated[
        str | None, typer.Argument(help="The experiment to open [default: all]", show_default=False)
    ] = None,
    state: StateOption = None,
    prefect_port: PortOption = None,
    mlflow_port: Annotated[
        int | None,
        typer.Option(
            "--mlflow-port",
            min=1,
            max=65535,
            help="Port of MLflow's page [default: any free one]",
            show_default=False,
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the pages in a browser")] = True,
) -> None:
    """Open the station's page on the state root; without a station, serve Prefect's and MLflow's
    pages until Ctrl-C.
    """
    places = Places.at(state)
    if (station := record.find(places)) is not None:
        if name is not None:
            places.has(name)
        known, path = passwords.make(places.services), f"/e/{name}" if name is not None else ""
        for line in station.pages(known.link, path=path):
            tell(line)
        if browser:
            _open(places, known.link("page", station.page_url + path))
        return
    refuse_settings(places)
    crash_report.tell_in_background(places)
    history = replay(places.known(name), name) if name is not None else None
    check(places.mlflow_uri, 5.0)
    console = PlainConsole()
    with (
        prefect_server.prefect_server(places.writable().prefect_home, port=prefect_port) as prefect,
        mlflow_ui(
            places.mlflow_uri, places.mlflow_artifacts, services=places.services, port=mlflow_port
        ) as mlflow_url,
    ):
        known, own = passwords.make(places.services), mlflow_url != places.mlflow_uri
        trials, flow = mlflow_url, f"{prefect.ui_url}/runs"
        if history is not None:
            objective, auth = history.spec.objective, known.mlflow_auth if own else None
            trials = runs_page(
                mlflow_url,
                history.spec.recorded_as,
                objective.name,
                objective.mode,
                only=history.id,
                auth=auth,
            )
            flow += (
                f"/flow-run/{history.opened.flow_run}"
                if history.opened is not None and history.opened.flow_run
                else ""
            )

        def flows() -> str:
            return known.link("prefect", flow) if prefect.embedded else redacted(flow)

        def records() -> str:
            return known.link("mlflow", trials) if own else redacted(trials)

        console.print(f"Prefect: {flows()}", markup=False, soft_wrap=True)
        console.print(f"MLflow:  {records()}", markup=False, soft_wrap=True)
        console.print("Each link logs one browser in, once. Ctrl-C ends both", markup=False)
        if browser:
            # As separate files, since each link works in one browser only.
            _open(places, records(), flows())
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        ended.wait()


def _open(places: Places, *pages: str) -> None:
    """Open pages through private files, because all users of the machine can read a link on the
    browser's command line.
    """
    import webbrowser

    for number, page in enumerate(pages):
        file = places.writable().services / f"open-{number}.html"
        private_files.replace(
            file, f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(page)}">'
        )
        webbrowser.open(file.as_uri())
