"""Notices that a process or its node goes away: who hears of them, and real signals."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from regrow.infra.ray import notices
from regrow.infra.ray.labels import NODE
from regrow.infra.ray.metadata import Unanswered
from regrow.infra.ray.notices import NodeNotices, Poller
from tests.unit.fresh import printed
from tests.unit.metadata_service import ACTION, INSTANCE_ACTION, Service, serving

# ---- listening

Told = queue.Queue[tuple[str, bool]]


def into(told: Told) -> Callable[[str, bool], None]:
    return lambda why, node: told.put((why, node))


class Source:
    """A cloud whose answers the test gives; `asked` counts."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self.answers, self.asked, self.done = list(answers), 0, threading.Event()

    def poll(self) -> str | None:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if len(self.answers) == 1:
            self.done.set()
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_each_listener_hears_of_a_notice_once_also_one_that_comes_later() -> None:
    source = Source(None, "gone soon", "gone very soon", "gone very soon")
    poller = Poller(source, every=0.001)
    first: Told = queue.Queue()
    second: Told = queue.Queue()
    with poller.listening(into(first)):
        assert first.get(timeout=10) == ("gone soon", True)
        assert source.done.wait(10)
        with poller.listening(into(second)):
            assert second.get(timeout=10)[1]
        again = source.asked
        while source.asked < again + 5:
            time.sleep(0.001)
    assert first.empty()
    assert second.empty()


def test_a_notice_that_was_taken_back_may_come_again() -> None:
    poller = Poller(Source("hibernates", None, "hibernates"), every=0.001)
    told: Told = queue.Queue()
    with poller.listening(into(told)):
        assert [told.get(timeout=10) for _ in range(2)] == [("hibernates", True)] * 2


def test_nothing_is_asked_while_nobody_listens() -> None:
    source = Source(None)
    poller = Poller(source, every=0.001)
    assert source.asked == 0
    with poller.listening(lambda *_: None):
        assert source.done.wait(10)
    time.sleep(0.05)
    asked = source.asked
    time.sleep(0.1)
    assert source.asked <= asked + 1


def test_a_service_that_does_not_answer_is_asked_less_and_less_and_heard_when_it_does() -> None:
    source = Source(*[Unanswered("away")] * 4, RuntimeError("a bug"), "gone soon")
    told: Told = queue.Queue()
    begun = time.monotonic()
    with Poller(source, every=0.02, at_most=0.1).listening(into(told)):
        assert told.get(timeout=10) == ("gone soon", True)
    assert time.monotonic() - begun >= 0.04 + 0.08 + 0.1 + 0.1 + 0.1


def test_a_listener_that_fails_does_not_keep_others_from_hearing() -> None:
    told: Told = queue.Queue()

    def fails(_why: str, _node: bool) -> None:
        raise RuntimeError("no")

    poller = Poller(Source(None, "gone soon"), every=0.01)
    with poller.listening(fails), poller.listening(into(told)):
        assert told.get(timeout=10) == ("gone soon", True)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not listened yet."""
    monkeypatch.setattr(notices, "_pollers", {})
    monkeypatch.delenv("REGROW_CLOUD", raising=False)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.mark.usefixtures("here")
def test_where_there_is_no_cloud_nothing_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_CLOUD", "none")
    before = sum(t.name == "regrow-notices" for t in threading.enumerate())
    with NodeNotices().listen(lambda *_: None):
        assert sum(t.name == "regrow-notices" for t in threading.enumerate()) == before


@pytest.mark.usefixtures("here")
def test_a_wrong_cloud_is_told_once_and_ends_no_trial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REGROW_CLOUD", "amazon")
    for _ in range(3):
        with NodeNotices().listen(lambda *_: None):
            pass
    (record,) = caplog.records
    assert record.message.startswith(
        "notices of the cloud are not received: REGROW_CLOUD='amazon' is unknown: set it to one of"
    )


@pytest.mark.usefixtures("here")
def test_what_listens_travels_to_a_worker_and_hears_the_cloud_there() -> None:
    service = Service()
    service.answers[INSTANCE_ACTION] = 200, ACTION
    code = """
import pickle, queue, sys
listens, told = pickle.loads(bytes.fromhex(sys.argv[1])), queue.Queue()
with listens.listen(lambda *notice: told.put(notice)):
    print(*told.get(timeout=20))
