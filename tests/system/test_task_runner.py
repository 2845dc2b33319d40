"""The task runner around tasks of any kind: Prefect's engine here, bodies on Ray workers, looked at
through a real server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import ray
from prefect import flow, tags, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State, StateType, TaskRun
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Crashed, Failed, Pending
from ray import cloudpickle

from regrow.infra.prefect.server import prefect_server
from regrow.infra.prefect.task_runner import OffloadTaskRunner, remote_options
from regrow.infra.prefect.task_runs import close_crashed, mismatched, repair, settle
from regrow.infra.ray.cluster import connect, disconnect

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers can't import a test module

plain = task(persist_result=False, cache_policy=NO_CACHE)
EVER = datetime.min.replace(tzinfo=UTC)
on_ray: Any = OffloadTaskRunner  # Prefect's overloads want a runner of futures of any kind


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[SyncPrefectClient]:
    """A client of a server, with a Ray cluster of two slots connected."""
    with prefect_server(home) as server:
        connect(cpus=2, env={})
        ours = {PREFECT_API_URL: server.api_url, PREFECT_API_AUTH_STRING: server.auth}
        with temporary_settings(ours), get_client(sync_client=True) as client:
            yield client
        disconnect()


def known(client: SyncPrefectClient, task_run_id: UUID) -> TaskRun:
    """The task run, once the server is aware of it."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return client.read_task_run(task_run_id)
        except ObjectNotFound:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def ended(client: SyncPrefectClient, *ids: UUID) -> list[TaskRun]:
    """The task runs of one flow run once the server shows them as ended."""
    flow_run_id = known(client, ids[0]).flow_run_id
    assert flow_run_id is not None
    assert settle(client, flow_run_id, dict.fromkeys(ids, EVER)) == set()
    return [client.read_task_run(task_run_id) for task_run_id in ids]


def states(client: SyncPrefectClient, task_run_id: UUID) -> list[str]:
    found = sorted(client.read_task_run_states(task_run_id), key=lambda state: state.timestamp)
    return [state.name or "" for state in found]


@plain
def double(x: int) -> int:
    return 2 * x


@plain
def fails() -> None:
    raise ValueError("the user's mistake")


def test_submit_and_map_with_dependencies_and_failures(client: SyncPrefectClient) -> None:
    @flow(task_runner=on_ray())
    def numbers() -> list[UUID]:
        first = double.submit(1)
        second = double.submit(first)  # type: ignore[call-overload]  # Prefect resolves the future
        assert second.result() == 4
        third = double.submit(x=5, wait_for=[second], return_state=False)
        assert third.result() == 10
        assert double.map([1, 2, 3]).result() == [2, 4, 6]
        failed = fails.submit()
        failed.wait()
        assert failed.state.is_failed()
        with pytest.raises(ValueError, match="the user's mistake"):
            failed.result()
        unreached = double.submit(failed)  # type: ignore[call-overload]
        unreached.wait()
        assert unreached.state.name == "NotReady"
        return [future.task_run_id for future in (first, second, third, failed)]

    runs = ended(client, *numbers())
    assert [run.state_name for run in runs] == ["Completed", "Completed", "Completed", "Failed"]
    assert all(run.name.startswith(("double-", "fails-")) for run in runs)
    assert "the user's mistake" in str(runs[3].state)


def test_a_killed_worker_is_prefects_own_retry(client: SyncPrefectClient, tmp_path: Path) -> None:
    @task(persist_result=False, cache_policy=NO_CACHE, retries=2)
    def dies_once(mark: Path) -> int:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    @flow(task_runner=on_ray())
    def once() -> UUID:
        future = dies_once.submit(tmp_path / "mark")
        assert future.result() != os.getpid()
        return future.task_run_id

    (run,) = ended(client, once())
    assert (run.state_name, run.run_count) == ("Completed", 2)
    assert states(client, run.id) == ["Pending", "Running", "Retrying", "Completed"]


