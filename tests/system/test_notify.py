"""Telling people, by Prefect's blocks and automations, to receivers on this machine: each event of
an experiment once.
"""

from __future__ import annotations

import json
import os
import queue
import socketserver
import threading
from collections.abc import Iterator
from email import message_from_bytes
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.events import Event, Resource

from regrow.infra.log.reading import read_events
from regrow.infra.prefect import notifications
from regrow.infra.prefect.private import reread_settings
from regrow.infra.prefect.server import station_server
from regrow.infra.state.places import Places
from regrow.search.events import Opened
from regrow.search.spec import Spec
from tests.system.conftest import Desk

SECONDS = 60.0


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """A state root whose Prefect server stays, with its address in the environment."""
    made = Places.at(str(tmp_path_factory.mktemp("state"))).writable()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        with station_server(made.prefect_home) as handle:
            for name, value in handle.server.environment().items():
                patch.setenv(name, value)
            yield made


@pytest.fixture
def client(places: Places) -> Iterator[SyncPrefectClient]:
    reread_settings()
    with get_client(sync_client=True) as made:
        yield made


class Received(queue.Queue[Any]):
    """What somebody was told, in order."""

    def next(self) -> Any:
        return self.get(timeout=SECONDS)


@pytest.fixture
def web() -> Iterator[tuple[str, Received]]:
    """The URL of a receiver of webhooks, and what it received."""
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/told?secret=s3cret", received
        server.shutdown()


@pytest.fixture
def mail() -> Iterator[tuple[str, Received]]:
    """The address of a mail server for Apprise, and the messages it took."""
    received = Received()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 here")
            for line in self.rfile:
                word = line.strip().upper()[:4]
                if word == b"DATA":
                    self.say("354 go on")
                    lines = list(iter(self.rfile.readline, b".\r\n"))
                    received.put(message_from_bytes(b"".join(lines), policy=default))
                self.say("221 bye" if word == b"QUIT" else "250 fine")
                if word == b"QUIT":
                    return

        def say(self, words: str) -> None:
            self.wfile.write(f"{words}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        yield (
            f"mailto://127.0.0.1:{port}?from=lab@example.org&to=me@example.org&mode=insecure",
            received,
        )
        server.shutdown()


def spec(name: str, notify: dict[str, Any] | None) -> Spec:
    given = {"notify": notify} if notify is not None else {}
    return Spec.parse(
        {
            "name": name,
            "trainable": "work.py:train",
            "metric": "acc",
            "mode": "max",
            "space": {"lr": {"uniform": [0, 1]}},
            "trials": 1,
            **given,
        }
    )


def happens(client: SyncPrefectClient, name: str, event: str, text: str) -> None:
    """Tells Prefect an event as the driver does."""
    resource = (
        f"regrow.trial.{name}.3" if event.startswith("trial.") else f"regrow.experiment.{name}"
    )
    payload = {"experiment": name, "text": text, "flow_run": str(uuid4())}
    one = Event(
        event=f"regrow.{event}",
        resource=Resource({"prefect.resource.id": resource}),
        payload=payload,
    )
    client.request("POST", "/events", json=[one.model_dump(mode="json")])


def test_an_experiment_tells_that_it_started_how_it_ended_and_where_to_look(
    desk: Desk, places: Places, web: tuple[str, Received]
) -> None:
    file = desk.write(
        "told",
        trials=1,
        max_steps=1,
        notify={"webhook": "$WEB", "events": ["started", "finished"]},
    )
    desk.run("run", file, "--state", places.root, WEB=web[0])
    assert web[1].next()["subject"] == "told: started: 1 trial, up to 2 at a time"
    told = web[1].next()
    assert told["subject"].startswith("told: finished: 1 of 1 trials ended")
    best, link = told["body"].splitlines()
    assert "best: trial 0, score" in best
    [opened] = [one for one in read_events(places.store("told")) if isinstance(one, Opened)]
    server = os.environ["PREFECT_API_URL"].removesuffix("/api")
    assert link == f"{server}/runs/flow-run/{opened.flow_run}"


