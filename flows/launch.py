"""Starts a session from this process: services up, flow run, services down. Used by the command
line and by Python.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from regrow.flows.checks import check_frameworks, check_search, check_trainable, precheck
from regrow.flows.coordinator.warming import warm_up
from regrow.flows.interrupts import interrupts
from regrow.flows.recording.catch_up import is_recorded, record_missing
from regrow.infra.log.reading import survey
from regrow.infra.machine import capacity
from regrow.infra.machine.caller_context import CallerContext
from regrow.infra.machine.host_environment import raise_file_limit
from regrow.infra.mlflow import database as mlflow_database
from regrow.infra.mlflow.check import check as check_mlflow
from regrow.infra.mlflow.updates import SinkRefused, SinkUnavailable
from regrow.infra.prefect import server as prefect_server
from regrow.infra.prefect.settings import own_home, settings
from regrow.infra.ray import metadata
from regrow.infra.ray.joining import check_room, environment, join, slots
from regrow.infra.state import passwords, served
from regrow.infra.state.environment import begin_collecting
from regrow.infra.state.experiments import Prepared, prepare
from regrow.infra.state.places import CLUSTER, Places
from regrow.search.errors import SpecError
from regrow.search.events import Closed
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.process.addresses import redacted
from regrow.tasks.process.variables import within


def launch(
    name: str,
    *,
    spec: Spec | None,
    places: Places,
    trials: int | None = None,
    code: str | None = None,
    retry_failed: bool = False,
    watch: Any = None,
    prefect_port: int | None = None,
    announce: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] | None = None,
    flow_run: str | None = None,
    typed: CallerContext | None = None,
    given: Any = None,
) -> None:
    """Run or resume an experiment, and return when the session has ended; the log tells how it
    ended.

    The whole input is checked before anything is started. Leaves Prefect with regrow's settings:
    see `settings_read_again`. Raises UserError or SpecError.

    Args:
        name: name of the experiment.
        spec: its specification; None to resume.
        places: locations of state and services.
        trials: total number of trials; None for the specification's.
        code: location of a pickled trainable; None for none.
        retry_failed: whether failed trials are tried again.
        watch: called with the coordinator's handle; its context surrounds the experiment. None for
            none.
        prefect_port: port of the Prefect server; None for the last one used, or any free one.
        announce: called with lines for the user before and during the run.
        warn: called with lines about records that are lost or cannot be written; None for
            `announce`.
        flow_run: ID of this flow run if Prefect has it already; None for the experiment's own.
        typed: directory and environment of the calling shell if a station's process runs this,
            which was started with regrow's Prefect settings and whose pages are known; None for
            this process.
        given: the trainable, if it is an object rather than a name.

    """
    prepared = prepare(places, name, spec, trials=trials, code=code, retry_failed=retry_failed)
    if prepared.failed == 0:
        announce(f"no trial of {name} has failed: there is none to be tried again")
    # The schedule decides what is served for its runs; for a run on a cluster, it is the machine
    # that started it.
    says = spec is not None and flow_run is None and CLUSTER not in os.environ
    serving = _serving(places, prepared.spec) if says else None
    told = serving.checked(prepared.spec, places) if serving is not None else []
    if prepared.nothing_left:
        announce(
            f"{name} has failed already"
            if prepared.ended == "failed"
            else f"{name} is finished already"
        )
        for change in prepared.changes:
            announce(f"not taken over, as nothing is left to do: {change}")
        _serve(places, prepared.spec, serving, told, announce)
        _catch_up(places, name, announce)
        return
    precheck(prepared.spec)
    check_search(prepared.spec)
    looked_at = check_frameworks(prepared.spec, given)
    if spec is not None and looked_at != prepared.spec:
        spec = spec.model_copy(update={"resources": looked_at.resources})
        prepared = prepare(places, name, spec, trials=trials, code=code, retry_failed=retry_failed)
    environment(prepared.spec)
    check_room(prepared.spec)
    metadata.cloud(os.environ)
    places.writable()
    raise_file_limit()
    begin_collecting(prepared.folder, prepared.spec.program)
    check_mlflow(places.mlflow_uri, 5.0)
    if (line := mlflow_database.replaced(places.mlflow_uri, places.mlflow_artifacts)) is not None:
        (warn or announce)(line)
    if (line := mlflow_database.of_another_version(places.mlflow_uri)) is not None:
        (warn or announce)(line)
    _serve(places, prepared.spec, serving, told, announce)
    if prepared.spec.endless:
        most = f"at most {prepared.spec.most_steps:,} steps"
        announce(
            "nothing ends a trial: max_steps and stop are not given, so each runs until your"
            f" function returns ({most})"
        )
    # The user's home is not used unless the user has a separate Prefect server, whose
    # settings are there.
    with interrupts(), within(settings(os.environ)):
        home = own_home(places)
        server = prefect_server.begin(places.prefect_home, port=prefect_port)
        try:
            if server.remark is not None:
                (warn or announce)(server.remark)
            if not server.server.embedded:
                server.wait()  # reports a wrong address before anything else is started
            with within({**home, **server.server.environment()}):
                if typed is None:
                    settings_read_again()
                _run(
                    prepared,
                    server,
                    name,
                    spec,
                    trials,
                    code,
                    retry_failed,
                    watch,
                    announce,
                    flow_run,
                    typed,
                )
        finally:
            server.close()


class _Serving(Protocol):
    """The application that serves models, as the start of an experiment uses it."""

    def checked(self, spec: Spec, places: Places) -> list[str]:
        """Return lines for the user about `serve`. Raises SpecError and UserCodeError for models
        that cannot be served.
        """
        ...

    def of_experiment(self, places: Places, spec: Spec) -> list[str]:
        """Register the experiment for serving as it specifies, or remove it; return lines for the
        user.
        """
        ...


def _serving(places: Places, spec: Spec) -> _Serving | None:
    """Return the application of the key `serve`, None if the experiment has no such key and was not
    served before.
    """
    if spec.serve is None and served.read(places, spec.name) is None:
        return None
    registered = next(iter(entry_points(group="regrow.keys", name="serve")), None)
    if registered is None:  # the package was installed before it had this entry point
        raise UserError("no application is registered for the key serve; install regrow again")
    found: _Serving = registered.load()
    return found


def _serve(
    places: Places,
    spec: Spec,
    serving: _Serving | None,
    told: list[str],
    announce: Callable[[str], None],
) -> None:
    """Make a station serve the experiment from now on, or stop serving it. `serving` None: change
    nothing.
    """
    if serving is not None:
        for line in (*told, *serving.of_experiment(places, spec)):
            announce(line)


def _catch_up(places: Places, name: str, announce: Callable[[str], None]) -> None:
    """Record what MLflow lacks because it was unreachable when the experiment ended."""
    if is_recorded(places, name):
        return
    try:
        if (segments := record_missing(places, name, announce=announce)) > 0:
            announce(f"MLflow lacked {segments} segments of its log and has everything now")
    except (SinkRefused, SinkUnavailable) as error:
        announce(f"MLflow does not have everything yet: {error}")


def _run(
    prepared: Prepared,
    server: Any,
    name: str,
    spec: Spec | None,
    trials: int | None,
    code: str | None,
    retry_failed: bool,
    watch: Any,
    announce: Callable[[str], None],
    flow_run: str | None,
    typed: CallerContext | None,
) -> None:
    # Importing Prefect takes 1.5 s, during which Ray's processes start. Two threads must not import
    # the same module, as Python may then return a half-initialized one: common modules come first,
    # and Ray is used only afterwards.
    for module in ("ray", "pydantic.v1.fields"):
        importlib.import_module(module)
    leaving = threading.Thread(target=server.close, name="regrow-prefect-leave")
    with (
        _begun(leaving),
        _importing("regrow.flows.run") as flow,
        join(prepared.spec, announce) as ray_cluster,
    ):
        flow.join()
        if ray_cluster.local:
            warm_up(
                prepared.spec,
                min(
                    (prepared.spec.concurrency or 2) * prepared.spec.resources.widths[1],
                    capacity.cpus(),
                ),
            )
        slots(prepared.spec, ray_cluster)
        check_trainable(prepared.spec)
        from httpx import HTTPError
        from prefect import get_client
        from prefect.client.schemas.objects import State

        from regrow.flows import run as flows_run
        from regrow.flows.flow_run import StaysPaused, TakenOver, reopen
        from regrow.infra.prefect.deployments import by_hand
        from regrow.infra.prefect.private import run_flow

        prefect_url = redacted(server.wait().ui_url)
        server.watch()
        if typed is None:
            if server.server.embedded:
                prefect_url = passwords.make(prepared.places.services).shown("prefect", prefect_url)
            announce(f"Prefect: {prefect_url}")
            announce(
                f"MLflow:  {redacted(prepared.places.mlflow_uri)} (open it with"
                f" `{prepared.places.command('ui', name)}`)"
            )
        parameters = {
            "name": name,
            "spec": prepared.asked.to_json() if spec is not None else None,
            "state": prepared.places.root,
            "trials": trials,
            "code": code,
            "retry_failed": retry_failed,
        }
        created, last = prepared.log.created, prepared.log.last
        token, told = flows_run.WATCH.set(watch), flows_run.ANNOUNCE.set(announce)
        its_run = flow_run or (created.id if created is not None else None)
        there = flows_run.TYPED.set(typed)
        try:
            with get_client(sync_client=True) as client:
                again = reopen(client, UUID(its_run)) if its_run is not None else None
                if again is None and server.server.embedded:
                    again = by_hand(
                        client, name, parameters, flows_run.run.parameters.model_dump_for_openapi()
                    )
            try:
                with nullcontext() if prefect_server.is_looked_after(server) else _heartless():
                    ended = run_flow(
                        flows_run.run, flow_run=again, parameters=parameters, return_type="state"
                    )
                if isinstance(ended, State):
                    raise_error(ended)
            except StaysPaused:
                pass  # how the session ended is in the log
            except TakenOver as taken:
                raise UserError(str(taken)) from None
            except HTTPError as error:
                # Prefect's engine needs its server. The log has the session's end, or the next
                # session continues from it.
                where = redacted(server.server.api_url)
                if (now := survey(prepared.store).last) == last or not isinstance(now, Closed):
                    away = (
                        f"the Prefect server at {where} is away ({error});"
                        f" `{prepared.places.command('resume', name)}` goes on"
                    )
                    raise RegrowError(away) from error
                announce(
                    f"The Prefect server at {where} is away and was not told how this ended; the"
                    " experiment's log has it"
                )
        finally:
            flows_run.WATCH.reset(token)
            flows_run.ANNOUNCE.reset(told)
            flows_run.TYPED.reset(there)
            for handler in logging.getLogger("prefect.flow_runs").handlers:
                handler.flush()  # an embedded server is gone when this function has returned
        leaving.start()  # the server takes as long to end as Ray's processes


@contextmanager
def _begun(thread: threading.Thread) -> Iterator[None]:
    """After the block, wait for the thread if it was started within the block."""
    try:
        yield
    finally:
        if thread.ident is not None:
            thread.join()


@contextmanager
def _heartless() -> Iterator[None]:
    """Run flows without Prefect's heartbeats: only automations on a server use them, and an
    embedded server has none.

    The thread that sends heartbeats sleeps for a second at a time, and the end of a flow run waits
    for it.
    """
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@contextmanager
def _importing(module: str) -> Iterator[threading.Thread]:
    """Import a module in a thread during the block. The block's end waits for it, as Prefect's
    settings must not be restored during the import.
    """
    thread = threading.Thread(target=importlib.import_module, args=(module,), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def raise_error(ended: Any) -> None:
    """Raise the exception that ended the flow run, if there is one: an error for the user, or a
    bug.
    """
    found = ended.data
    error = getattr(found, "result", found)
    cause = getattr(error, "cause", None)
    if isinstance(cause, RegrowError | SpecError):  # Ray wraps what an actor raised
        raise cause
    if isinstance(error, BaseException):
        raise error


def settings_read_again() -> None:
    """Make Prefect reread its settings, if it was imported before its environment variables
    changed. Takes 0.15 s of CPU.
    """
    if "prefect" in sys.modules:
        home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
        there = home.exists()
        from regrow.infra.prefect.private import reread_settings

        reread_settings()
        if not there:  # Prefect creates the folder when it reads its settings
            with suppress(OSError):  # another process has put something in it
                home.rmdir()
