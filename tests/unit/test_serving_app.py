"""What the processes that answer say: predictions, refusals, versions, counts; and that a switch is
seen by nobody who asks.
"""

from __future__ import annotations

import asyncio
import gc
import html
import re
import threading
import weakref
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from pydantic import BaseModel

from tests.unit.answering import TOKEN, Answering, Double

JSON = {"Content-Type": "application/json"}


class One(Double):
    """Its predictions are those that a test names."""

    outputs: ClassVar[Any] = None

    def predict(self, inputs: list[Any]) -> Any:
        return type(self).outputs(inputs)


def predicting(outputs: Any, **attributes: Any) -> type[One]:
    return type("Some", (One,), {"outputs": staticmethod(outputs), **attributes})


# ---- predictions


def test_one_input_has_one_output_and_a_list_a_list() -> None:
    serving = Answering()
    assert serving.post({"x": 2}).json() == 4.0
    assert serving.post([{"x": 2}, {"x": 3}]).json() == [4.0, 6.0]
    assert serving.post([]).json() == []


def test_the_answer_names_the_trial_and_the_step() -> None:
    answer = Answering().post({"x": 2})
    assert (answer.headers["Regrow-Trial"], answer.headers["Regrow-Step"]) == ("7", "3")


@pytest.mark.parametrize(
    ("body", "where", "said"),
    [
        ({"y": 1}, ["body", "x"], "Field required"),
        (
            {"x": "many"},
            ["body", "x"],
            "Input should be a valid number, unable to parse string as a number",
        ),
        ([{"x": 1}, {"x": -1}], ["body", 1, "x"], "Input should be greater than or equal to 0"),
        ("text", ["body"], "Input should be an object"),
    ],
)
def test_what_is_no_input_is_refused_with_the_field(body: Any, where: list[Any], said: str) -> None:
    answer = Answering().post(body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == where
    assert answer.json()["detail"][0]["msg"] == said


def test_what_is_no_json_is_refused() -> None:
    answer = Answering().post(content=b'{"x": ', headers=JSON)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["type"] == "json_invalid"


def test_a_long_list_of_wrong_inputs_has_a_short_answer_without_what_was_sent() -> None:
    answer = Answering().post([{"x": "secret"}] * 1000)
    assert len(answer.json()["detail"]) == 20
    assert "secret" not in answer.text


def test_a_body_that_is_too_large_is_refused_also_where_its_length_is_not_told() -> None:
    serving = Answering(predicting(lambda inputs: [], max_body=100))

    async def parts() -> Any:
        for _ in range(20):
            yield b" " * 10

    assert serving.post(content=b" " * 101, headers=JSON).status_code == 413
    assert serving.post(content=parts(), headers=JSON).status_code == 413
    assert serving.post(content=b'{"x": 1}' + b" " * 92, headers=JSON).status_code != 413


def test_too_many_inputs_are_refused() -> None:
    serving = Answering(type("Few", (Double,), {"max_inputs": 3}))
    assert serving.post([{"x": 1}] * 3).status_code == 200
    answer = serving.post([{"x": 1}] * 4)
    assert (answer.status_code, answer.json()["detail"]) == (
        413,
        "4 inputs are more than the 3 of one request",
    )


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.array([[1, 2]]), [[1, 2]]),
        ({"a": np.array([1.5])}, {"a": [1.5]}),
        (float("nan"), None),
        ("é", "é"),
        (None, None),
    ],
)
def test_an_output_is_anything_that_can_be_json(output: Any, shown: Any) -> None:
    assert (
        Answering(predicting(lambda inputs: [output] * len(inputs))).post({"x": 1}).json() == shown
    )


def test_an_output_of_a_declared_type_is_checked() -> None:
    class Out(BaseModel):
        y: int

    assert Answering(predicting(lambda inputs: [{"y": np.int64(3), "z": 1}], Output=Out)).post(
        {"x": 1}
    ).json() == {"y": 3}
    assert (
        Answering(predicting(lambda inputs: [{"y": "no"}], Output=Out)).post({"x": 1}).status_code
        == 500
    )