def test_without_a_server_that_stays_nobody_is_told_and_that_is_said(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    alone = Places.at(str(tmp_path / "alone"))
    alone.prefect_home.mkdir(parents=True)
    (alone.prefect_home / "server.json").write_text(
        json.dumps({"api_url": os.environ["PREFECT_API_URL"]})
    )
    [line] = notifications.ensure(client, spec("digits", {"slack": "$X"}), None, alone)
    assert "needs a station" in line
    assert notifications.ensure(client, spec("digits", None), None, alone) == []


def test_who_asked_for_it_is_told_once_of_what_was_asked_for(
    client: SyncPrefectClient,
    places: Places,
    web: tuple[str, Received],
    mail: tuple[str, Received],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEB", web[0])
    monkeypatch.setenv("MAIL", mail[0])
    wanted = spec("digits", {"webhook": "$WEB", "email": "${MAIL}", "events": ["finished", "best"]})
    for _ in range(3):
        assert notifications.ensure(client, wanted, None, places) == []
    assert len(client.read_automations_by_name("regrow: tell of digits")) == 1
    happens(client, "digits", "experiment.started", "12 trials")
    happens(client, "digits2", "experiment.finished", "another one")
    happens(client, "digits", "trial.best", "new best: trial 3, acc 0.98 at step 5")
    told = web[1].next()
    assert told["subject"] == "digits: new best: trial 3, acc 0.98 at step 5"
    assert told["body"].startswith("new best: trial 3, acc 0.98 at step 5\nhttp://127.0.0.1:")
    message = mail[1].next()
    assert message["Subject"] == told["subject"]
    assert "new best: trial 3" in str(message.get_body(("plain", "html")).get_content())
    happens(client, "digits", "experiment.finished", "finished: 12 of 12 trials ended")
    assert web[1].next()["subject"] == "digits: finished: 12 of 12 trials ended"
    assert mail[1].next()["Subject"] == "digits: finished: 12 of 12 trials ended"
    assert (web[1].qsize(), mail[1].qsize()) == (0, 0)
    for file in places.prefect_home.glob("*"):
        assert not file.is_file() or b"s3cret" not in file.read_bytes(), (
            f"the address can be read in {file}"
        )
    assert notifications.ensure(client, spec("digits", None), None, places) == []
    assert client.read_automations_by_name("regrow: tell of digits") == []


def test_a_schedule_has_one_automation_for_all_of_its_experiments(
    client: SyncPrefectClient,
    places: Places,
    web: tuple[str, Received],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WEB", web[0])
    schedule = client.create_deployment(client.create_flow_from_name("regrow"), "nightly")
    for name in ("nightly-2026-11-22T02", "nightly-2026-11-23T02"):
        assert notifications.ensure(client, spec(name, {"webhook": "$WEB"}), schedule, places) == []
    assert [one.name for one in client.read_automations() if "nightly" in one.name] == [
        "regrow: tell of nightly"
    ]
    happens(client, "nightly-2026-11-23T02", "experiment.failed", "failed, because 3 trials failed")
    assert web[1].next()["subject"] == "nightly-2026-11-23T02: failed, because 3 trials failed"


def test_what_cannot_be_told_is_said_without_the_address(
    client: SyncPrefectClient, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    monkeypatch.setenv("WRONG", "gopher://s3cret")
    channels = ("slack", "teams", "discord", "email", "webhook")
    lines = notifications.ensure(client, spec("a", dict.fromkeys(channels, "$WRONG")), None, places)
    assert len(lines) == len(channels)
    assert "s3cret" not in str(lines)
    [unset] = notifications.ensure(client, spec("a", {"slack": "$NOWHERE"}), None, places)
    assert "the variable NOWHERE is not set" in unset
    [unknown] = notifications.ensure(
        client, spec("a", {"block": "slack-webhook/none"}), None, places
    )
    assert "'slack-webhook/none'" in unknown
    assert client.read_automations_by_name("regrow: tell of a") == []


def test_addresses_of_each_service_make_its_block(
    client: SyncPrefectClient, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = {
        "slack": "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ",
        "teams": "https://prod-1.example.logic.azure.com:443/workflows/643e69f83c8944438d68119179a10a64/triggers/manual/paths/invoke"
        "?api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=KODuebWbDGYFr0z0eu-6Rj8aUKz7108W3wrNJZxFE5A",
        "discord": "https://discord.com/api/webhooks/123456789/abc-DEF_ghi",
        "email": "mailtos://me:secret@smtp.example.org?to=you@example.org",
        "webhook": "https://example.org/hook",
    }
    for channel, address in addresses.items():
        monkeypatch.setenv(f"ADDRESS_{channel.upper()}", address)
    named = {channel: f"$ADDRESS_{channel.upper()}" for channel in addresses}
    assert notifications.ensure(client, spec("All.of_them", named), None, places) == []
    [made] = client.read_automations_by_name("regrow: tell of All.of_them")
    assert len(made.actions) == len(addresses)
    for channel in addresses:
        kind = {
            "slack": "slack-webhook",
            "teams": "ms-teams-webhook",
            "discord": "discord-webhook",
            "email": "slack-webhook",
        }
        name = notifications.block_name("All.of_them", channel)
        assert (
            client.read_block_document_by_name(name, kind.get(channel, "custom-webhook")).name
            == name
        )
