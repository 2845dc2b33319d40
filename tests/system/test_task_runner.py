"""Trials as Prefect task runs on Ray workers, looked at through the API of a real Prefect server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import ray
from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import LogFilter, LogFilterTaskRunId
from prefect.client.schemas.objects import Log, State, StateType, TaskRun
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Crashed, Failed
from ray import cloudpickle
from ray.exceptions import WorkerCrashedError

from regrow.infra.cluster import connect, disconnect
from regrow.infra.prefect_server import prefect_server
from regrow.infra.task_runner import TrialTaskRunner
from regrow.infra.task_runs import await_retry, mend, settle, unfinished
from regrow.tasks.logs import captured_logs

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers can't import a test module

ONE = {"num_cpus": 1}
trial_task = task(persist_result=False, cache_policy=NO_CACHE)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="module")
def client(home: Path) -> Iterator[SyncPrefectClient]:
    """A client of a server, with a Ray cluster of two slots connected."""
    with prefect_server(home) as server:
        connect(cpus=2, env={**server.environment(), "PREFECT_LOGGING_LEVEL": "WARNING"})
        with temporary_settings({PREFECT_API_URL: server.api_url}), get_client(sync_client=True) as client:
            yield client
        disconnect()


def run_flow(body: Callable[[TrialTaskRunner, UUID], Any]) -> Any:
    kept: list[Any] = []

    @flow(task_runner=TrialTaskRunner())
    def experiment() -> None:
        context = FlowRunContext.get()
        assert context is not None
        assert context.flow_run is not None
        assert isinstance(context.task_runner, TrialTaskRunner)
        kept.append(body(context.task_runner, context.flow_run.id))

    experiment()
    return kept[0]


def ended(client: SyncPrefectClient, flow_run_id: UUID, *ids: UUID) -> list[TaskRun]:
    """The task runs once the server shows them as ended."""
    assert settle(client, flow_run_id, ids) == set()
    return [client.read_task_run(task_run_id) for task_run_id in ids]


def states(client: SyncPrefectClient, task_run_id: UUID) -> list[str]:
    found = sorted(client.read_task_run_states(task_run_id), key=lambda state: state.timestamp)
    return [state.name or "" for state in found]


def logs(client: SyncPrefectClient, task_run_id: UUID) -> list[Log]:
    wanted = LogFilter(task_run_id=LogFilterTaskRunId(any_=[task_run_id]))
    return client.read_logs(wanted)


@trial_task
def double(x: int) -> int:
    return 2 * x


def test_a_run_has_the_chosen_id_name_and_tags_and_returns_its_value(client: SyncPrefectClient) -> None:
    run_id = uuid4()

    def body(runner: TrialTaskRunner, flow_run_id: UUID) -> int:
        reference = runner.submit_run(
            double, {"x": 21}, task_run_id=run_id, name="trial 0007", tags=["tpe", "rung 1"], options=ONE
        )
        value: int = ray.get(reference)
        (run,) = ended(client, flow_run_id, run_id)
        assert run.name == "trial 0007"
        assert set(run.tags) == {"tpe", "rung 1", f"node:{platform.node()}"}
        assert run.flow_run_id == flow_run_id
        assert run.run_count == 1
        assert run.start_time
        assert run.end_time
        return value

    assert run_flow(body) == 42
    assert states(client, run_id) == ["Pending", "Running", "Completed"]


def test_many_runs_are_all_recorded(client: SyncPrefectClient) -> None:
    ids = [uuid4() for _ in range(60)]

    def body(runner: TrialTaskRunner, flow_run_id: UUID) -> None:
        references = [
            runner.submit_run(double, {"x": i}, task_run_id=run_id, name=f"trial {i}", options=ONE)
            for i, run_id in enumerate(ids)
        ]
        assert ray.get(references) == [2 * i for i in range(60)]
        runs = ended(client, flow_run_id, *ids)
        assert [run.name for run in runs] == [f"trial {i}" for i in range(60)]
        assert all(states(client, run_id) == ["Pending", "Running", "Completed"] for run_id in ids)

    run_flow(body)


@trial_task
def fails() -> None:
    raise ValueError("the user's mistake")


@trial_task
def returns_state(name: str) -> State[Any]:
    return Failed(name=name, message="as told") if name == "Broken" else Completed(name=name, message="as told")


@trial_task
async def doubles_later(x: int) -> int:
    await asyncio.sleep(0)
    return 2 * x


def test_a_failure_comes_back_as_its_state_and_is_recorded_with_the_users_message(
    client: SyncPrefectClient,
) -> None:
    run_id = uuid4()

    def body(runner: TrialTaskRunner, flow_run_id: UUID) -> State[Any]:
        state: State[Any] = ray.get(runner.submit_run(fails, {}, task_run_id=run_id, name="bad", options=ONE))
        (run,) = ended(client, flow_run_id, run_id)
        assert run.state_type == StateType.FAILED
        return state

    state = run_flow(body)
    assert state.is_failed()
    assert "the user's mistake" in state.message
    assert state.data is None
    assert any("the user's mistake" in log.message for log in logs(client, run_id))


@pytest.mark.parametrize("name", ["Stopped", "Broken"])
def test_a_state_that_the_task_returns_comes_back_and_is_recorded(client: SyncPrefectClient, name: str) -> None:
    run_id = uuid4()

    def body(runner: TrialTaskRunner, flow_run_id: UUID) -> State[Any]:
        reference = runner.submit_run(returns_state, {"name": name}, task_run_id=run_id, name="s", options=ONE)
        state: State[Any] = ray.get(reference)
        assert ended(client, flow_run_id, run_id)[0].state_name == name
        return state

    state = run_flow(body)
    assert (state.name, state.message) == (name, "as told")


def test_an_async_task_runs_too(client: SyncPrefectClient) -> None:
    def body(runner: TrialTaskRunner, flow_run_id: UUID) -> int:
        run_id = uuid4()
        value: int = ray.get(runner.submit_run(doubles_later, {"x": 4}, task_run_id=run_id, name="a", options=ONE))
        ended(client, flow_run_id, run_id)
        return value

    assert run_flow(body) == 8


@trial_task
def dies_unless(there: str, pid_file: str) -> int:
    if Path(there).exists():
        return os.getpid()
    Path(pid_file).write_text(str(os.getpid()))
    threading.Event().wait(60)
    return 0


def test_a_retry_is_the_same_task_run_on_another_worker(client: SyncPrefectClient, tmp_path: Path) -> None:
    run_id = uuid4()
    survives, pid_file = tmp_path / "survives", tmp_path / "pid"
    parameters = {"there": str(survives), "pid_file": str(pid_file)}

    def body(runner: TrialTaskRunner, flow_run_id: UUID) -> None:
        options: dict[str, Any] = {"parameters": parameters, "task_run_id": run_id, "options": ONE}
        first = runner.submit_run(dies_unless, name="trial 0003", tags=["kept"], **options)
        while not (pid_file.exists() and pid_file.read_text()):
            assert not ray.wait([first], timeout=0.05)[0]
        known(client, run_id)
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
        with pytest.raises(WorkerCrashedError):
            ray.get(first)
        survives.touch()
        previous = await_retry(client, run_id, "node lost; goes on from step 12", attempts=1)
        assert previous.state_name == "AwaitingRetry"
        assert previous.state is not None
        assert previous.state.message == "node lost; goes on from step 12"
        second = runner.submit_run(dies_unless, name="trial 0003", previous=previous, **options)
        assert ray.get(second) != int(pid_file.read_text())
        (run,) = ended(client, flow_run_id, run_id)
        assert run.name == "trial 0003"
        assert run.tags == ["kept", f"node:{platform.node()}"]
        assert run.run_count == 2

    run_flow(body)
    assert states(client, run_id) == ["Pending", "Running", "AwaitingRetry", "Running", "Completed"]


def test_a_paused_run_goes_on_as_the_same_task_run(client: SyncPrefectClient) -> None:
    run_id = uuid4()

    def body(runner: TrialTaskRunner, flow_run_id: UUID) -> None:
        for x in range(3):
            previous = await_retry(client, run_id, "promoted", name="Paused", attempts=x) if x else None
            reference = runner.submit_run(
                double, {"x": x}, task_run_id=run_id, name="trial 1", previous=previous, options=ONE
            )
            assert ray.get(reference) == 2 * x
            (run,) = ended(client, flow_run_id, run_id)
            assert run.run_count == x + 1
            assert run.start_time
            assert run.end_time
            assert run.end_time > run.start_time

    run_flow(body)
    assert states(client, run_id) == [
        "Pending",
        *["Running", "Completed", "Paused"] * 2,
        "Running",
        "Completed",
    ]


@task(persist_result=False, cache_policy=NO_CACHE, log_prints=True)
def talks() -> int:
    with captured_logs():
        print("printed")
        get_run_logger().info("run logger")
        logging.getLogger("users.module").info("own logger")
        logging.getLogger("users.module").debug("too fine")
        thread = threading.Thread(target=lambda: logging.getLogger("users.thread").warning("from a thread"))
        thread.start()
        thread.join()
        logging.getLogger("httpx").info("a carrier's")
    logging.getLogger("users.module").warning("not captured")
    return logging.getLogger().level


def test_prints_and_logs_of_any_logger_and_thread_arrive_before_the_run_returns(
    client: SyncPrefectClient,
) -> None:
    ids = [uuid4(), uuid4()]

    def body(runner: TrialTaskRunner, flow_run_id: UUID) -> None:
        for run_id in ids:
            level = ray.get(runner.submit_run(talks, {}, task_run_id=run_id, name="talks", options=ONE))
            assert level == logging.WARNING
            found = {(log.name, log.message) for log in logs(client, run_id)}
            assert found == {
                ("prefect.task_runs", "printed"),
                ("prefect.task_runs", "run logger"),
                ("users.module", "own logger"),
                ("users.thread", "from a thread"),
            }
        ended(client, flow_run_id, *ids)

    run_flow(body)


def test_the_last_event_has_left_a_worker_that_is_killed_right_after_its_run(
    client: SyncPrefectClient,
) -> None:
    @trial_task
    def process() -> int:
        return os.getpid()

    def body(runner: TrialTaskRunner, flow_run_id: UUID) -> None:
        seen = 0
        while seen < 3:
            run_id = uuid4()
            try:
                pid = ray.get(runner.submit_run(process, {}, task_run_id=run_id, name="last", options=ONE))
            except WorkerCrashedError:  # Ray has not noticed yet that the one killed before is gone
                continue
            os.kill(pid, signal.SIGKILL)
            ended(client, flow_run_id, run_id)
            seen += 1

    run_flow(body)


@flow(task_runner=TrialTaskRunner())
def plain() -> list[UUID]:
    """Prefect's own ways to submit; prefect-ray pickles the flow for them, so it must be of a module."""
    first = double.submit(1)
    second = double.submit(first)  # type: ignore[call-overload]  # Prefect resolves the future
    assert second.result() == 4
    third = double.submit(x=5, wait_for=[second], return_state=False)
    assert third.result() == 10
    assert double.map([1, 2, 3]).result() == [2, 4, 6]
    failed = fails.submit()
    failed.wait()
    assert failed.state.is_failed()
    return [future.task_run_id for future in (first, second, third, failed)]