@pytest.mark.parametrize(
    ("outputs", "kind"),
    [
        (lambda inputs: [1, 2], "ValueError"),
        (lambda inputs: 1 / 0, "ZeroDivisionError"),
        (lambda inputs: None, "TypeError"),
        (lambda inputs: [object()], "PydanticSerializationError"),
    ],
)
def test_a_model_that_fails_is_the_servers_error_which_keeps_its_words_to_itself(
    outputs: Any, kind: str
) -> None:
    answer = Answering(predicting(outputs)).post({"x": 1})
    assert answer.status_code == 500
    assert (
        answer.json()["detail"] == f"predict raised {kind}; the log of the server has its traceback"
    )


def test_one_input_that_the_model_cannot_take_fails_its_own_request_only() -> None:
    def outputs(inputs: list[Any]) -> list[float]:
        return [1 / each.x for each in inputs]

    async def ask(client: httpx.AsyncClient) -> list[int]:
        answers = await asyncio.gather(
            *(client.post("/predict", json={"x": x}) for x in (1, 0, 2, 4))
        )
        return [answer.status_code for answer in answers]

    assert Answering(predicting(outputs, max_wait=0.1)).run(ask) == [200, 500, 200, 200]


def test_where_too_many_wait_the_next_is_told_to_come_again() -> None:
    gate = threading.Event()

    def outputs(inputs: list[Any]) -> list[int]:
        gate.wait(5)
        return [1] * len(inputs)

    async def ask(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        first = asyncio.create_task(client.post("/predict", json=[{"x": 1}] * 5))
        await asyncio.sleep(0.05)
        second = await client.post("/predict", json={"x": 1})
        gate.set()
        return await first, second

    first, second = Answering(predicting(outputs, max_waiting=5)).run(ask)
    assert (first.status_code, second.status_code, second.headers["Retry-After"]) == (200, 503, "1")


# ---- switches


def test_no_request_fails_or_mixes_models_while_models_are_switched() -> None:
    serving = Answering(by=7, trial=7)
    wrong: list[Any] = []
    seen: Counter[str] = Counter()

    async def client(asked: httpx.AsyncClient) -> None:
        for _ in range(60):
            answer = await asked.post("/predict", json=[{"x": 1}] * 3)
            trial = answer.headers.get("Regrow-Trial", "")
            seen[trial] += 1
            if answer.status_code != 200 or answer.json() != [float(trial)] * 3:
                wrong.append(answer.text)

    async def ask(asked: httpx.AsyncClient) -> None:
        clients = asyncio.gather(*(client(asked) for _ in range(6)))
        for number in range(8, 14):
            while sum(seen.values()) < 50 * (number - 7):  # of 360 answers
                assert not clients.done()
                await asyncio.sleep(0)
            serving.switch(number, by=number)
        await clients

    serving.run(ask)
    assert wrong == []
    assert sum(seen.values()) == 360
    assert len(seen) > 2


def test_a_request_that_is_under_way_ends_on_the_model_that_began_it() -> None:
    gate, begun = threading.Event(), threading.Event()

    class Slow(Double):
        def predict(self, inputs: list[Any]) -> list[float]:
            if self.by == 1:
                begun.set()
                gate.wait(5)
            return [self.by] * len(inputs)

    serving = Answering(Slow, trial=1, by=1)

    async def ask(client: httpx.AsyncClient) -> list[tuple[str, float]]:
        first = asyncio.create_task(client.post("/predict", json={"x": 1}))
        assert await asyncio.to_thread(begun.wait, 5)
        serving.switch(2, by=2)
        second = await client.post("/predict", json={"x": 1})
        gate.set()
        return [(one.headers["Regrow-Trial"], one.json()) for one in (await first, second)]

    assert serving.run(ask) == [("1", 1), ("2", 2)]


def test_a_model_whose_place_another_one_has_taken_is_let_go() -> None:
    """Each would keep its memory otherwise, and its thread, for as long as the process lives."""
    made: list[weakref.ref[Double]] = []

    class Counted(Double):
        def load(self, folder: Path, config: dict[str, Any]) -> None:
            super().load(folder, config)
            made.append(weakref.ref(self))

    serving = Answering(Counted)

    async def ask(client: httpx.AsyncClient) -> int:
        before = threading.active_count()
        for number in range(5):
            await client.post("/predict", json={"x": 1})
            serving.switch(number)
        await asyncio.sleep(0.1)
        gc.collect()
        return threading.active_count() - before

    assert serving.run(ask) <= 0
    assert [one() is None for one in made] == [True] * 5 + [False]


def test_the_canary_gets_its_share_and_no_more() -> None:
    serving = Answering(share=0.1, trial=1)

    async def ask(client: httpx.AsyncClient) -> Counter[str]:
        serving.switch(2, role="canary")
        return Counter(
            [
                (await client.post("/predict", json={"x": 1})).headers["Regrow-Trial"]
                for _ in range(1500)
            ]
        )

    seen = serving.run(ask)
    assert sum(seen.values()) == 1500
    assert 0.07 < seen["2"] / 1500 < 0.13
    assert 'regrow_serve_requests_total{status="200",trial="2"}' in serving.metrics.text().decode()


def test_without_a_canary_that_is_loaded_the_main_model_gets_all() -> None:
    serving = Answering(share=0.99)
    assert {serving.post({"x": 1}).headers["Regrow-Trial"] for _ in range(10)} == {"7"}


# ---- what is asked about it


def test_until_a_model_is_loaded_it_lives_and_is_not_ready() -> None:
    serving = Answering(trial=None)
    assert [serving.get(path).status_code for path in ("/healthz", "/readyz", "/version")] == [
        200,
        503,
        200,
    ]
    assert serving.run(lambda client: client.head("/healthz")).status_code == 200
    assert serving.get("/version").json() == {"experiment": "digits", "trial": None, "canary": None}
    assert serving.post({"x": 1}).status_code == 503
    assert Answering().get("/readyz").status_code == 200


def test_the_first_model_answers_before_it_is_announced_and_a_later_one_after_that() -> None:
    """Another process may have told a client already that the server is ready."""
    serving = Answering(trial=None)

    async def ask(client: httpx.AsyncClient) -> list[tuple[int, str]]:
        async def seen() -> tuple[int, str]:
            ready, answer = (
                await client.get("/readyz"),
                await client.post("/predict", json={"x": 1}),
            )
            return ready.status_code, answer.headers["Regrow-Trial"]

        found = []
        for trial in (3, 4):
            serving.hold(trial)
            serving.models.release("main", "manifests/another")
            found.append(await seen())
            serving.models.release("main", f"manifests/{trial}")
            found.append(await seen())
        return found

    assert serving.run(ask) == [(503, "3"), (200, "3"), (200, "3"), (200, "4")]


def test_the_version_tells_both_models() -> None:
    serving = Answering(share=0.25)

    async def ask(client: httpx.AsyncClient) -> Any:
        serving.switch(9, role="canary")
        return (await client.get("/version")).json()

    told = {"step": 3, "metric": "score", "value": 0.5, "since": "1970-01-01T00:00:00Z"}
    assert serving.run(ask) == {
        "experiment": "digits",
        "trial": 7,
        "manifest": "manifests/7",
        **told,
        "canary": {"trial": 9, "manifest": "manifests/9", "percent": 25.0, **told},
    }


def test_the_metrics_count_requests_errors_latency_and_batches_by_trial() -> None:
    serving = Answering(predicting(lambda inputs: [1 / each.x for each in inputs]))
    serving.post({"x": 1})
    serving.post([{"x": 1}] * 20)
    serving.post({"x": 0})
    serving.post({"y": 0})
    text = serving.get("/metrics").text
    found = dict(re.findall(r"^(\S+) (\S+)$", text, re.MULTILINE))
    assert found['regrow_serve_requests_total{status="200",trial="7"}'] == "2.0"
    assert found['regrow_serve_requests_total{status="500",trial="7"}'] == "1.0"
    assert found['regrow_serve_requests_total{status="422",trial=""}'] == "1.0"
    assert found['regrow_serve_errors_total{trial="7"}'] == "1.0"
    assert 'regrow_serve_errors_total{trial=""}' not in found, (
        "what is no input is no error of the server"
    )
    assert found['regrow_serve_seconds_count{trial="7"}'] == "3.0"
    assert float(found['regrow_serve_seconds_sum{trial="7"}']) > 0
    assert found['regrow_serve_batch_inputs_sum{trial="7"}'] == "22.0"
    assert (
        found['regrow_serve_batch_inputs_bucket{le="16.0",trial="7"}']
        == found['regrow_serve_batch_inputs_count{trial="7"}']
    )


def test_the_description_has_the_fields_of_an_input_and_the_page_asks_nobody_else() -> None:
    described = Answering().get("/openapi.json").json()
    assert described["components"]["schemas"]["Input"]["properties"]["x"]["minimum"] == 0
    either = described["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]["anyOf"]
    assert either == [
        {"$ref": "#/components/schemas/Input"},
        {"type": "array", "items": {"$ref": "#/components/schemas/Input"}},
    ]
    page = Answering().get("/docs")
    assert page.status_code == 200
    assert '"minimum": 0' in html.unescape(page.text)
    assert "//" not in re.sub(r"<script>.*</script>", "", page.text)
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


def test_what_a_class_says_is_no_markup_on_the_page() -> None:
    kind = type("Some", (Double,), {"__doc__": "<script>alert(1)</script>", "example": {"x": 1}})
    assert "<script>alert" not in Answering(kind).get("/docs").text


# ---- who may ask


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        ("", 401),
        ("Bearer wrong", 401),
        (f"Basic {TOKEN}", 401),
        (TOKEN, 401),
        (f"Bearer {TOKEN}x", 401),
        ("Bearer", 401),
    ],
)
@pytest.mark.parametrize("base", ["http://localhost:8000", "http://gpu-1.lab:8000"])
def test_with_a_token_only_who_gives_it_is_answered(given: str, status: int, base: str) -> None:
    serving = Answering(beyond=True)
    headers = {"Authorization": given}
    answer = serving.post({"x": 1}, base, headers=headers)
    assert answer.status_code == status
    assert TOKEN not in answer.text
    assert [
        serving.get(path, base, headers=headers).status_code
        for path in ("/version", "/metrics", "/docs", "/openapi.json")
    ] == [status] * 4
    assert [
        serving.get(path, base, headers={"Authorization": ""}).status_code
        for path in ("/healthz", "/readyz")
    ] == [200, 200]


def test_on_the_loopback_a_foreign_name_is_refused() -> None:
    """By DNS rebinding a page of somebody else's would ask with the browser of this machine's
    user.
    """
    assert Answering().post({"x": 1}, "http://evil.example:8000").status_code == 421
    assert [
        Answering().post({"x": 1}, f"http://{name}:8000").status_code
        for name in ("127.0.0.1", "localhost", "[::1]")
    ] == [200] * 3


def test_a_model_computes_in_batches_of_its_own_size() -> None:
    sizes: list[int] = []

    def outputs(inputs: list[Any]) -> list[int]:
        sizes.append(len(inputs))
        return [0] * len(inputs)

    Answering(predicting(outputs, max_batch=4)).post([{"x": 1}] * 10)
    assert sizes == [4, 4, 2]
