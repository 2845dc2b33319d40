"""`ui`: opens the web pages on a state root: ours, Prefect's and MLflow's."""

from __future__ import annotations

import html
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated
from urllib.parse import quote

import typer

from regrow.cli import options
from regrow.cli.options import option
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
from regrow.show.live.terminal import echo
from regrow.tasks.process.addresses import redacted


def ui(
    name: Annotated[
        str | None, typer.Argument(help="The experiment to open [default: all]", show_default=False)
    ] = None,
    state: options.State = None,
    prefect_port: options.Port = None,
    mlflow_port: Annotated[
        int | None, option("Port of MLflow's page [default: any free one]", min=1, max=65535)
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the pages in a browser")] = True,
) -> None:
    """Open the pages on the state root: the station's; without a station, serve our page,
    Prefect's and MLflow's until Ctrl-C.
    """
    places = Places.at(state)
    if (station := record.find(places)) is not None:
        if name is not None:
            places.has(name)
        known, path = passwords.make(places.services), f"/e/{name}" if name is not None else ""
        for line in station.pages(_link(known), path=path):
            echo(line)
        if _is_file():
            echo(_how(places))
        if browser:
            _open(places, known.link("page", station.page_url + path))
        return
    from regrow.apps.page.process import page

    refuse_settings(places)
    crash_report.deliver_in_background(places)
    history = replay(places.known(name), name) if name is not None else None
    check(places.mlflow_uri, 5.0)
    with (
        prefect_server.prefect_server(places.prepared().prefect_home, port=prefect_port) as prefect,
        mlflow_ui(
            places.mlflow_uri, places.mlflow_artifacts, services=places.services, port=mlflow_port
        ) as mlflow_url,
        page(places, prefect=prefect.ui_url, mlflow=mlflow_url) as page_url,
    ):
        known, own = passwords.make(places.services), mlflow_url != places.mlflow_uri
        trials, flow = mlflow_url, f"{prefect.ui_url}/runs"
        if history is not None:
            spec, auth = history.spec, known.mlflow_auth if own else None
            place = (mlflow_url, spec.recorded_as, spec.objective.name, spec.objective.mode)
            trials = runs_page(*place, only=history.id, auth=auth)
            if history.opened is not None and history.opened.flow_run:
                flow += f"/flow-run/{history.opened.flow_run}"

        first, link = page_url + (f"/e/{quote(name)}" if name is not None else ""), _link(known)
        echo(f"page:    {link('page', first)}")
        echo(f"Prefect: {link('prefect', flow) if prefect.embedded else redacted(flow)}")
        echo(f"MLflow:  {link('mlflow', trials) if own else redacted(trials)}")
        echo(f"{_how(places)}. Ctrl-C ends all", flush=True)
        if browser:
            _open(places, known.link("page", first))
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        ended.wait()


def _link(known: passwords.Passwords) -> Callable[[str, str], str]:
    """Return the function that makes a page's link; in a file, which stays, its address alone."""
    return (lambda _, url: url) if _is_file() else known.link


def _how(places: Places) -> str:
    if not _is_file():
        return "Each link logs one browser in, once"
    file = passwords.file_of(places.services)
    return f"A file gets no login links: log in as {passwords.USER}, with the passwords in {file}"


def _is_file() -> bool:
    with suppress(OSError):  # closed
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    return False


def _open(places: Places, *pages: str) -> None:
    """Open pages through private files: everybody can read a browser's command line."""
    import webbrowser

    for number, address in enumerate(pages):
        file = places.prepared().services / f"open-{number}.html"
        to = html.escape(address)
        page = f'<!doctype html><meta http-equiv="refresh" content="0;url={to}">'
        private_files.replace(file, page)
        webbrowser.open(file.as_uri())
