"""What all figures keep to: of each kind of history each is one that Plotly takes, or none with a
reason; and no harm in it.
"""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest
from PIL import Image

from regrow.flows.recording.ending import FIGURES
from regrow.search.history import History
from regrow.show.figures import KINDS, figure, learning_curves
from regrow.show.figures.parameters import varied
from regrow.show.figures.style import SYMBOLS
from regrow.show.report import pictures
from tests.unit.figured import (
    KINDS_OF_HISTORIES,
    made_by,
    plain,
    run,
    score,
)
from tests.unit.told import rows_of


@pytest.fixture(scope="module")
def figures(histories: dict[str, History]) -> Callable[[str, str], Any]:
    """Each figure of each history, made once: 40 ms on average."""
    return cache(lambda kind, name: figure(rows_of(histories[kind]), name))


# All of them


@pytest.mark.parametrize("kind", KINDS_OF_HISTORIES)
@pytest.mark.parametrize("name", KINDS)
def test_each_figure_of_each_history_is_one_that_plotly_takes_or_none_with_a_reason(
    kind: str, name: str, figures: Callable[[str, str], Any]
) -> None:
    made = figures(kind, name)
    assert KINDS[name].NOTHING.endswith(".")
    if made is not None:
        again = json.loads(made.to_json())
        assert again["data"], "a figure without anything in it"
        assert {"note", "min_width"} == again["layout"]["meta"].keys()
        assert 200 <= again["layout"]["height"] <= 2000


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("empty", set()),
        ("running, no report", {"timeline"}),
        ("failed only", {"timeline", "wasted_work"}),
        ("one trial", {"optimization_history", "learning_curves", "best_trial", "timeline"}),
        ("constants only", {"optimization_history", "learning_curves", "best_trial", "timeline"}),
        ("no step meets the constraints", {"learning_curves", "timeline"}),
        ("asha", {*KINDS} - {"pareto_front", "lineage", "scaling", "wasted_work"}),
        ("pbt", {*KINDS} - {"pareto_front", "rungs", "scaling", "wasted_work"}),
        ("two metrics", {*KINDS} - {"rungs", "lineage", "scaling", "wasted_work"}),
        ("lossy", {*KINDS} - {"pareto_front", "rungs", "lineage", "scaling"}),
        (
            "groups",
            {
                "optimization_history",
                "learning_curves",
                "best_trial",
                "parallel_coordinates",
                "slices",
                "timeline",
                "scaling",
            },
        ),
    ],
)
def test_figures_are_there_where_they_have_something_to_show(
    kind: str, expected: set[str], figures: Callable[[str, str], Any]
) -> None:
    assert {name for name in KINDS if figures(kind, name) is not None} == expected


def test_what_users_wrote_is_no_markup_no_template_and_no_formula_to_plotly() -> None:
    nasty = "<b>$x$ %{y} & </script>"
    history = run(
        space={
            nasty.replace(".", ""): {"choice": ["<i>one</i>", "%{x}", "\x1b[31m"]},
            "lr": {"uniform": [0.001, 0.1]},
        },
        metric=nasty,
        trials=12,
        value=lambda config, step: {nasty: score(config, step)},
    ).history
    for name in KINDS:
        made = figure(rows_of(history), name)
        if made is not None:
            written = json.dumps(json.loads(made.to_json()))  # Plotly.py writes "<" as "\\u003c"
            for raw in ("<b>$", "<b>&#36;", "<i>one", "%{y} &", "</script", "$x$", "\\u001b"):
                assert raw not in written.replace("<b>&lt;", ""), f"{raw} in {name}"


# Pictures without a browser


@pytest.mark.parametrize(
    "kind",
    [
        "empty",
        "failed only",
        "asha",
        "one trial",
        "one of a thousand diverged",
        "all values the same",
        "the smallest floats",
    ],
)
@pytest.mark.parametrize("name", FIGURES)
def test_pictures_are_there_exactly_where_the_figures_are(
    kind: str, name: str, histories: dict[str, History]
) -> None:
    picture = pictures.png(histories[kind], name)
    assert (picture is None) == (figure(rows_of(histories[kind]), name) is None)
    if picture is not None:
        image = Image.open(io.BytesIO(picture))
        assert image.size == (1600, 900)
        assert len(image.getcolors(2**24) or []) > 20, "an empty picture"


def test_each_mark_of_a_figure_is_one_of_a_picture() -> None:
    assert {symbol.removesuffix("-open") for symbol in SYMBOLS.values()} == pictures.MARKERS.keys()


def test_pictures_can_be_made_by_several_threads(histories: dict[str, History]) -> None:
    history = histories["asha"]
    alone = pictures.png(history, "learning_curves")
    found: list[bytes | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(pictures.png(history, "learning_curves")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4


def tiny(config: Mapping[str, Any], step: int) -> dict[str, float]:
    return {"score": score(config, step) * 1e-310, "seconds": 1.0}


def test_values_too_small_for_an_axis_of_plotly_are_drawn_beside_0() -> None:
    history = run(value=tiny).history
    for kind in KINDS.values():
        made = kind.figure(rows_of(history))
        for trace in () if made is None else made.data:
            arrays = [trace[axis] for axis in ("x", "y") if axis in trace]
            values = [one for array in arrays for one in plain(array)]
            assert not [one for one in values if isinstance(one, float) and 0 < one < 1e-280]


def test_text_that_looks_like_a_number_beside_it_has_quotes_and_a_place_of_its_own() -> None:
    space = {"kind": {"choice": [1, "1", True, "true"]}, "lr": {"uniform": [0.01, 0.1]}}
    _, axes = varied(run(space=space, trials=12, schedule="fifo").history)
    assert axes[0].categories == ("1", '"1"', "true", '"true"')
    assert [axes[0].place({"kind": one}) for one in (1, "1", True, "true")] == [0, 1, 2, 3]


def test_a_name_with_dollars_is_no_formula() -> None:
    history = run(metric="a$b$", value=lambda config, step: {"a$b$": score(config, step)}).history
    assert pictures.png(history, "learning_curves") is not None


def test_typed_arrays_reach_the_page_in_few_bytes(histories: dict[str, History]) -> None:
    written = json.loads(made_by(learning_curves, histories["asha"]).to_json())
    packed = next(trace["y"] for trace in written["data"] if trace["mode"] == "lines")
    assert packed["dtype"] == "f4"
    assert len(base64.b64decode(packed["bdata"])) % 4 == 0
