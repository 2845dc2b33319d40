"""Starting a session from this process: services up, flow run, services down. The one way for the command line and for Python."""

from __future__ import annotations

import importlib
import logging
import os
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from regrow.flows.interrupts import interrupts
from regrow.infra.log.reading import survey
from regrow.infra.machine.surroundings import raise_file_limit
from regrow.infra.machine.typed import Typed
from regrow.infra.mlflow.catch_up import is_recorded, record_missing
from regrow.infra.mlflow.check import check as check_mlflow
from regrow.infra.mlflow.in_trial import nowhere
from regrow.infra.mlflow.updates import SinkRefused, SinkUnavailable
from regrow.infra.prefect import server as prefect_server
from regrow.infra.prefect.settings import settings
from regrow.infra.ray import metadata
from regrow.infra.ray.joining import check_room, environment, join, slots, warm_up
from regrow.infra.rllib import users_code
from regrow.infra.state.environment import begin_collecting
from regrow.infra.state.experiments import Prepared, make_importable, prepare
from regrow.infra.state.places import CLUSTER, Places
from regrow.search.errors import SpecError
from regrow.search.events import Closed
from regrow.search.spec import Spec
from regrow.serving import kept_up
from regrow.tasks.addresses import redacted
from regrow.tasks.command import INTERPRETERS
from regrow.tasks.errors import RegrowError, UserCodeError, UserError
from regrow.tasks.traces import in_a_line, user_trace
from regrow.tasks.trainable import adapt, as_a_script, find, glance, locate, parsed
from regrow.tasks.variables import within

_READERS = (*INTERPRETERS, "bash", "sh", "zsh", "dash", "node", "perl", "Rscript", "julia", "ruby")
"""Programs whose first argument is a script, if it is no option."""


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
    flow_run: str | None = None,
    typed: Typed | None = None,
    given: Any = None,
) -> None:
    """Runs or resumes an experiment and returns when the session has ended; how it ended is in the log.

    Everything that can be wrong with the input is looked at before anything is started. `watch` is given the
    coordinator while the experiment runs, `announce` a line now and then before it. `flow_run`: the one that this is, which
    Prefect has already; None: the experiment's own. `typed`: where the command was typed, in a process of a
    station, which was started with our settings of Prefect and whose pages are known; None: in this process. `given`: the
    trainable, where it is no name but an object. Prefect is left
    with settings of ours: see `settings_read_again`. Raises UserError or SpecError.
    """
    prepared = prepare(places, name, spec, trials=trials, code=code, retry_failed=retry_failed)
    if prepared.failed == 0:
        announce(f"no trial of {name} has failed: there is none to be tried again")
    # Of a schedule's run the schedule says what is served; of one on a cluster the machine from which it was started.
    says = spec is not None and flow_run is None and CLUSTER not in os.environ
    told = kept_up.checked(prepared.spec, places) if says else None
    if prepared.nothing_left:
        announce(f"{name} has failed already" if prepared.ended == "failed" else f"{name} is finished already")
        for change in prepared.changes:
            announce(f"not taken over, as nothing is left to do: {change}")
        _serve(places, prepared.spec, told, announce)
        _catch_up(places, name, announce)
        return
    glance_at(prepared.spec)
    check_search(prepared.spec)
    looked_at = check_rllib(prepared.spec, given)
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
    _serve(places, prepared.spec, told, announce)
    if prepared.spec.endless:
        most = f"at most {prepared.spec.most_steps:,} steps"
        announce(f"nothing ends a trial: max_steps and stop are not given, so each runs until your function returns ({most})")
    # The user's home is left alone unless the user has a Prefect server of their own, whose settings are there.
    with interrupts(), within(settings(os.environ)):
        home = {} if prefect_server.configured_api_url() else {"PREFECT_HOME": str(places.prefect_home)}
        server = prefect_server.begin(places.prefect_home, port=prefect_port)
        try:
            if not server.server.embedded:
                server.wait()  # a wrong address is told before anything else is started
            with within({**home, **server.server.environment()}):
                if typed is None:
                    settings_read_again()
                _run(prepared, server, name, spec, trials, code, retry_failed, watch, announce, flow_run, typed)
        finally:
            server.close()


def _serve(places: Places, spec: Spec, told: list[str] | None, announce: Callable[[str], None]) -> None:
    """Has a station serve it from now on. `told`: what `checked` did; None: this session does not say what is served."""
    if told is not None:
        for line in (*told, *kept_up.of_experiment(places, spec)):
            announce(line)


def _catch_up(places: Places, name: str, announce: Callable[[str], None]) -> None:
    """Records what MLflow, away when the experiment ended, does not have."""
    if is_recorded(places, name):
        return
    try:
        if (segments := record_missing(places, name, announce=announce)) > 0:
            announce(f"MLflow lacked {segments} segments of its log and has everything now")
    except (SinkRefused, SinkUnavailable) as error:
        announce(f"MLflow does not have everything yet: {error}")


