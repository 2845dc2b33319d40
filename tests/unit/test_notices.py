"""Notices that a process or its node goes away: real signals, and a server that answers as the clouds document."""

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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from regrow.infra import notices
from regrow.infra.metadata import Aws, Azure, Cloud, Gcp, Unanswered, cloud
from regrow.infra.notices import NodeNotices, Poller
from regrow.tasks.errors import UserError

Answer = tuple[int, str]
ACTION = '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
TOKEN = "/latest/api/token"
INSTANCE_ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
PREEMPT = (
    '{"DocumentIncarnation": 2, "Events": [{"EventId": "602d9444-d2cd-49c7-8624-8643e7171297", "EventType": "%s",'
    ' "ResourceType": "VirtualMachine", "Resources": ["%s"], "EventStatus": "Scheduled",'
    ' "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT", "Description": "", "EventSource": "Platform", "DurationInSeconds": -1}]}'
)


class Service:
    """A metadata service. `answers` by path; `required` are headers without which it refuses, as the clouds' do."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.required: dict[str, str] = {}
        self.refusal = 400
        self.tokens: list[str] = []
        """Those that AWS's would accept; a PUT makes the next one."""
        self.asked: list[str] = []
        self.delay = threading.Event()
        self.delay.set()
        """Cleared, nothing is answered until it is set again."""
        self.address = ""

    def answer(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        self.asked.append(f"{method} {path}")
        self.delay.wait(20)
        if method == "PUT":
            if path != TOKEN or not headers.get("x-aws-ec2-metadata-token-ttl-seconds", "").isdigit():
                return 400, ""
            if (refused := self.answers.get(TOKEN)) is not None:
                return refused
            self.tokens.append(f"token-{len(self.asked)}")
            return 200, self.tokens[-1]
        if path.startswith("/latest/") and TOKEN not in self.answers and headers.get("x-aws-ec2-metadata-token") not in self.tokens:
            return 401, ""
        if any(headers.get(name) != value for name, value in self.required.items()):
            return self.refusal, ""
        return self.answers.get(path, (404, "not found"))


@contextmanager
def serving(service: Service) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = service.answer(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())
            except OSError:  # who asked has given up
                pass

        do_PUT = do_GET  # noqa: N815 - as http.server wants it

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.address = f"127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield
        service.delay.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # which must not be asked
    service = Service()
    with serving(service):
        yield service


@pytest.fixture
def aws(service: Service) -> Aws:
    return Aws(f"http://{service.address}")


@pytest.fixture
def gcp(service: Service) -> Gcp:
    service.required, service.refusal = {"metadata-flavor": "Google"}, 403
    service.answers = {PREEMPTED: (200, "FALSE"), MAINTENANCE: (200, "NONE")}
    return Gcp(service.address)


@pytest.fixture
def azure(service: Service) -> Azure:
    service.required = {"metadata": "true"}
    service.answers = {NAME: (200, "FrontEnd_IN_0"), EVENTS: (200, '{"DocumentIncarnation": 1, "Events": []}')}
    return Azure(f"http://{service.address}")


# ---- what the clouds say -----------------------------------------------------------------------------------------------


def test_aws_says_nothing_until_the_instance_is_to_be_interrupted(service: Service, aws: Aws) -> None:
    assert aws.look() is None
    service.answers[INSTANCE_ACTION] = 200, ACTION
    assert aws.look() == "AWS takes the spot instance back (terminate at 2017-09-18T08:22:00Z)"
    assert service.asked == [f"PUT {TOKEN}", f"GET {INSTANCE_ACTION}", f"GET {INSTANCE_ACTION}"]


def test_an_expired_token_is_replaced_within_the_same_question(service: Service, aws: Aws) -> None:
    assert aws.look() is None
    service.tokens.clear()
    service.answers[INSTANCE_ACTION] = 200, ACTION
    assert aws.look() is not None
    assert service.asked[2:] == [f"GET {INSTANCE_ACTION}", f"PUT {TOKEN}", f"GET {INSTANCE_ACTION}"]


def test_an_aws_service_that_grants_no_tokens_is_asked_without(service: Service, aws: Aws) -> None:
    service.answers = {TOKEN: (405, ""), INSTANCE_ACTION: (200, ACTION)}
    assert aws.look() is not None


def test_a_token_that_is_never_accepted_does_not_go_in_circles(service: Service, aws: Aws) -> None:
    service.answers = {TOKEN: (200, "useless")}
    service.answers[INSTANCE_ACTION] = 401, ""
    with pytest.raises(Unanswered, match="401"):
        aws.look()
    assert len(service.asked) == 4


def test_the_rebalance_recommendation_counts_only_where_wanted(service: Service, aws: Aws) -> None:
    service.answers[REBALANCE] = 200, '{"noticeTime": "2020-10-26T15:18:45Z"}'
    assert aws.look() is None
    why = Aws(f"http://{service.address}", rebalance=True).look()
    assert why == "AWS recommends to leave the spot instance (noticed at 2020-10-26T15:18:45Z)"


def test_gcp_says_so_when_it_preempts_or_must_stop_the_instance(service: Service, gcp: Gcp) -> None:
    assert gcp.look() is None
    service.answers[MAINTENANCE] = 200, "MIGRATE_ON_HOST_MAINTENANCE"
    assert gcp.look() is None
    service.answers[MAINTENANCE] = 200, "TERMINATE_ON_HOST_MAINTENANCE"
    assert gcp.look() == "GCP terminates the instance for maintenance of its host"
    service.answers[PREEMPTED] = 200, "TRUE"
    assert gcp.look() == "GCP preempts the instance"


def test_azure_speaks_of_many_machines_and_only_ours_counts(service: Service, azure: Azure) -> None:
    assert azure.look() is None
    service.answers[EVENTS] = 200, PREEMPT % ("Preempt", "BackEnd_IN_0")
    assert azure.look() is None
    service.answers[EVENTS] = 200, PREEMPT % ("Freeze", "frontend_in_0")
    assert azure.look() is None
    service.answers[EVENTS] = 200, PREEMPT % ("Preempt", "frontend_in_0")
    assert azure.look() == "Azure takes the machine away (Preempt, not before Mon, 11 Apr 2022 22:26:58 GMT)"
    assert not any(asked.startswith("POST") for asked in service.asked)


@pytest.mark.parametrize("body", ["", "<html>", "[]", "null", '"TRUE"', '{"action": 7}', '{"Events": 3}', "\x00" * 100])
@pytest.mark.parametrize("which", ["aws", "gcp", "azure"])
def test_what_no_cloud_would_say_is_no_notice(service: Service, which: str, body: str, request: pytest.FixtureRequest) -> None:
    source: Cloud = request.getfixturevalue(which)
    service.answers = dict.fromkeys((INSTANCE_ACTION, PREEMPTED, EVENTS), (200, body)) | {NAME: (200, "vm")}
    with pytest.raises(Unanswered):
        source.look()


@pytest.mark.parametrize("which", ["aws", "gcp", "azure"])
def test_a_service_that_is_slow_or_fails_is_given_up_for_now(
    service: Service, which: str, request: pytest.FixtureRequest
) -> None:
    source: Cloud = request.getfixturevalue(which)
    service.answers = dict.fromkeys((INSTANCE_ACTION, PREEMPTED, EVENTS, NAME), (503, ""))
    with pytest.raises(Unanswered, match="503"):
        source.look()
    service.delay.clear()
    begun = time.monotonic()
    with pytest.raises(Unanswered, match="timed out"):
        source.look()
    assert time.monotonic() - begun < 10


def test_nobody_there_is_no_answer() -> None:
    with pytest.raises(Unanswered, match="refused"):
        Aws("http://127.0.0.1:1").look()
    with pytest.raises(Unanswered):
        Aws("no address").look()


# ---- which cloud -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "says", "kind"),
    [
        ("sys_vendor", "Amazon EC2", Aws),
        ("bios_version", "4.11.amazon", Aws),
        ("product_name", "Google Compute Engine", Gcp),
        ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77", Azure),
        ("sys_vendor", "Microsoft Corporation", type(None)),
        ("sys_vendor", "QEMU", type(None)),
    ],
)
def test_the_cloud_is_known_by_the_machines_firmware(tmp_path: Path, file: str, says: str, kind: type) -> None:
    (tmp_path / file).write_text(f"{says}\n")
    assert isinstance(cloud({}, tmp_path), kind)
    assert isinstance(cloud({"REGROW_CLOUD": "auto"}, tmp_path), kind)
    assert cloud({"REGROW_CLOUD": "none"}, tmp_path) is None
    assert isinstance(cloud({"REGROW_CLOUD": "GCP"}, tmp_path), Gcp)


