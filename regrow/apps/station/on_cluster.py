"""A run of a schedule on a cluster: `regrow run FILE --on CLUSTER`, as a person would type it, in a
separate process.

If this process ends for any reason, the command can be repeated: it reattaches to the cluster and
to the experiment that runs there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import PrefectException
from prefect.logging.loggers import flow_run_logger
from prefect.states import Cancelled, Completed, Failed, Running

from regrow.flows.recurring import Resolved
from regrow.infra.log.reading import survey
from regrow.infra.state.experiments import request_stop, take_stop_requests
from regrow.infra.state.places import Places
from regrow.infra.state.yaml_file import read_map, write_map
from regrow.search.events import Closed, Event
from regrow.tasks.errors import RegrowError
from regrow.tasks.process import background
from regrow.tasks.process.forking import handling

LOOK_SECONDS = 2.0
"""Interval of the checks whether the flow run was cancelled."""
_OF_THE_STATION = ("RAY_", "PREFECT_")
"""Prefixes of variables that point to the station's cluster and server."""


def run_on_cluster(
    client: SyncPrefectClient,
    run: FlowRun,
    this: Resolved,
    file: Path,
    places: Places,
    say: Callable[[str], None],
    *,
    retry_failed: bool,
) -> None:
    """Run it on the cluster and follow it to its end in the flow run.

    `file`: the specification that the schedule names; `retry_failed`: its failed trials are
    retried. An error that prevents the run is recorded in Prefect.
    """
    cluster = this.when.cluster if this.when is not None else None
    assert cluster is not None
    client.set_flow_run_state(run.id, Running(message=f"on the cluster of {cluster}"), force=True)
    logger = flow_run_logger(run)

    def log_and_say(line: str) -> None:
        logger.info(line)
        say(line)

    try:
        with _written(this, file) as own:
            words = ["run", own.name, "--on", cluster, "--yes", "--quiet", "--state", places.root]
            words += ["--trials", str(this.trials)] if this.trials else []
            words += ["--retry-failed"] * retry_failed
            code, last = _followed(client, run, this, places, words, own.parent, log_and_say)
        state = _state(survey(places.store(this.name)).last, code, last)
    except KeyboardInterrupt:
        state = Cancelled(
            name="Interrupted",
            message="the station was ended; what runs on the cluster continues there",
        )
        with suppress(httpx.HTTPError, PrefectException):  # its server may be gone
            client.set_flow_run_state(run.id, state, force=True)
        raise
    except Exception as error:
        client.set_flow_run_state(run.id, Failed(message=str(error)), force=True)
        raise
    client.set_flow_run_state(run.id, state, force=True)


def _state(last: Event | None, code: int, last_lines: list[str]) -> State[Any]:
    """Return the final state of the flow run. `last`: last event of the log; `code` and
    `last_lines`: the command's exit code and last lines.
    """
    words = "\n".join(last_lines) or f"`regrow run --on` ended with {code}"
    if not isinstance(last, Closed):
        return Failed(message=words)
    if last.status == "finished":
        return (
            Completed()
            if code == 0
            else Failed(message=f"the experiment is finished, though:\n{words}")
        )
    if last.status == "failed":
        return Failed(message=words)
    return Cancelled(name=last.status.capitalize(), message="Retry continues with it")


@contextmanager
def _written(this: Resolved, file: Path) -> Iterator[Path]:
    """Write this run's specification beside the schedule's, for the duration of the block."""
    assert this.spec is not None
    data = {
        key: value
        for key, value in read_map(file, "experiment", "regrow schema").items()
        if key not in ("when", "state")
    }
    spec = this.spec.to_json()
    data |= {
        key: spec[key]
        for key in ("name", "seed", "warm_start", "event")
        if spec.get(key) is not None
    }
    own = file.with_name(f".{this.name}.yaml")
    own.write_bytes(write_map(data))
    try:
        yield own
    finally:
        own.unlink(missing_ok=True)


def _followed(
    client: SyncPrefectClient,
    run: FlowRun,
    this: Resolved,
    places: Places,
    words: list[str],
    folder: Path,
    say: Callable[[str], None],
) -> tuple[int, list[str]]:
    """Run the command; return exit code and last lines. Cancelling the flow run stops it there."""
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith(_OF_THE_STATION)
    }
    command = [sys.executable, "-m", "regrow", *words]
    last: list[str] = []
    with subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        poll = partial(_stop_if_cancelled, client, run, this.name, places)

        def interrupt(*_: object) -> None:
            """Interrupt the command like Ctrl-C: the experiment continues on its cluster."""
            process.send_signal(signal.SIGINT)
            raise KeyboardInterrupt

        with (
            background.every(LOOK_SECONDS, poll, name="cancelled"),
            handling({signal.SIGTERM: interrupt}),
        ):
            for line in process.stdout:
                say(line.rstrip())
                last = [*last, line.rstrip()][-20:]  # reported if the command failed
            code = process.wait()
    with suppress(RegrowError):
        take_stop_requests(places.store(this.name))  # a request that arrived after the end
    return code, last


def _stop_if_cancelled(client: SyncPrefectClient, run: FlowRun, name: str, places: Places) -> bool:
    """Stop the experiment once its flow run is cancelled; return whether that was done."""
    # Unreachable: the next poll may succeed.
    with suppress(httpx.HTTPError, PrefectException, RegrowError):
        state = client.read_flow_run(run.id).state
        if (
            state is not None
            and state.type == StateType.CANCELLING
            and name in places.experiments()
        ):
            request_stop(places.store(name))
            return True
    return False
