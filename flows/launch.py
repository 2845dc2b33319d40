"""Starts a session from this process, for command line and Python: services, then the flow run."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from uuid import UUID

from regrow.flows.checks import check_frameworks, check_search, check_trainable, precheck
from regrow.flows.coordinator.warming import warmed_up
from regrow.flows.interrupts import catching_interrupts
from regrow.flows.recording.catch_up import is_recorded, record_missing
from regrow.flows.session import SESSION, Session
from regrow.infra.log.reading import survey
from regrow.infra.machine import capacity, gpus
from regrow.infra.machine.awaiting import announced
from regrow.infra.machine.host_environment import (
    check_loopback,
    check_sizes,
    check_tasks,
    raise_file_limit,
)
from regrow.infra.mlflow import database as mlflow_database
from regrow.infra.mlflow.check import check as check_mlflow
from regrow.infra.mlflow.updates import SinkRefused, SinkUnavailable
from regrow.infra.prefect import server as prefect_server
from regrow.infra.prefect.settings import own_home, settings
from regrow.infra.ray import metadata
from regrow.infra.ray.joining import check_room, environment, join, slots
from regrow.infra.ray.start import check_thread
from regrow.infra.state import passwords, served
from regrow.infra.state.agents import living
from regrow.infra.state.environment import begin_collecting
from regrow.infra.state.places import CLUSTER
from regrow.search.errors import SpecError
from regrow.search.events import Closed
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.process import background
from regrow.tasks.process.addresses import redacted
from regrow.tasks.process.variables import within


def launch(session: Session) -> None:
    """Run or resume an experiment, and return when the session has ended; the log tells how it
    ended.

    The whole input is checked before anything is started. Leaves Prefect with regrow's settings:
    see `settings_read_again`. Raises UserError or SpecError.
    """
    if session.prepared.failed == 0:
        session.announce(f"no trial of {session.name} has failed: there is none to be tried again")
    serve = _checked_serving(session)
    if session.prepared.nothing_left:
        how = "has failed" if session.prepared.ended == "failed" else "is finished"
        session.announce(f"{session.name} {how} already")
        for change in session.prepared.changes:
            session.announce(f"not taken over, as nothing is left to do: {change}")
        serve()
        _catch_up(session)
        return
    _check_agents(session)
    _check_code(session)
    _check_machine(session)
    serve()
    spec = session.prepared.spec
    if spec.endless:
        most = f"at most {spec.most_steps:,} steps"
        why = "nothing ends a trial: max_steps and stop are not given"
        if spec.limited:
            why = "only money or time ends a trial: max_steps is not given"
        session.announce(f"{why}, so each runs until your function returns ({most})")
    # The user's home is not used unless the user has a separate Prefect server, whose
    # settings are there.
    with catching_interrupts(session.agent), within(settings(os.environ)):
        home = own_home(session.places)
        server = prefect_server.begin(session.places.prefect_home, port=session.prefect_port)
        try:
            if server.remark is not None:
                session.alert(server.remark)
            if not server.server.embedded:
                server.wait()  # reports a wrong address before anything else is started
            with within({**home, **server.server.environment()}):
                if session.typed is None:
                    settings_read_again()
                _run_on_cluster(session, server)
        finally:
            server.close()


def _checked_serving(session: Session) -> Callable[[], None]:
    """Check what is to be served. Return what makes a station serve the experiment from then on, or
    stop serving it. Raises SpecError and UserCodeError for unusable models.

    The schedule decides for its runs; for a run on a cluster, the machine that started it.
    """
    spec, places = session.prepared.spec, session.places
    decides = session.spec is not None and session.flow_run is None and CLUSTER not in os.environ
    if not decides or (spec.serve is None and served.read(places, spec.name) is None):
        return lambda: None
    registered = next(iter(entry_points(group="regrow.keys", name="serve")), None)
    if registered is None:  # the package was installed before it had this entry point
        raise UserError("no application is registered for the key serve; install regrow again")
    application = registered.load()  # regrow.apps.serving.station_registration
    lines = application.checked(spec, places)

    def begin() -> None:
        for line in (*lines, *application.of_experiment(places, session.prepared.spec)):
            session.announce(line)

    return begin


def _catch_up(session: Session) -> None:
    """Record what MLflow lacks because it was unreachable when the experiment ended."""
    places, name = session.places, session.name
    if is_recorded(places, name):
        return
    try:
        if (segments := record_missing(places, name, announce=session.announce)) > 0:
            session.announce(f"MLflow lacked {segments} segments of its log and has everything now")
    except (SinkRefused, SinkUnavailable) as error:
        session.announce(f"MLflow does not have everything yet: {error}")


def _check_agents(session: Session) -> None:
    """Raise UserError if agents run the experiment: this session would take it away from them."""
    if session.agent:
        return
    if there := living(session.prepared.store):
        name, places = session.name, session.places
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        join, stop = places.command("join", name), places.command("stop", name)
        raise UserError(
            f"{name} is run by agents ({there[0].id}{more}), from which this would take it away;"
            f" `{join}` takes part, `{stop}` ends it"
        )


def _check_code(session: Session) -> None:
    """Check the user's code, from which a library may tell the resources that a trial needs."""
    spec = session.prepared.spec
    if spec.trainable == "pickled" and session.prepared.code is None:
        raise UserError(
            f"the trials of {session.name} are run by the script that made it; run that again"
        )
    precheck(spec)
    check_search(spec)
    needed = check_frameworks(spec, session.given).resources
    if session.spec is not None and needed != spec.resources:
        session.prepared = session.prepared.needing(needed)