def test_aws_can_be_switched_off_by_its_own_variable() -> None:
    assert cloud({"REGROW_CLOUD": "aws", "AWS_EC2_METADATA_DISABLED": "true"}) is None


def test_an_unknown_cloud_is_told_to_the_user() -> None:
    with pytest.raises(UserError, match="REGROW_CLOUD='aw' is unknown: set it to one of auto, aws, gcp, azure, none, or unset it"):
        cloud({"REGROW_CLOUD": "aw"})


# ---- listening ---------------------------------------------------------------------------------------------------------

Told = queue.Queue[tuple[str, bool]]


def into(told: Told) -> Callable[[str, bool], None]:
    return lambda why, node: told.put((why, node))


class Source:
    """A cloud whose answers the test gives; `asked` counts."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self.answers, self.asked, self.done = list(answers), 0, threading.Event()

    def look(self) -> str | None:
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
def test_a_wrong_cloud_is_told_once_and_ends_no_trial(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("REGROW_CLOUD", "amazon")
    for _ in range(3):
        with NodeNotices().listen(lambda *_: None):
            pass
    (record,) = caplog.records
    assert record.message.startswith("no notice of the cloud will be heard: REGROW_CLOUD='amazon' is unknown: set it to one of")


@pytest.mark.usefixtures("here")
def test_what_listens_travels_to_a_worker_and_hears_the_cloud_there(service: Service) -> None:
    service.answers[INSTANCE_ACTION] = 200, ACTION
    code = """
