"""The application of one process that answers: which address says what."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from regrow.serving import documented
from regrow.serving.access import Access
from regrow.serving.batching import Overloaded
from regrow.serving.metrics import Counted
from regrow.serving.mlflow_model import Logged
from regrow.serving.models import Model, Models
from regrow.serving.served import Served
from regrow.tasks.traces import in_a_line, user_trace

MOST_ERRORS = 20
"""That an answer tells of one request's inputs."""
HTTP_500 = 500
"""What the model could not answer."""
SAMPLE_BYTES = 1 << 20
"""A last valid input that is larger is not kept."""
_LOG = logging.getLogger("regrow.serving")


class Refusal(Exception):
    """A request that is not answered: the status, and what is said."""

    def __init__(self, status: int, detail: Any) -> None:
        super().__init__(status, detail)
        self.status, self.detail = status, detail


class Answers:
    """The routes, and what they share."""

    path = "/predict"

    def __init__(self, kind: type[Served], models: Models, metrics: Counted, experiment: str, gate: str = "") -> None:
        self.kind, self.models, self.metrics, self.experiment = kind, models, metrics, experiment
        self.gate = gate
        self.sample: str | None = None
        """The last valid input, as JSON."""
        self._input: type[BaseModel] = kind.Input
        self._inputs = TypeAdapter(list[kind.Input])  # type: ignore[name-defined]  # a type that is known when it runs

    def app(self, secret: bytes | None = None) -> FastAPI:
        """The application; with a `secret` its token is asked for everywhere but at /healthz and /readyz (access.py)."""
        made = FastAPI(title=self.experiment, docs_url=None, redoc_url=None, openapi_url=None)
        made.add_api_route(self.path, self.predict, methods=["POST"], response_model=None)
        for path, answer in self.told_about.items():
            made.add_api_route(path, answer, methods=["GET", "HEAD"], response_model=None)
        made.add_middleware(Access, secret=secret)
        return made

    @property
    def told_about(self) -> dict[str, Callable[[], Coroutine[Any, Any, Response]]]:
        """What can be asked about it, by address."""
        return {
            "/healthz": self.healthz, "/readyz": self.readyz, "/version": self.version, "/metrics": self.told,
            "/docs": self.docs, "/openapi.json": self.openapi,
        }

    # ---- predictions -------------------------------------------------------------------------------------------------

    async def predict(self, request: Request) -> Response:
        """One input, or a list of inputs; the answer has the same form."""
        began = time.perf_counter()
        model: Model | None = None
        try:
            inputs, several = self._read(await self._body(request), request)
            model = self.models.pick()
            if model is None:
                raise Refusal(503, "no model is loaded yet")
            answer = await self._computed(model, inputs, several=several)
        except Refusal as refusal:
            retry = {"Retry-After": "1"} if refusal.status == 503 else {}
            answer = JSONResponse({"detail": refusal.detail}, refusal.status, retry)
        if model is not None:
            answer.headers.update(model.headers)
            model.answered += 1
            model.failed += answer.status_code == HTTP_500
        trial = "" if model is None else str(model.chosen.trial)
        self.metrics.answered(trial, answer.status_code, time.perf_counter() - began)
        return answer

    async def _body(self, request: Request) -> bytes:
        most = self.kind.max_body
        told = request.headers.get("content-length", "")
        parts, size = [], int(told) if told.isdigit() else 0
        if size <= most:
            size = 0
            try:
                async for part in request.stream():
                    parts.append(part)
                    if (size := size + len(part)) > most:
                        break
                else:
                    return b"".join(parts)
            except ClientDisconnect:
                raise Refusal(400, "the body ended early") from None  # heard by nobody, but counted
        raise Refusal(413, f"the body is larger than {most} bytes")

    def _read(self, body: bytes, request: Request) -> tuple[list[Any], bool]:
        """The inputs, and whether they came as a list."""
        several = body.lstrip()[:1] == b"["
        try:
            inputs = self._inputs.validate_json(body) if several else [self._input.model_validate_json(body)]
        except ValidationError as error:
            # Without what was given: it may be large, and the client has it.
            said = error.errors(include_url=False, include_context=False, include_input=False)[:MOST_ERRORS]
            raise Refusal(422, [{**one, "loc": ["body", *one["loc"]]} for one in said]) from None
        if len(inputs) > self.kind.max_inputs:
            raise Refusal(413, f"{len(inputs)} inputs are more than the {self.kind.max_inputs} of one request")
        if len(body) <= SAMPLE_BYTES and inputs and not several:
            self.sample = body.decode()
        return inputs, several

    async def _computed(self, model: Model, inputs: list[Any], *, several: bool) -> Response:
        try:
            results = await model.batcher.ask(inputs)
        except Overloaded:
            raise Refusal(503, f"{self.kind.max_waiting} inputs are waiting already") from None
        if (wrong := next((one for one in results if not isinstance(one, bytes)), None)) is not None:
            _LOG.error("trial %d: predict raised %s\n%s", model.chosen.trial, in_a_line(wrong), user_trace(wrong).rstrip())
            # Not what it says: that may hold what is nobody's business.
            raise Refusal(500, f"predict raised {type(wrong).__name__}; the log of the server has its traceback")
        return self._response([one for one in results if isinstance(one, bytes)], several=several)

    def _response(self, outputs: list[bytes], *, several: bool) -> Response:
        body = b"[" + b",".join(outputs) + b"]" if several else outputs[0]
        return Response(body, media_type="application/json")

    # ---- what is asked about it --------------------------------------------------------------------------------------

    async def healthz(self) -> Response:
        """The process lives."""
        return PlainTextResponse("ok\n")

    async def readyz(self) -> Response:
        """It can answer."""
        if self.models.main is None:
            return PlainTextResponse("no model is loaded yet\n", 503)
        return PlainTextResponse("ok\n")

    async def version(self) -> Response:
        """Which checkpoints answer."""
        main, canary = self.models.main, self.models.canary
        return JSONResponse(
            {
                "experiment": (main is not None and main.chosen.experiment) or self.experiment,
                **({"gate": self.gate} if self.gate else {}),
                **(_told(main) if main is not None else {"trial": None}),
                "canary": None if canary is None else {**_told(canary), "percent": round(100 * self.models.share, 6)},
            }
        )

    async def told(self) -> Response:
        """What was counted, of all processes together."""
        return Response(self.metrics.text(), headers={"Content-Type": self.metrics.content_type})

    async def openapi(self) -> Response:
        """What is asked and answered, for machines."""
        return JSONResponse(documented.openapi(self.kind, self.experiment))

    async def docs(self) -> Response:
        """The same for people."""
        return HTMLResponse(documented.page(self.kind, self.experiment), headers={"Content-Security-Policy": documented.POLICY})