print([name for name in ("ray", "prefect", "mlflow") if name in sys.modules])
"""
    with serving(service):
        said = printed(
            code,
            pickle.dumps(NodeNotices()).hex(),
            env={
                **os.environ,
                "REGROW_CLOUD": "aws",
                "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{service.address}/",
                "http_proxy": "http://127.0.0.1:1",  # which must not be asked
            },
        )
    assert said.splitlines() == [
        "AWS takes the spot instance back (terminate at 2017-09-18T08:22:00Z) True",
        "[]",
    ]


# ---- SIGTERM


@pytest.mark.usefixtures("here")
def test_sigterm_is_told_within_the_block_and_the_handler_before_comes_back() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    told: Told = queue.Queue()
    try:
        with NodeNotices().listen(into(told)):
            os.kill(os.getpid(), signal.SIGTERM)
            why, node = told.get(timeout=10)
            assert "terminated by another program than regrow (SIGTERM)" in why
            assert not node
        assert not heard
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told.empty()
    assert "regrow-sigterm" not in threads()


@pytest.mark.usefixtures("here")
def test_a_thread_that_listens_leaves_the_signal_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def listen() -> None:
        with NodeNotices().listen(lambda *_: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert seen == [before]


CHILD = """
import os, signal, sys, time
from regrow.infra.ray.notices import NodeNotices
def raise_exit(number, frame):
    raise SystemExit("the handler before")
signal.signal(signal.SIGTERM, raise_exit)
with NodeNotices(grace=GRACE).listen(lambda why, node: print("told", node, flush=True)):
    print("listens", flush=True)
    while True:
        try:
            time.sleep(0.01)  # not long: Python runs no handler for a signal that comes just before a sleep begins
        except BaseException as error:
            print(type(error), flush=True)
"""


@contextmanager
def told(code: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Within the block, a process runs that has received a SIGTERM. `more`: variables."""
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "REGROW_CLOUD": "none", **more},
    )
    assert child.stdout is not None
    with child:
        try:
            assert child.stdout.readline() == "listens\n"
            child.send_signal(signal.SIGTERM)
            assert child.stdout.readline() == "told False\n"
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize(("grace", "signals"), [("3600", 2), ("0.2", 1)])
def test_a_second_sigterm_or_the_end_of_the_grace_ends_the_process(
    grace: str, signals: int
) -> None:
    with told(CHILD.replace("GRACE", grace)) as child:
        if signals == 2:
            child.send_signal(signal.SIGTERM)
        assert child.communicate(timeout=20)[0] == ""
        assert child.returncode == 143


def test_a_second_sigterm_leaves_a_trial_on_an_agents_node_the_time_to_save() -> None:
    saves = CHILD.partition("    while True")[0] + "    print(sys.stdin.readline(), flush=True)"
    with told(saves.replace("GRACE", "3600"), **{NODE: "agent"}) as child:
        child.send_signal(signal.SIGTERM)
        assert child.communicate("saved", timeout=20)[0].strip() == "saved"
        assert child.returncode == 0


@pytest.mark.usefixtures("here")
def test_a_listener_may_need_a_lock_that_the_signal_interrupted() -> None:
    """`tell` must not run inside the handler: there, the main thread would wait for itself."""
    lock, told = threading.Lock(), threading.Event()

    def tell(_why: str, _node: bool) -> None:
        with lock:
            told.set()

    with NodeNotices().listen(tell):
        with lock:
            os.kill(os.getpid(), signal.SIGTERM)
        assert told.wait(10)


# ---- actors of an experiment on an agent's node

STAYS = """
import os, signal, subprocess, sys, threading
from regrow.infra.ray.notices import ignore_sigterm

signal.signal(signal.SIGTERM, lambda *_: os._exit(1))  # as Ray has it
thread = threading.Thread(target=ignore_sigterm)
thread.start()
thread.join()
os.kill(os.getpid(), signal.SIGTERM)
told = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
print(subprocess.run([sys.executable, "-c", told]).returncode)
"""


def test_an_actor_stays_at_sigterm_on_an_agents_node_alone_and_its_programs_do_not() -> None:
    def run(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", STAYS]
        environment = {**os.environ, **more}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    there = run(REGROW_NODE="node1-1")
    assert (there.returncode, there.stdout.strip()) == (0, str(-signal.SIGTERM))
    assert run().returncode == 1