def test_the_retry_condition_sees_what_happened(client: SyncPrefectClient, tmp_path: Path) -> None:
    def lost_worker(_task: Any, _run: TaskRun, state: State[Any]) -> bool:
        return isinstance(state.data, ray.exceptions.WorkerCrashedError)

    @task(persist_result=False, cache_policy=NO_CACHE, retries=5, retry_condition_fn=lost_worker)
    def dies_then_fails(mark: Path) -> None:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("a bug")

    @flow(task_runner=on_ray())
    def once() -> UUID:
        future = dies_then_fails.submit(tmp_path / "mark")
        future.wait()
        return future.task_run_id

    (run,) = ended(client, once())
    assert (run.state_name, run.run_count) == ("Failed", 2)


def test_no_worker_has_to_do_with_prefect(client: SyncPrefectClient) -> None:
    @plain
    def sees() -> tuple[bool, list[str]]:
        return "prefect" in sys.modules, [
            name for name in os.environ if name.startswith("PREFECT_")
        ]

    @flow(task_runner=on_ray())
    def once() -> Any:
        return sees.submit().result()

    assert once() == (False, [])


def test_an_async_task_runs_here_and_awaits_what_it_sends_to_ray(client: SyncPrefectClient) -> None:
    remote: Any = ray.remote(lambda x: (x, os.getpid()))

    @plain
    async def twice(x: int) -> tuple[int, bool, bool]:
        first, there = await remote.remote(x)
        second, _ = await remote.remote(first + 1)
        return second, os.getpid() == here, there == here

    here = os.getpid()

    @flow(task_runner=on_ray())
    def once() -> Any:
        return twice.submit(4).result()

    assert once() == (5, True, False)


def test_hundreds_of_runs_wait_in_one_thread(client: SyncPrefectClient) -> None:
    gate = asyncio.Event()
    threads: list[int] = []
    before = threading.active_count()  # of tests before it, in the same process

    @plain
    async def waits(x: int) -> int:
        await gate.wait()
        return x

    @flow(task_runner=on_ray())
    def many() -> list[UUID]:
        futures = [waits.submit(x) for x in range(300)]
        deadline = time.monotonic() + 120
        runner = runner_here()
        while len(runner.under_way) < 300:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        threads.append(threading.active_count())
        runner.call(gate.set)
        found: list[Any] = [future.result() for future in futures]
        assert found == list(range(300))
        return [future.task_run_id for future in futures]

    ids = many()
    assert threads[0] - before < 40
    assert {run.state_name for run in ended(client, *ids)} == {"Completed"}


def runner_here() -> OffloadTaskRunner:
    """The runner of the flow that runs."""
    context = FlowRunContext.get()
    assert context is not None
    assert isinstance(context.task_runner, OffloadTaskRunner)
    return context.task_runner


def test_options_of_a_call_reach_ray_and_tags_reach_prefect(client: SyncPrefectClient) -> None:
    @plain
    def sees() -> tuple[dict[str, Any], str]:
        context: Any = ray.get_runtime_context()
        return context.get_assigned_resources(), os.environ["FOR_TRIAL"]

    @flow(task_runner=on_ray())
    def once() -> tuple[Any, UUID]:
        with (
            remote_options(num_cpus=2, runtime_env={"env_vars": {"FOR_TRIAL": "1"}}),
            tags("rung:1"),
        ):
            future = sees.submit()
        return future.result(), future.task_run_id

    seen, run_id = once()
    assert seen == ({"CPU": 2.0}, "1")
    assert ended(client, run_id)[0].tags == ["rung:1"]


def test_a_state_that_the_task_returns_is_recorded(client: SyncPrefectClient) -> None:
    @plain
    def returns(name: str) -> State[Any]:
        return (
            Failed(name=name, message="as told")
            if name == "Broken"
            else Completed(name=name, message="as told")
        )

    @flow(task_runner=on_ray())
    def both() -> list[UUID]:
        futures = [returns.submit("Stopped"), returns.submit("Broken")]
        for future in futures:
            future.wait()
        return [future.task_run_id for future in futures]

    assert [run.state_name for run in ended(client, *both())] == ["Stopped", "Broken"]


