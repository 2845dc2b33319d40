"""`regrow serve` with a model of a test's, and clients that ask it. No test lives here."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from regrow.apps.serving.messages import TOKEN
from tests.system.conftest import Desk

CLIENTS = 8
MODELS = """
import json, os, time
from pydantic import BaseModel
import regrow as rg


class Model(rg.Served):
    class Input(BaseModel):
        x: float
        seconds: float = 0.0

    example = {"x": 1.0}

    def load(self, folder, config):
        self.told = json.loads((folder / "model.json").read_text())
        if self.told.get("dies"):
            os._exit(7)
        self.size = config["model"]["size"]

    def predict(self, inputs):
        time.sleep(max(each.seconds for each in inputs))
        if self.told.get("broken"):
            raise ValueError("this checkpoint is broken")
        if self.told.get("moody") and any(each.x == 2 for each in inputs):
            raise ValueError("this checkpoint does well with its example alone")
        return [{"y": each.x * self.size, "trial": self.told["trial"]} for each in inputs]


class NoInput(rg.Served):
    def load(self, folder, config): ...
    def predict(self, inputs): return inputs
"""


@dataclass
class Server:
    """`regrow serve`, and what it has said so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    port: int = 0
    token: str = ""
    """What it asks for, if it made that itself."""

    @classmethod
    def start(cls, desk: Desk, *arguments: object, **environment: str) -> Server:
        return cls.of(
            desk.start(
                "serve", "kept", "--model", "serve.py:Model", "--port", 0, *arguments, **environment
            )
        )

    @classmethod
    def of(cls, process: subprocess.Popen[str]) -> Server:
        """One that was started otherwise."""
        server = cls(process)
        threading.Thread(target=server._read, daemon=True).start()
        server.port = int(server.said(r"\S+ at http://[^/]*:(\d+)/predict")[1])
        where = server.said(r"with the token in (.+)")[1]
        server.token = "" if where == TOKEN else Path(where).read_text()
        return server

    def _read(self) -> None:
        assert self.process.stdout is not None
        with suppress(ValueError):  # closed at the test's end
            for line in self.process.stdout:
                self.lines.append(line.rstrip("\n"))

    def said(self, pattern: str, seconds: float = 60.0) -> re.Match[str]:
        """The first of its lines that matches, once there is one."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            assert self.process.poll() is None, "\n".join(self.lines)
            time.sleep(0.02)
        raise AssertionError(f"never said: {pattern}\n" + "\n".join(self.lines))

    @property
    def given(self) -> dict[str, str]:
        """The headers of who has the token."""
        return {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {self.token}"} if self.token else {}),
        }

    def get(self, path: str, host: str = "127.0.0.1", **headers: str) -> tuple[int, str]:
        """One request on a connection of its own."""
        request = urllib.request.Request(
            f"http://{host}:{self.port}{path}", headers={**self.given, **headers}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def replicas(self) -> list[int]:
        """The processes that answer."""
        children = psutil.Process(self.process.pid).children()
        return [child.pid for child in children if "regrow.apps.serving.replica" in child.cmdline()]

    def metrics(self) -> dict[str, float]:
        """By name and labels."""
        return {
            name: float(value)
            for name, value in re.findall(
                r"^([a-z]\S*) (\S+)$", self.get("/metrics")[1], re.MULTILINE
            )
        }


class Load:
    """Clients that keep their connections and ask one request after the other, until they are told
    to end, or nobody listens.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.answers: Counter[str] = Counter()
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        return self.answers.total() + len(self.failed)

    def until(self, count: int) -> None:
        deadline = time.monotonic() + 120
        while self.count < count:
            assert time.monotonic() < deadline, f"only {self.count} answers"
            time.sleep(0.02)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        while not self._stop.is_set():
            try:
                connection.request("POST", "/predict", b'{"x": 2}', self.server.given)
                answer = connection.getresponse()
                body, trial = answer.read(), answer.headers.get("Regrow-Trial", "")
                wrong = answer.status != 200 or json.loads(body) != {
                    "y": 2.0 * (int(trial) + 1),
                    "trial": int(trial),
                }
                why = f"{answer.status} {body!r}" if wrong else ""
                if answer.will_close:  # of a server that drains
                    connection.close()
            except ConnectionRefusedError:  # it has ended, and says so: nothing was asked of it
                break
            except (OSError, http.client.HTTPException) as error:
                why, trial = repr(error), ""
                connection.close()
            with self._lock:
                if why:
                    self.failed.append(why)
                else:
                    self.answers[trial] += 1
        connection.close()