import pickle, queue, sys
listens, told = pickle.loads(bytes.fromhex(sys.argv[1])), queue.Queue()
with listens.listen(lambda *notice: told.put(notice)):
    print(*told.get(timeout=20))
print([name for name in ("ray", "prefect", "mlflow") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, pickle.dumps(NodeNotices()).hex()], text=True, capture_output=True, timeout=60, check=True,
        env={**os.environ, "REGROW_CLOUD": "aws", "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{service.address}/"},
    )
    assert done.stdout.splitlines() == ["AWS takes the spot instance back (terminate at 2017-09-18T08:22:00Z) True", "[]"]


# ---- SIGTERM -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_sigterm_is_told_within_the_block_and_the_handler_before_comes_back() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    told: Told = queue.Queue()
    try:
        with NodeNotices().listen(into(told)):
            os.kill(os.getpid(), signal.SIGTERM)
            assert told.get(timeout=10) == ("the worker process was told to end (SIGTERM)", False)
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
from regrow.infra.notices import NodeNotices
def raise_exit(number, frame):
    raise SystemExit("the handler before")
signal.signal(signal.SIGTERM, raise_exit)
with NodeNotices(grace=GRACE).listen(lambda why, node: print("told", node, flush=True)):
    print("listens", flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException as error:
            print(type(error), flush=True)
"""


@pytest.mark.parametrize(("grace", "signals"), [("60", 2), ("0.2", 1)])
def test_a_second_sigterm_or_the_end_of_the_grace_ends_the_process(grace: str, signals: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.replace("GRACE", grace)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "REGROW_CLOUD": "none"},
    )
    assert child.stdout is not None
    with child:
        try:
            assert child.stdout.readline() == "listens\n"
            for said in ["told False\n", ""][:signals]:
                child.send_signal(signal.SIGTERM)
                assert child.stdout.readline() == said
            assert child.wait(timeout=20) == 143
            assert child.stdout.read() == ""
        finally:
            child.kill()


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
