"""What a request may hold: counted while its body comes, whatever it is cut into."""

from __future__ import annotations

import io
import json
import random
import time
from contextlib import suppress
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from pydantic import BaseModel

from regrow.apps.serving.limits import (
    FIELD,
    FREE_BYTES,
    MOST_DEPTH,
    MOST_DIGITS,
    OBJECT,
    Body,
    BudgetFull,
    JsonCounter,
    Rooms,
    TooMuch,
)
from regrow.apps.serving.mlflow_model import ServedMlflowModel, refused
from regrow.apps.serving.parquet_sizes import Damaged, parquet_sizes
from tests.unit.answering import Answering, Double

AS_JSON = {"Content-Type": "application/json"}
SMALL = type("Small", (Double,), {"max_items": 1000})


def counted(body: bytes, parts: int = 1 << 16, most: int = 1 << 60) -> JsonCounter:
    counting = JsonCounter(most)
    for start in range(0, len(body), parts):
        counting.count(body[start : start + parts])
    return counting


def cost(value: Any) -> int:
    """What the commas, brackets and colons of a value count for, in the plainest way."""
    if isinstance(value, dict):
        return OBJECT + FIELD * len(value) + max(len(value) - 1, 0) + sum(map(cost, value.values()))
    return 1 + max(len(value) - 1, 0) + sum(map(cost, value)) if isinstance(value, list) else 0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers()
    | st.text('\\"[]{}:,é\n'),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text('\\"[]{}:,', max_size=4), inner, max_size=4)
    ),
)


@settings(deadline=None)
@given(JSON, st.integers(1, 9), st.booleans())
def test_what_is_in_texts_counts_for_nothing_and_cuts_change_nothing(
    value: Any, parts: int, plain: bool
) -> None:
    assert counted(json.dumps(value, ensure_ascii=plain).encode(), parts).items == 1 + cost(value)


@pytest.mark.parametrize("parts", [1, 7, 1 << 16])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[" * (MOST_DEPTH + 1), "nests deeper"),
        (b'{"a":' * (MOST_DEPTH + 1), "nests deeper"),
        (b"[[[]]]," * 100 + b"[" * (MOST_DEPTH + 1), "nests deeper"),
        (b"[1," + b"9" * (MOST_DIGITS + 1), "more than 4300 digits"),
        (b"1." + b"9" * MOST_DIGITS + b"e5", "more than 4300 digits"),
        (b"[" + b"0," * 5000, "holds more than 5000 values"),
        (b"{}," * 300, "holds more than 5000 values"),
        (b'"":0,' * 900, "holds more than 5000 values"),
    ],
)
def test_what_is_too_much_is_refused_before_it_is_parsed(
    body: bytes, said: str, parts: int
) -> None:
    with pytest.raises(TooMuch, match=said):
        counted(body, parts, 5000)


def test_what_is_just_enough_is_taken() -> None:
    assert (
        counted(b"[" * MOST_DEPTH + b"]" * MOST_DEPTH + b"[" * MOST_DEPTH, 7).items
        == 1 + 2 * MOST_DEPTH
    )
    counted(b"[" + b"9" * MOST_DIGITS + b"," + b"9" * MOST_DIGITS + b"]", 100)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"0," * 1000 + b"0]",
        b'{"x": [' + b"0," * 1000 + b"0]}",
        b"[" * 101,
        b"[" + b"{}," * 60 + b"{}]",
    ],
)
def test_a_request_that_holds_too_much_is_answered_with_413(body: bytes) -> None:
    async def parts() -> Any:
        yield body

    serving = Answering(SMALL)
    assert [
        serving.post(content=given, headers=AS_JSON).status_code for given in (body, parts())
    ] == [413, 413]


def test_a_body_is_refused_by_its_length_before_it_comes() -> None:
    async def never() -> Any:
        raise AssertionError("it was read")
        yield b""

    answer = Answering().post(content=never(), headers={**AS_JSON, "Content-Length": f"{1 << 40}"})
    assert answer.status_code == 413


def test_requests_together_hold_so_much_and_give_it_back() -> None:
    rooms = Rooms(type("Some", (Double,), {"max_body": 100_000, "max_items": 10}))

    def filled() -> Body:
        body = Body(rooms, 100_000, None)
        body.add(b" " * 100_000)
        return body

    held = [filled() for _ in range(8)]
    with pytest.raises(BudgetFull):
        filled()
    Body(rooms, 100_000, None).add(b" " * FREE_BYTES)  # who asks little is answered all the same
    held[0].close()
    held[0].close()
    filled()


class Picky(Double):
    """Its inputs are lists, and its validator has a fault."""

    class Input(BaseModel):
        x: list[int] | int
        names: dict[str, int] = {}

        def model_post_init(self, _: Any) -> None:
            if self.x == 14:
                raise SystemExit
            if self.x == 13:
                raise RuntimeError("this is the users own fault")

    max_items: ClassVar[int] = 100_000

    def predict(self, inputs: list[Any]) -> list[Any]:
        if inputs[0].x == 12:
            raise ValueError("not with this one")
        return ["a" * 100 for _ in inputs]