def _run(
    prepared: Prepared, server: Any, name: str, spec: Spec | None, trials: int | None, code: str | None, retry_failed: bool,
    watch: Any, announce: Callable[[str], None], flow_run: str | None, typed: Typed | None,
) -> None:
    # Importing Prefect takes 1.5 s, in which Ray's processes start. Two threads must not import the same thing, as
    # Python then may hand out a half-made module: what both need comes before, and Ray is used only after.
    for module in ("ray", "pydantic.v1.fields"):
        importlib.import_module(module)
    leaving = threading.Thread(target=server.close, name="regrow-prefect-leave")
    with (
        _begun(leaving), _importing("regrow.flows.run") as flow, join(prepared.spec, announce) as ray_cluster
    ):
        flow.join()
        if ray_cluster.local:
            warm_up(prepared.spec, min((prepared.spec.concurrency or 2) * prepared.spec.resources.widths[1], os.cpu_count() or 1))
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
            announce(f"Prefect: {prefect_url}")
            announce(f"MLflow:  {redacted(prepared.places.mlflow_uri)} (open it with `{prepared.places.command('ui', name)}`)")
        parameters = {
            "name": name, "spec": prepared.asked.to_json() if spec is not None else None,
            "state": prepared.places.root, "trials": trials, "code": code, "retry_failed": retry_failed,
        }
        created, last = prepared.log.created, prepared.log.last
        token, told = flows_run.WATCH.set(watch), flows_run.ANNOUNCE.set(announce)
        its_run = flow_run or (created.id if created is not None else None)
        there = flows_run.TYPED.set(typed)
        try:
            with get_client(sync_client=True) as client:
                again = reopen(client, UUID(its_run)) if its_run is not None else None
                if again is None and server.server.embedded:
                    again = by_hand(client, name, parameters, flows_run.run.parameters.model_dump_for_openapi())
            try:
                with nullcontext() if prefect_server.is_looked_after(server) else _heartless():
                    ended = run_flow(flows_run.run, flow_run=again, parameters=parameters, return_type="state")
                if isinstance(ended, State):
                    raise_error(ended)
            except StaysPaused:
                pass  # how the session ended is in the log
            except TakenOver as taken:
                raise UserError(str(taken)) from None
            except HTTPError as error:
                # Prefect's engine cannot do without its server. How the session ended is in the log, or goes on from there.
                where = redacted(server.server.api_url)
                if (now := survey(prepared.store).last) == last or not isinstance(now, Closed):
                    away = f"the Prefect server at {where} is away ({error}); `{prepared.places.command('resume', name)}` goes on"
                    raise RegrowError(away) from error
                announce(f"The Prefect server at {where} is away and was not told how this ended; the experiment's log has it")
        finally:
            flows_run.WATCH.reset(token)
            flows_run.ANNOUNCE.reset(told)
            flows_run.TYPED.reset(there)
            for handler in logging.getLogger("prefect.flow_runs").handlers:
                handler.flush()  # an embedded server is gone when this function has returned
        leaving.start()  # the server takes as long to end as Ray's processes


@contextmanager
def _begun(thread: threading.Thread) -> Iterator[None]:
    """Waits after the block for a thread, if it was started within."""
    try:
        yield
    finally:
        if thread.ident is not None:
            thread.join()


@contextmanager
def _heartless() -> Iterator[None]:
    """Runs flows without Prefect's heartbeats, which only automations on a server listen to; an embedded one has none.

    The thread that sends them sleeps for a second at a time, and the end of a flow run waits for it.
    """
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield


@contextmanager
def _importing(module: str) -> Iterator[threading.Thread]:
    """Imports a module beside the block, which ends after that: Prefect's settings must not be put back half-way."""
    thread = threading.Thread(target=importlib.import_module, args=(module,), daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def raise_error(ended: Any) -> None:
    """Raises what ended the flow run, if it was an exception: one that tells the user what to do, or a bug."""
    found = ended.data
    error = getattr(found, "result", found)
    cause = getattr(error, "cause", None)
    if isinstance(cause, UserCodeError | UserError | SpecError):  # as Ray hands on what an actor raised
        raise cause
    if isinstance(error, BaseException):
        raise error


def check_search(spec: Spec) -> None:
    """Makes a sampler or scheduler of the user's own once. Raises SpecError, or UserCodeError with the user's traceback."""
    make_importable(spec)
    try:
        spec.check_imports()
    except SpecError as wrong:
        if wrong.__cause__ is None or isinstance(wrong.__cause__, ImportError):
            raise
        raise UserCodeError(str(wrong), user_trace(wrong.__cause__)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's class raises when it is made
        raise UserCodeError(f"the search cannot be made: {in_a_line(error)}", user_trace(error)) from None


def glance_at(spec: Spec) -> None:
    """What can be said of the trainable without importing it. Raises SpecError, and UserCodeError for a syntax error."""
    if spec.rllib is not None:
        glance_at_environment(spec)
    elif spec.command:
        glance_at_command(spec)
    elif spec.trainable != "pickled" and (file := locate(spec.trainable, spec.working_dir)) is not None:
        with _user_code("trainable", spec.trainable):
            glance(file, spec.trainable)


def glance_at_command(spec: Spec) -> None:
    """Whether the program and the script that it is to read are there. Raises SpecError, and UserCodeError for a syntax error."""
    folder, (program, *arguments) = Path(spec.working_dir or "."), spec.command
    path = {**os.environ, **environment(spec)}.get("PATH")
    own = program in INTERPRETERS or "{" in program
    if not own and shutil.which(str(folder / program) if "/" in program else program, path=path) is None:
        there = (folder / program).is_file()
        way = f"chmod +x {shlex.quote(str(folder / program))}"
        hint = f"{way}, or put its interpreter before it" if there else "correct the name, or install it"
        raise SpecError("command.0", program, "there is no such program" if not there else "cannot be run as it is", hint)
    script = arguments[0] if arguments and program.rpartition("/")[2] in _READERS else "-"
    if script.startswith("-") or "{" in script:
        return
    if not (folder / script).is_file():
        hint = "write it relative to the specification's folder"
        raise SpecError("command.1", script, f"there is no file {folder / script}", hint)
    if program in INTERPRETERS:
        with _user_code("command.1", script):
            parsed(folder / script)


def glance_at_environment(spec: Spec) -> None:
    """Whether an environment of the user's own, and what was recorded, are there. Raises SpecError, and UserCodeError for a
    syntax error.
    """
    assert spec.rllib is not None
    env, offline = spec.rllib.env, spec.rllib.offline
    if users_code.is_own(env):
        try:
            if (file := locate(env, spec.working_dir)) is not None:
                with _user_code(users_code.KEY, env):
                    glance(file, env)
        except SpecError as error:
            raise SpecError(users_code.KEY, env, error.problem, error.hint) from None
    if offline is not None and "://" not in offline and not (place := Path(spec.working_dir or ".", offline)).exists():
        hint = "write it relative to the specification's folder"
        raise SpecError("rllib.offline", offline, f"there is no {place}", hint)


def check_rllib(spec: Spec, given: Any = None) -> Spec:
    """The specification with the resources that RLlib needs, after RLlib has looked at it; unchanged if it is no experiment of
    RLlib's. `given`: the trainable, where it is no name but an object.

    Raises SpecError, UserError where RLlib is not installed, UserCodeError for an exception of the user's own code.
    """
    if spec.rllib is None and given is None and users_code.may_configure(spec):
        code = _user_code("trainable", spec.trainable)
        with code, nowhere(), as_a_script(spec.trainable, spec.working_dir):
            given = find(spec.trainable, spec.working_dir)
    if spec.rllib is None and not users_code.configures(given):
        return spec
    from regrow.infra.rllib.check import checked

    return checked(spec, given)


def check_trainable(spec: Spec) -> None:
    """Imports the trainable here, so that a wrong name or a module that fails is told before the first trial starts.

    Raises SpecError, and UserCodeError for an exception of the user's own module.
    """
    if spec.trainable != "pickled" and not spec.command and spec.rllib is None:
        code = _user_code("trainable", spec.trainable)
        with code, nowhere(), as_a_script(spec.trainable, spec.working_dir):
            adapt(find(spec.trainable, spec.working_dir), spec.trainable)
            if spec.stop.trial.function is not None:
                find(spec.stop.trial.function, spec.working_dir)


@contextmanager
def _user_code(key: str, value: str) -> Iterator[None]:
    try:
        yield
    except (UserError, SpecError):
        raise
    except (Exception, SystemExit) as error:
        verb = "imported" if key == "trainable" else "run"
        hint = 'put what is to run only as a script below `if __name__ == "__main__":`' if isinstance(error, SystemExit) else ""
        told = SpecError(key=key, value=value, problem=f"cannot be {verb}: {in_a_line(error)}", hint=hint)
        raise UserCodeError(str(told), user_trace(error)) from error


def settings_read_again() -> None:
    """For a Prefect that was imported, and read the variables that are its settings, before they changed. Takes 0.15 s of CPU."""
    if "prefect" in sys.modules:
        home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
        there = home.exists()
        from regrow.infra.prefect.private import reread_settings

        reread_settings()
        if not there:  # Prefect makes it as it reads its settings
            with suppress(OSError):  # somebody else's by now, with something in it
                home.rmdir()