def test_plain_submit_and_map_work_with_dependencies(client: SyncPrefectClient) -> None:
    ids = plain()
    runs = [client.read_task_run(run_id) for run_id in ids] if not settle_any(client, ids) else []
    assert [run.state_name for run in runs] == ["Completed", "Completed", "Completed", "Failed"]
    assert all(run.name.startswith(("double-", "fails-")) for run in runs)


def known(client: SyncPrefectClient, task_run_id: UUID) -> TaskRun:
    """The task run, once the worker's events have made the server aware of it."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return client.read_task_run(task_run_id)
        except ObjectNotFound:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def settle_any(client: SyncPrefectClient, ids: list[UUID]) -> set[UUID]:
    """Settle runs of a flow run that is over."""
    flow_run_id = known(client, ids[0]).flow_run_id
    assert flow_run_id is not None
    return settle(client, flow_run_id, ids)


def test_a_second_flow_run_on_the_same_workers_has_its_own_context(client: SyncPrefectClient) -> None:
    for _ in range(2):
        run_id = uuid4()

        def body(runner: TrialTaskRunner, flow_run_id: UUID, run_id: UUID = run_id) -> None:
            ray.get(runner.submit_run(double, {"x": 1}, task_run_id=run_id, name="r", options=ONE))
            assert ended(client, flow_run_id, run_id)[0].flow_run_id == flow_run_id

        run_flow(body)


def test_settle_returns_in_time_what_the_server_does_not_know(client: SyncPrefectClient) -> None:
    missing = uuid4()
    started = time.monotonic()
    assert settle(client, uuid4(), [missing], seconds=0.3) == {missing}
    assert time.monotonic() - started < 2


def test_the_server_is_told_of_the_ends_that_it_missed_and_of_runs_that_it_never_heard_of(client: SyncPrefectClient) -> None:
    never, crashed = uuid4(), uuid4()

    def body(runner: TrialTaskRunner, flow_run_id: UUID) -> None:
        ray.get(runner.submit_run(double, {"x": 1}, task_run_id=crashed, name="trial-1", options=ONE))
        ended(client, flow_run_id, crashed)
        client.set_task_run_state(crashed, Crashed(message="its driver was lost"), force=True)
        assert unfinished(client, [never, crashed]) == {never, crashed}
        told: dict[UUID, tuple[str, State[Any]]] = {
            never: ("trial-0", Completed(message="the log")),
            crashed: ("trial-1", Failed(message="the log")),
        }
        mend(client, flow_run_id, double, told)
        assert unfinished(client, [never, crashed]) == set()
        runs = [client.read_task_run(run_id) for run_id in (never, crashed)]
        assert [(run.name, run.flow_run_id) for run in runs] == [("trial-0", flow_run_id), ("trial-1", flow_run_id)]
        assert [run.state_type for run in runs] == [StateType.COMPLETED, StateType.FAILED]

    run_flow(body)


def test_a_worker_never_starts_a_server_of_its_own(client: SyncPrefectClient) -> None:
    variables = ray.get(ray.remote(lambda: dict(os.environ)).remote())
    assert variables["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] == "false"
    assert variables["PREFECT_API_URL"] == PREFECT_API_URL.value()


def test_runs_go_on_while_the_server_is_away(client: SyncPrefectClient, home: Path) -> None:
    @trial_task
    def process(x: int) -> int:
        logging.getLogger("users").warning("this log is lost")
        return os.getpid()

    def body(runner: TrialTaskRunner, flow_run_id: UUID) -> None:
        def run(x: int) -> int:
            started = time.monotonic()
            reference = runner.submit_run(process, {"x": x}, task_run_id=uuid4(), name="r", options=ONE)
            pid: int = ray.get(reference)
            assert time.monotonic() - started < 25
            return pid

        known = run(0)
        os.kill(json.loads((home / "server.json").read_text())["pid"], signal.SIGKILL)
        try:
            run(1)
            os.kill(known, signal.SIGKILL)
            with suppress(WorkerCrashedError):  # Ray may not have noticed yet
                run(2)
            assert run(3) != known
        finally:
            with prefect_server(home):
                pass  # it is back, and stays for the fixture's sake

    run_flow(body)


def test_what_ray_is_asked_for_reaches_it(client: SyncPrefectClient) -> None:
    @trial_task
    def sees() -> tuple[dict[str, Any], str]:
        context: Any = ray.get_runtime_context()
        return context.get_assigned_resources(), os.environ["FOR_TRIAL"]

    def body(runner: TrialTaskRunner, _: UUID) -> tuple[dict[str, Any], str]:
        options = {"num_cpus": 2, "runtime_env": {"env_vars": {"FOR_TRIAL": "1"}}}
        seen: tuple[dict[str, Any], str] = ray.get(
            runner.submit_run(sees, {}, task_run_id=uuid4(), name="r", options=options)
        )
        return seen

    assert run_flow(body) == ({"CPU": 2.0}, "1")
