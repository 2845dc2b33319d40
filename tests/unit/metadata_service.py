"""A metadata service as the clouds document theirs. No test lives here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, str]
ACTION = '{"action": "terminate", "time": "2017-09-18T08:22:00Z"}'
TOKEN = "/latest/api/token"
INSTANCE_ACTION = "/latest/meta-data/spot/instance-action"


class Service:
    """A metadata service. `answers` by path; `required` are headers without which it refuses, as
    the clouds' do.
    """

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
            if (
                path != TOKEN
                or not headers.get("x-aws-ec2-metadata-token-ttl-seconds", "").isdigit()
            ):
                return 400, ""
            if (refused := self.answers.get(TOKEN)) is not None:
                return refused
            self.tokens.append(f"token-{len(self.asked)}")
            return 200, self.tokens[-1]
        if (
            path.startswith("/latest/")
            and TOKEN not in self.answers
            and headers.get("x-aws-ec2-metadata-token") not in self.tokens
        ):
            return 401, ""
        if any(headers.get(name) != value for name, value in self.required.items()):
            return self.refusal, ""
        return self.answers.get(path, (404, "not found"))


@contextmanager
def serving(service: Service) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = service.answer(
                self.command, self.path, {k.lower(): v for k, v in self.headers.items()}
            )
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
