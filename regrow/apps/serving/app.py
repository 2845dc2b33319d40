"""The HTTP application of one answering process: its routes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from regrow.apps.serving import documented
from regrow.apps.serving.batching import Hung, Overloaded
from regrow.apps.serving.limits import Body, BudgetFull, CsvCounter, JsonCounter, Rooms, TooMuch
from regrow.apps.serving.metrics import Counted
from regrow.apps.serving.mlflow_model import CSV, ServedMlflowModel
from regrow.apps.serving.models import LoadedCheckpoint, Models
from regrow.apps.serving.parquet_sizes import PARQUET
from regrow.apps.serving.served import Served
from regrow.infra.machine.guard import JSON, EntryGuard, Rules, Token
from regrow.tasks.output.traces import in_a_line, user_trace

MOST_ERRORS = 20
"""Maximum number of errors that an answer lists for one request's inputs."""
HTTP_500, HTTP_504 = 500, 504
"""Status if the model could not answer, and if it did not in time."""
MOST_LISTED = 10_000
"""If a request has more errors, only their number is reported: pydantic's list is 1 KB an error."""
MOST_LETTERS = 200
"""Maximum length of a name or a message in a reported error."""
SAMPLE_BYTES = 1 << 20
"""A larger input is not kept as the last input."""
PART_BYTES = 64 * 1024
"""Bytes of a body that are counted at a time, which takes some milliseconds."""
PARSED_AT_ONCE = 16 * 1024
"""A body up to this size is parsed on the event loop: passing it to a thread takes longer."""
REST_SECONDS = 0.25
"""Maximum pause after a large body was parsed, in which other requests are answered."""
OPEN = frozenset({"/healthz", "/readyz"})
"""Paths without a token: probes have none, and these answers reveal nothing about the model."""
_LOG = logging.getLogger("regrow.apps.serving")


class Refusal(Exception):
    """A refused request: its status and detail."""

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(status, detail)
        self.status, self.detail = status, detail