def test_an_answer_on_errors_is_short_whatever_was_sent() -> None:
    serving = Answering(Picky)
    many = serving.post({"x": ["a"] * 30_000})
    assert many.json()["detail"][0]["msg"].startswith("30001 values are wrong")
    long = serving.post({"x": 1, "names": {"k" * 1_000_000: "a"}})
    assert (long.status_code, len(long.content) < 1000) == (422, True)
    for wrong, raised in ((13, "RuntimeError"), (14, "SystemExit")):
        assert (
            serving.post({"x": wrong}).json()["detail"]
            == f"Input raised {raised}; the log of the server has its traceback"
        )


def test_a_predict_that_hangs_is_answered_for() -> None:
    class Hanging(Picky):
        max_seconds = 0.2

        def predict(self, inputs: list[Any]) -> list[Any]:
            time.sleep(1.0)
            return [1 for _ in inputs]

    answer = Answering(Hanging).post({"x": 1})
    why = "predict did not return within 0.2 s (max_seconds)"
    assert (answer.status_code, answer.json()["detail"]) == (504, why)


def test_an_answer_that_is_too_large_is_the_models_error() -> None:
    answer = Answering(type("Short", (Picky,), {"max_answer": 250})).post([{"x": 1}] * 3)
    assert (answer.status_code, answer.json()["detail"]) == (
        500,
        "the answer is larger than 250 bytes (max_answer)",
    )


def test_only_an_input_that_was_answered_is_what_the_next_model_is_tried_with() -> None:
    serving = Answering(Picky)
    for x in (5, 12, "a"):
        serving.post({"x": x})
    assert json.loads(serving.answers.sample or "")["x"] == 5
    unanswered = Answering(Picky, trial=None)
    unanswered.post({"x": 5})
    assert unanswered.answers.sample is None


@pytest.mark.parametrize(
    ("coding", "status"), [("gzip", 415), ("br, gzip", 415), ("Identity", 200)]
)
def test_a_compressed_body_is_refused_as_that(coding: str, status: int) -> None:
    answer = Answering().post({"x": 1}, headers={"Content-Encoding": coding})
    assert answer.status_code == status
    assert status == 200 or coding in answer.json()["detail"]


BIG = "x" * 100_000
TEXT = pa.array([BIG] * 1000)
MOST = 16 << 20


def in_parquet(columns: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file, **how)
    return file.getvalue()


@pytest.mark.parametrize(
    ("columns", "how"),
    [
        ({"a": TEXT}, {"compression": "zstd", "use_dictionary": False}),
        ({"a": TEXT}, {}),
        ({"a": TEXT.cast(pa.binary())}, {}),
        ({"a": TEXT.dictionary_encode()}, {}),
        ({"a": pa.array([[{"b": [BIG] * 10}]] * 100)}, {}),
        ({"a": pa.array([BIG.encode()] * 1000, pa.binary(len(BIG)))}, {}),
        ({"a": TEXT}, {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}),
    ],
)
def test_what_a_file_of_parquet_holds_is_counted_before_it_is_expanded(
    columns: Any, how: dict[str, Any]
) -> None:
    body = in_parquet(columns, **how)
    assert len(body) < 1_000_000
    assert parquet_sizes(body, 250_000, MOST)[1] > MOST


def test_values_of_a_file_of_parquet_are_counted_in_lists_too() -> None:
    body = in_parquet({"a": [0] * 1000, "b": [[1, 2]] * 1000})
    assert parquet_sizes(body, 250_000, MOST)[0] == 3000
    pages = {"data_page_size": 100, "data_page_version": "2.0", "row_group_size": 300}
    body = in_parquet({"a": ["short"] * 999 + [BIG], "b": [[1]] * 999 + [None]}, **pages)
    values, size = parquet_sizes(body, 250_000, MOST)
    assert values == 1999
    assert len(BIG) + 5 * 999 < size < MOST


@pytest.mark.parametrize(("before", "name"), [("", "a"), ("\n  \n", "a"), ("", '"a\n"')])
def test_a_header_that_pandas_would_rename_for_minutes_is_refused(before: str, name: str) -> None:
    body = f"{before}{','.join([name] * 1002)}\n1,2\n"
    asked = ServedMlflowModel.Input(data=body.encode(), content_type="text/csv; charset=utf-8")
    assert refused(asked) == (413, "the header repeats 1001 names, more than 1000")


def test_a_damaged_file_of_parquet_is_refused_by_one_kind_of_error() -> None:
    body = in_parquet({"a": ["x", "y"] * 50, "b": [[1, 2]] * 100})
    chance = random.Random(1)
    for _ in range(500):
        damaged = bytearray(body)
        for _ in range(chance.choice((1, 1, 3))):
            damaged[chance.randrange(len(body) - 4)] = chance.randrange(256)
        with suppress(Damaged):
            parquet_sizes(bytes(damaged), 250_000, MOST)
    for other in (b"", b"none", b"PAR1" * 3, bytes(8) + b"PAR1", body[:-1]):
        with pytest.raises(Damaged):
            parquet_sizes(other, 250_000, MOST)