def _told(model: Model) -> dict[str, Any]:
    told = model.chosen
    return {
        "trial": told.trial, "step": told.step, "metric": told.metric, "value": told.value, "manifest": told.manifest,
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(told.since)),
    }


class Invocations(Answers):
    """Answers as `mlflow models serve` does: a request goes to the model as it came."""

    path = "/invocations"

    @property
    def told_about(self) -> dict[str, Callable[[], Coroutine[Any, Any, Response]]]:
        """See Answers; what an input is stands in MLflow, with the model."""
        told = {path: answer for path, answer in super().told_about.items() if path not in ("/docs", "/openapi.json")}
        return {**told, "/ping": self.readyz}

    def _read(self, body: bytes, request: Request) -> tuple[list[Any], bool]:
        return [self.kind.Input(data=body, content_type=request.headers.get("content-type", "application/json"))], False

    def _response(self, outputs: list[bytes], *, several: bool) -> Response:
        answer = self.kind.Output.model_validate_json(outputs[0])
        return Response(answer.body, answer.status, media_type=answer.content_type)


def answers(kind: type[Served], models: Models, metrics: Counted, experiment: str, gate: str = "") -> Answers:
    """What answers with models of this class."""
    return (Invocations if kind is Logged else Answers)(kind, models, metrics, experiment, gate)