class Answers:
    path = "/predict"
    bodies: tuple[str, ...] = ()
    """Content types that it takes there beside JSON."""

    def __init__(
        self, kind: type[Served], models: Models, metrics: Counted, experiment: str, gate: str = ""
    ) -> None:
        self.kind, self.models, self.metrics, self.experiment = kind, models, metrics, experiment
        self.gate = gate
        self.sample: str | None = None
        """The last input that a model has answered, as JSON."""
        self._input: type[BaseModel] = kind.Input
        self._rooms = Rooms(kind)
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="parser")
        self._rests_until = 0.0
        self._inputs = TypeAdapter(list[kind.Input])  # type: ignore[name-defined]  # a type that is known at run time

    def app(self, secret: bytes, *, beyond: bool = False) -> FastAPI:
        """Make the application; every path but `OPEN` requires the token of `secret`.

        `beyond`: it listens on more than the loopback, so that its host names are unknown here.
        """
        made = FastAPI(title=self.experiment, docs_url=None, redoc_url=None, openapi_url=None)
        made.add_api_route(self.path, self.predict, methods=["POST"], response_model=None)
        for path, answer in self.info_routes.items():
            made.add_api_route(path, answer, methods=["GET", "HEAD"], response_model=None)
        rules = Rules(
            hosts=None if beyond else (),
            open=OPEN,
            bodies=lambda path: (*JSON, *self.bodies) if path == self.path else JSON,
        )
        made.add_middleware(EntryGuard, entry=Token(secret), rules=rules)
        return made

    @property
    def info_routes(self) -> dict[str, Callable[[], Coroutine[Any, Any, Response]]]:
        """The routes with information about the server, by path."""
        return {
            "/healthz": self.healthz,
            "/readyz": self.readyz,
            "/version": self.version,
            "/metrics": self.exposition,
            "/docs": self.docs,
            "/openapi.json": self.openapi,
        }

    # ---- predictions

    async def predict(self, request: Request) -> Response:
        """Answer one input, or a list of inputs; the answer has the same form."""
        began = time.perf_counter()
        model: LoadedCheckpoint | None = None
        body = Body(self._rooms, self.kind.max_body, self._counting(request))
        try:
            await self._fill(body, request)
            sample = self._sample(body.content)
            inputs, several = await self._parsed(bytes(body.content), request)
            body.release()
            model = self.models.pick()
            if model is None:
                raise Refusal(503, "no model is loaded yet")
            answer = await self._computed(model, inputs, several=several)
            if sample is not None and inputs and not several:
                self.sample = sample
        except Refusal as refusal:
            retry = {"Retry-After": "1"} if refusal.status == 503 else {}
            answer = JSONResponse({"detail": refusal.detail}, refusal.status, retry)
        finally:
            body.close()
        if model is not None:
            answer.headers.update(model.headers)
            model.answered += 1
            model.failed += answer.status_code in (HTTP_500, HTTP_504)
        trial = "" if model is None else str(model.chosen.trial)
        self.metrics.answered(trial, answer.status_code, time.perf_counter() - began)
        return answer

    async def _fill(self, body: Body, request: Request) -> None:
        length = request.headers.get("content-length", "")
        coded = request.headers.get("content-encoding", "")
        if coded.lower() not in ("", "identity"):
            raise Refusal(415, f"Content-Encoding {coded[:MOST_LETTERS]}: send the body as it is")
        try:
            if length.isdigit() and int(length) > self.kind.max_body:
                raise TooMuch(f"the body is larger than {self.kind.max_body} bytes")
            async for part in request.stream():
                for start in range(0, len(part), PART_BYTES):
                    body.add(part[start : start + PART_BYTES])
                    if len(part) > PART_BYTES:
                        await asyncio.sleep(0)  # lets other requests be answered
        except ClientDisconnect:
            # The client has gone, but the status is counted.
            raise Refusal(400, "the body ended early") from None
        except TooMuch as much:
            raise Refusal(413, str(much)) from None
        except BudgetFull:
            raise Refusal(503, "the requests that are under way hold too much already") from None

    def _counting(self, request: Request) -> JsonCounter | CsvCounter | None:
        """Return the counter for the values of a body; None: they are not counted."""
        return JsonCounter(self.kind.max_items)

    def _sample(self, body: bytearray) -> str | None:
        """Return the body to keep for the next warm-up, None if it is too large."""
        return body.decode(errors="replace") if len(body) <= SAMPLE_BYTES else None

    async def _parsed(self, body: bytes, request: Request) -> tuple[list[Any], bool]:
        """See _read; a large body is parsed in a thread, one at a time."""
        if len(body) <= PARSED_AT_ONCE:
            return self._read(body, request)
        return await asyncio.get_running_loop().run_in_executor(
            self._parser, self._in_turn, body, request
        )

    def _in_turn(self, body: bytes, request: Request) -> tuple[list[Any], bool]:
        """See _read; pauses first, as pydantic holds the GIL and other requests would wait."""
        time.sleep(max(0.0, self._rests_until - time.monotonic()))
        began = time.monotonic()
        try:
            return self._read(body, request)
        finally:
            ended = time.monotonic()
            self._rests_until = ended + min(ended - began, REST_SECONDS)

    def _read(self, body: bytes, request: Request) -> tuple[list[Any], bool]:
        """Return the inputs, and whether they came as a list."""
        several = body.lstrip()[:1] == b"["
        try:
            inputs = (
                self._inputs.validate_json(body)
                if several
                else [self._input.model_validate_json(body)]
            )
        except ValidationError as error:
            raise Refusal(422, _describe_errors(error)) from None
        except BaseException as error:  # noqa: BLE001 - raised by the user's validators
            _LOG.error(
                "%s raised %s\n%s",
                self._input.__name__,
                in_a_line(error),
                user_trace(error).rstrip(),
            )
            raise Refusal(
                500, f"Input raised {type(error).__name__}; the log of the server has its traceback"
            ) from None
        if len(inputs) > self.kind.max_inputs:
            raise Refusal(
                413, f"{len(inputs)} inputs are more than the {self.kind.max_inputs} of one request"
            )
        return inputs, several

    async def _computed(
        self, model: LoadedCheckpoint, inputs: list[Any], *, several: bool
    ) -> Response:
        try:
            results = await model.batcher.ask(inputs)
        except Overloaded:
            raise Refusal(503, f"{self.kind.max_waiting} inputs are waiting already") from None
        if any(isinstance(one, Hung) for one in results):
            why = f"predict did not return within {self.kind.max_seconds:g} s (max_seconds)"
            _LOG.error("trial %d: %s; this process is replaced", model.chosen.trial, why)
            raise Refusal(HTTP_504, why)
        if (
            wrong := next((one for one in results if not isinstance(one, bytes)), None)
        ) is not None:
            _LOG.error(
                "trial %d: predict raised %s\n%s",
                model.chosen.trial,
                in_a_line(wrong),
                user_trace(wrong).rstrip(),
            )
            # The exception's message is not sent, since it may contain confidential data.
            raise Refusal(
                500,
                f"predict raised {type(wrong).__name__}; the log of the server has its traceback",
            )
        outputs = [one for one in results if isinstance(one, bytes)]
        if sum(map(len, outputs)) > self.kind.max_answer:
            raise Refusal(
                500, f"the answer is larger than {self.kind.max_answer} bytes (max_answer)"
            )
        return self._response(outputs, several=several)

    def _response(self, outputs: list[bytes], *, several: bool) -> Response:
        body = b"[" + b",".join(outputs) + b"]" if several else outputs[0]
        return Response(body, media_type="application/json")

    # ---- information about the server

    async def healthz(self) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self) -> Response:
        if self.models.main is None:
            return PlainTextResponse("no model is loaded yet\n", 503)
        return PlainTextResponse("ok\n")

    async def version(self) -> Response:
        main, canary = self.models.main, self.models.canary
        return JSONResponse(
            {
                "experiment": (main is not None and main.chosen.experiment) or self.experiment,
                **({"gate": self.gate} if self.gate else {}),
                **(_describe(main) if main is not None else {"trial": None}),
                "canary": (
                    None
                    if canary is None
                    else {**_describe(canary), "percent": round(100 * self.models.share, 6)}
                ),
            }
        )

    async def exposition(self) -> Response:
        """Answer the metrics of all processes together."""
        return Response(self.metrics.text(), headers={"Content-Type": self.metrics.content_type})

    async def openapi(self) -> Response:
        return JSONResponse(documented.openapi(self.kind, self.experiment))

    async def docs(self) -> Response:
        """Answer the same as a page for people."""
        return HTMLResponse(
            documented.page(self.kind, self.experiment),
            headers={"Content-Security-Policy": documented.policy()},
        )