def test_runs_that_the_flow_does_not_wait_for_are_told_as_crashed(
    client: SyncPrefectClient,
) -> None:
    left: list[UUID] = []

    @plain
    async def forever() -> None:
        await asyncio.Event().wait()

    @flow(task_runner=on_ray())
    def leaves() -> None:
        future = forever.submit()
        left.append(future.task_run_id)
        known(client, future.task_run_id)

    leaves()
    assert ended(client, *left)[0].state_type == StateType.CRASHED


def test_settle_returns_in_time_what_the_server_does_not_know(client: SyncPrefectClient) -> None:
    missing = uuid4()
    assert settle(client, uuid4(), {missing: EVER}, seconds=0.3) == {missing}


def test_settle_waits_for_the_end_of_this_session_where_a_former_one_had_ended_too(
    client: SyncPrefectClient,
) -> None:
    @flow(task_runner=on_ray())
    def once() -> UUID:
        future = fails.submit()
        future.wait()
        return future.task_run_id

    (run,) = ended(client, once())
    assert run.flow_run_id is not None
    again: State[Any] = Completed(message="tried again")
    assert settle(client, run.flow_run_id, {run.id: again.timestamp}, seconds=0.3) == {run.id}
    client.set_task_run_state(run.id, again, force=True)
    assert settle(client, run.flow_run_id, {run.id: again.timestamp}) == set()


def test_the_server_is_told_of_the_ends_that_it_missed_and_of_runs_that_it_never_heard_of(
    client: SyncPrefectClient,
) -> None:
    @flow(task_runner=on_ray())
    def once() -> UUID:
        return double.submit(1).task_run_id

    never, crashed = uuid4(), once()
    (run,) = ended(client, crashed)
    assert run.flow_run_id is not None
    client.set_task_run_state(crashed, Crashed(message="its driver was lost"), force=True)
    ends = {never: StateType.COMPLETED, crashed: StateType.FAILED}
    assert mismatched(client, ends) == {never, crashed}
    told: dict[UUID, tuple[str, State[Any]]] = {
        never: ("trial-0", Completed(message="the log")),
        crashed: ("trial-1", Failed(message="the log")),
    }
    repair(client, run.flow_run_id, double, told)
    assert mismatched(client, ends) == set()
    assert mismatched(client, {never: StateType.COMPLETED, crashed: StateType.COMPLETED}) == {
        crashed
    }, "it did not fail, by the log"
    runs = [client.read_task_run(run_id) for run_id in (never, crashed)]
    assert [run.flow_run_id for run in runs] == [run.flow_run_id] * 2
    assert [run.state_type for run in runs] == [StateType.COMPLETED, StateType.FAILED]


@pytest.mark.nightly  # 13 s for the 201; tests/system/test_services_lost.py has a few
def test_all_runs_of_a_lost_driver_are_closed_however_many(client: SyncPrefectClient) -> None:
    @flow
    def lost() -> None: ...

    flow_run = client.create_flow_run(lost)
    ids = [
        client.create_task_run(
            double, flow_run.id, dynamic_key=str(n), name=f"trial-{n}", state=Pending()
        ).id
        for n in range(201)  # the server tells of 200 at a time
    ]
    close_crashed(client, flow_run.id)
    assert mismatched(client, dict.fromkeys(ids, StateType.CRASHED)) == set()


def test_bodies_run_while_the_server_is_away_and_it_hears_of_them_later(
    client: SyncPrefectClient, home: Path
) -> None:
    @flow(task_runner=on_ray())
    def through() -> list[UUID]:
        ids = []
        for x in range(3):
            if x == 1:
                os.kill(json.loads((home / "server.json").read_text())["pid"], signal.SIGKILL)
            future = double.submit(x)
            assert future.result() == 2 * x
            ids.append(future.task_run_id)
        with prefect_server(home):
            pass  # it is back, and stays for the fixture's sake
        return ids

    ids = through()
    assert {run.state_name for run in ended(client, *ids[1:])} == {"Completed"}