def _check_machine(session: Session) -> None:
    """Check this machine and its services as far as possible. Raises SpecError and UserError."""
    spec, places = session.prepared.spec, session.places
    check_thread()
    environment(spec)
    check_room(spec)
    metadata.cloud(os.environ)
    places.writable()
    raise_file_limit()
    check_loopback()
    starts_ray = not os.environ.get("RAY_ADDRESS")
    if starts_ray:
        check_tasks()
        check_sizes(capacity.store_size())
    begin_collecting(spec.working_dir, spec.program)
    check_mlflow(places.mlflow_uri, 5.0)
    for line in (
        mlflow_database.replaced(places.mlflow_uri, places.mlflow_artifacts),
        mlflow_database.of_another_version(places.mlflow_uri),
        capacity.little_memory() if starts_ray else None,
    ):
        if line is not None:
            session.alert(line)


def _run_on_cluster(session: Session, server: Any) -> None:
    """Join or start a cluster while Prefect loads, run the flow, and end the servers."""
    spec = session.prepared.spec
    # Importing Prefect takes 1.5 s, during which Ray's processes start. Two threads must not import
    # the same module, as Python may then return a half-initialized one: common modules come first,
    # and Ray is used only afterwards.
    gpus.as_ray_reads(os.environ)  # before its import, and for as long as this process lives
    for module in ("ray", "pydantic.v1.fields"):
        importlib.import_module(module)
    with (
        ExitStack() as leaving,
        _importing("regrow.flows.run") as flow,
        join(
            spec,
            session.announce,
            by_agent=bool(session.agent),
            state=session.places.folder,
        ) as ray_cluster,
    ):
        with announced("Prefect to load", session.announce):
            flow.join()
        if ray_cluster.local:
            trials = (spec.concurrency or 2) * spec.resources.widths[1]
            count = min(trials, capacity.cpus())
            leaving.enter_context(warmed_up(spec, count, session.places.services))
        slots(spec, ray_cluster, by_agent=bool(session.agent))
        check_trainable(spec)
        url = redacted(server.wait(say=session.announce).ui_url)
        server.watch()
        if session.typed is None:
            places = session.places
            if server.server.embedded:
                url = passwords.make(places.services).shown("prefect", url)
            opens = places.command("ui", session.name)
            session.announce(f"Prefect: {url}")
            session.announce(f"MLflow:  {redacted(places.mlflow_uri)} (open it with `{opens}`)")
        _run_flow(session, server)
        # The server takes as long to end as Ray's processes.
        leaving.callback(background.start(server.close, name="prefect-leave").join)


def _run_flow(session: Session, server: Any) -> None:
    """Run the experiment's flow run, its own or a new one, on the Prefect server."""
    from httpx import HTTPError
    from prefect import get_client
    from prefect.client.schemas.objects import State
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from regrow.flows.flow_run import StaysPaused, TakenOver, reopen
    from regrow.flows.run import run
    from regrow.infra.prefect.deployments import by_hand
    from regrow.infra.prefect.private import run_flow

    log = session.prepared.log
    its_run = session.flow_run or (log.created.id if log.created is not None else None)
    parameters = session.parameters
    begun = SESSION.set(session)
    try:
        with get_client(sync_client=True) as client:
            again = reopen(client, UUID(its_run)) if its_run is not None else None
            if again is None and server.server.embedded:
                form = run.parameters.model_dump_for_openapi()
                again = by_hand(client, session.name, parameters, form)
        try:
            # Only automations on a server use heartbeats. The thread that sends them sleeps for a
            # second at a time, and the end of a flow run waits for it.
            beats = prefect_server.has_automations(server)
            with temporary_settings({} if beats else {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                ended = run_flow(run, flow_run=again, parameters=parameters, return_type="state")
            if isinstance(ended, State):
                raise_error(ended)
        except StaysPaused:
            pass  # how the session ended is in the log
        except TakenOver as taken:
            raise UserError(str(taken)) from None
        except HTTPError as error:
            # Prefect's engine needs its server. The log has the session's end, or the next session
            # continues from it.
            where = redacted(server.server.api_url)
            now = survey(session.prepared.store).last
            if now == log.last or not isinstance(now, Closed):
                away = (
                    f"the Prefect server at {where} is away ({error});"
                    f" `{session.places.command('resume', session.name)}` continues"
                )
                raise RegrowError(away) from error
            session.announce(
                f"The Prefect server at {where} is away and did not receive how this ended; the"
                " experiment's log has it"
            )
    finally:
        SESSION.reset(begun)
        for handler in logging.getLogger("prefect.flow_runs").handlers:
            handler.flush()  # an embedded server is gone when this function has returned


@contextmanager
def _importing(module: str) -> Iterator[threading.Thread]:
    """Import a module in a thread during the block. The block's end waits for it, as Prefect's
    settings must not be restored during the import.
    """

    def imported() -> None:
        with suppress(Exception):  # the import that needs it raises the same
            importlib.import_module(module)

    thread = background.start(imported, name="import")
    try:
        yield thread
    finally:
        thread.join()


def raise_error(ended: Any) -> None:
    """Raise what ended the flow run, if anything: an error for the user, or a bug."""
    found = ended.data
    error = getattr(found, "result", found)
    cause = getattr(error, "cause", None)
    if isinstance(cause, RegrowError | SpecError):  # Ray wraps what an actor raised
        raise cause
    if isinstance(error, BaseException):
        raise error


def settings_read_again() -> None:
    """Make Prefect, if it was imported before, read its variables again: 0.15 s of CPU."""
    if "prefect" in sys.modules:
        home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
        there = home.exists()
        from regrow.infra.prefect.private import reread_settings

        reread_settings()
        if not there:  # Prefect creates the folder when it reads its settings
            with suppress(OSError):  # another process has put something in it
                home.rmdir()
