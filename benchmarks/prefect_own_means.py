"""What Prefect's automations and its process worker do where a station has triggers and a worker of
its own: `python benchmarks/prefect_own_means.py`, four minutes, prints a line for each question.

`docs/architecture.md` says what follows from it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

URL = "http://127.0.0.1:4777/api"
HOME = Path(tempfile.mkdtemp(prefix="prefect-"))
os.environ.update(
    PREFECT_HOME=str(HOME),
    PREFECT_API_URL=URL,
    PREFECT_SERVER_ANALYTICS_ENABLED="0",
    PREFECT_LOGGING_LEVEL="ERROR",
)
FLOW = """import time
from prefect import flow
@flow
def f(event: dict | None = None, seconds: float = 0.0):
    time.sleep(seconds)
"""
TEMPLATE = '{"payload": {{ event.payload | tojson }}}'
PAYLOADS: dict[str, Any] = {
    "plain": {"n": 1},
    "a template of the sender's": {"n": {"__prefect_kind": "jinja", "template": "{{ 7 * 7 }}"}},
    "600 KB": {"text": "x" * 600_000},
}


def started(*words: str) -> subprocess.Popen[bytes]:
    """A process of Prefect's command line."""
    log = (HOME / "log").open("ab")
    command = [sys.executable, "-m", "prefect", *words]
    return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def killed(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    server = started("server", "start", "--port", "4777")
    try:
        while True:
            try:
                httpx.get(f"{URL}/health").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.2)
        asked()
    finally:
        killed(server)


def asked() -> None:
    from prefect import flow, get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    (HOME / "flows.py").write_text(FLOW)
    client = get_client(sync_client=True)

    def deployed(name: str, **given: Any) -> uuid.UUID:
        source: Any = flow.from_source(source=str(HOME), entrypoint="flows.py:f")
        made: uuid.UUID = source.deploy(
            name=name,
            work_pool_name="p",
            build=False,
            push=False,
            print_next_steps=False,
            ignore_warnings=True,
            **given,
        )
        return made

    def runs(of: uuid.UUID) -> list[Any]:
        return [one for one in client.read_flow_runs(limit=200) if one.deployment_id == of]

    def emitted(payload: Any) -> None:
        now, resource = datetime.now(UTC).isoformat(), {"prefect.resource.id": "shop.1"}
        event = {"id": str(uuid.uuid4()), "occurred": now, "event": "shop", "related": []}
        sent = [{**event, "resource": resource, "payload": payload}]
        httpx.post(f"{URL}/events", json=sent).raise_for_status()
        time.sleep(12.0)

    client.create_work_pool(WorkPoolCreate(name="p", type="process"))
    on_event = deployed("on-event")
    given = {"__prefect_kind": "jinja", "template": TEMPLATE}
    action = RunDeployment(
        source="selected",
        deployment_id=on_event,
        job_variables=None,
        parameters={"event": {"__prefect_kind": "json", "value": given}},
    )
    trigger = EventTrigger(
        expect={"shop"}, posture=Posture.Reactive, threshold=1, within=timedelta(0)
    )
    client.create_automation(AutomationCore(name="on", trigger=trigger, actions=[action]))
    for what, payload in PAYLOADS.items():
        before = len(runs(on_event))
        emitted(payload)
        found = sorted(runs(on_event), key=lambda one: one.created)
        heard = str(found[-1].parameters)[:80] if len(found) > before else "no run"
        print(f"an event, {what}: {heard}", flush=True)
    client.pause_deployment(on_event)
    before = len(runs(on_event))
    emitted({})
    print(f"an event while it is paused: {len(runs(on_event)) - before} runs", flush=True)

    print(f"overlap: {', '.join(one.value for one in ConcurrencyLimitStrategy)}", flush=True)
    made = {
        strategy: deployed(
            f"limit-{strategy.value}",
            interval=20,
            parameters={"seconds": 12.0},
            concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=strategy),
        )
        for strategy in ConcurrencyLimitStrategy
    }
    time.sleep(70.0)
    worker = started("worker", "start", "--pool", "p", "--type", "process")
    time.sleep(30.0)
    for strategy, deployment in made.items():
        found = sorted(runs(deployment), key=lambda one: one.expected_start_time)
        told = [f"{one.expected_start_time:%M:%S} {one.state_name}" for one in found[:6]]
        print(f"missed for 70 s, {strategy.value}: {', '.join(told)}", flush=True)
    killed(worker)
    for one in client.read_flow_runs(limit=200):
        if one.state_name == "Running":
            gone = time.monotonic()
            while time.monotonic() - gone < 60.0 and client.read_flow_run(one.id).state_name == (
                "Running"
            ):
                time.sleep(1.0)
    left = [one.state_name for one in client.read_flow_runs(limit=200)]
    print(f"a minute after kill -9 of the worker: {left.count('Running')} still Running")


if __name__ == "__main__":
    main()