def _describe(model: LoadedCheckpoint) -> dict[str, Any]:
    chosen = model.chosen
    return {
        "trial": chosen.trial,
        "step": chosen.step,
        "metric": chosen.metric,
        "value": chosen.value,
        "manifest": chosen.manifest,
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(chosen.since)),
    }


def _describe_errors(error: ValidationError) -> list[dict[str, Any]]:
    """Return what is wrong with the inputs, without their values, which may be large."""
    if error.error_count() > MOST_LISTED:
        message = f"{error.error_count()} values are wrong; send fewer to see which"
        return [{"type": "too_many_errors", "loc": ["body"], "msg": message}]
    listed = error.errors(include_url=False, include_context=False, include_input=False)[
        :MOST_ERRORS
    ]
    return [
        {
            "type": one["type"],
            "msg": one["msg"][:MOST_LETTERS],
            "loc": [
                "body",
                *(key[:MOST_LETTERS] if isinstance(key, str) else key for key in one["loc"]),
            ],
        }
        for one in listed
    ]


class Invocations(Answers):
    """Answers as `mlflow models serve` does: a request is passed to the model unchanged."""

    path = "/invocations"
    bodies = (CSV, PARQUET)

    @property
    def info_routes(self) -> dict[str, Callable[[], Coroutine[Any, Any, Response]]]:
        """See Answers; the model's signature in MLflow describes its inputs."""
        routes = {
            path: answer
            for path, answer in super().info_routes.items()
            if path not in ("/docs", "/openapi.json")
        }
        return {**routes, "/ping": self.readyz}

    def _counting(self, request: Request) -> JsonCounter | CsvCounter | None:
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind == PARQUET:  # see ServedMlflowModel
            return None
        return (CsvCounter if kind == CSV else JsonCounter)(self.kind.max_items)

    def _sample(self, body: bytearray) -> str | None:
        return None

    def _read(self, body: bytes, request: Request) -> tuple[list[Any], bool]:
        return [
            self.kind.Input(
                data=body, content_type=request.headers.get("content-type", "application/json")
            )
        ], False

    def _response(self, outputs: list[bytes], *, several: bool) -> Response:
        answer = self.kind.Output.model_validate_json(outputs[0])
        return Response(answer.body, answer.status, media_type=answer.content_type)


def answers(
    kind: type[Served], models: Models, metrics: Counted, experiment: str, gate: str = ""
) -> Answers:
    return (Invocations if kind is ServedMlflowModel else Answers)(
        kind, models, metrics, experiment, gate
    )
