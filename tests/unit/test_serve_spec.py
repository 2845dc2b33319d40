"""`serve:` in a specification: what it may say, what is told at once, and what becomes of it for
the station.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from regrow.apps.serving import status
from regrow.apps.serving.station_registration import checked, of_experiment, of_schedule
from regrow.apps.serving.status import ServingStatus
from regrow.apps.station.parts import SERVER, servers
from regrow.flows.housekeeping.removal import remove, rename
from regrow.infra.state import served
from regrow.infra.state.places import Places
from regrow.infra.state.spec_file import read_spec
from regrow.search.errors import SpecError
from regrow.search.events import Closed
from regrow.search.rollout import Canary
from regrow.search.spec import Spec
from regrow.tasks.errors import UserCodeError
from tests.unit.answering import chosen
from tests.unit.kept import SPEC, Kept
from tests.unit.refusing import Refused

CLASS = """
import pydantic
import regrow as rg


class Model(rg.Served):
    class Input(pydantic.BaseModel):
        x: float

    def load(self, folder, config): ...

    predict = lambda self, inputs: inputs


class Plain:
    def load(self, folder, config): ...


class Half(rg.Served):
    def load(self, folder, config): ...


class Deeper(Half): ...


def function(): ...
"""
WHOLE: dict[str, Any] = {
    "model": "serve.py:Model",
    "gate": "score > 0.5",
    "canary": "10% for 5min",
    "replicas": 2,
    "host": "127.0.0.1",
    "port": 8100,
}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    (tmp_path / "serve.py").write_text(CLASS)
    return Places.at(str(tmp_path / "state")).writable()


def spec(tmp_path: Path, serve: dict[str, Any] | None = None, **changes: Any) -> Spec:
    given = {**SPEC, "working_dir": str(tmp_path), **changes}
    return Spec.parse(given if serve is None else {**given, "serve": serve})


def test_it_says_what_a_station_serves_and_how(tmp_path: Path) -> None:
    found = spec(tmp_path, WHOLE)
    assert found.serve is not None
    assert (found.serve.share, found.serve.gates and found.serve.gates.metrics) == (
        Canary(share=0.1, seconds=300.0),
        ("score",),
    )
    assert Spec.parse(found.to_json()) == found
    assert found.to_json()["serve"] == WHOLE
    assert spec(tmp_path, {}).serve is not None, "all of it may be left out"
    assert found.identity() == spec(tmp_path).identity(), (
        "an experiment may continue with another one"
    )


@pytest.mark.parametrize(
    ("serve", "line"),
    [
        ({"gates": "score > 1"}, "serve.gates: \"score > 1\": unknown key; did you mean 'gate'?"),
        (
            {"gate": "score == 1"},
            'serve.gate: "score == 1": is no condition on a metric; write METRIC > NUMBER (or >=, <, <=),',
        ),
        ({"gate": 0.9}, "serve.gate: 0.9: is not text; put quotes around it"),
        (
            {"model": "serve.py"},
            'serve.model: "serve.py": names no class; write FILE.py:CLASS, such as serve.py:Digits',
        ),
        (
            {"canary": "17=10%"},
            'serve.canary: "17=10%": is no share of the requests; write 10%, or 10% for 5min',
        ),
        ({"canary": 0.1}, "serve.canary: 0.1: is not text; write 10%, or 10% for 5min"),
        ({"replicas": 0}, "serve.replicas: 0: is below 1; write 1 or more"),
        ({"replicas": 257}, "serve.replicas: 257: is above 256; write 256 or less"),
        ({"port": 70000}, "serve.port: 70000: is above 65535; write 65535 or less"),
        (
            "serve.py:Model",
            'serve: "serve.py:Model": is not a map; its keys are: model, gate, canary, replicas, host, port',
        ),
    ],
)
def test_what_it_cannot_say_is_told_with_file_and_line(
    tmp_path: Path, serve: Any, line: str
) -> None:
    file = tmp_path / "a.yaml"
    (tmp_path / "work.py").write_text("def train(trial): ...\n")
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in SPEC.items())
    below = (
        serve
        if isinstance(serve, str)
        else "".join(f"\n  {key}: {json.dumps(value)}" for key, value in serve.items())
    )
    file.write_text(f"{text}serve: {below}\n")
    with pytest.raises(SpecError) as told:
        read_spec(file)
    place = len(text.splitlines()) + 1 + (not isinstance(serve, str))
    assert str(told.value).startswith(f"{file}:{place}: {line}")


@pytest.mark.parametrize(
    ("serve", "line"),
    [
        (
            {"model": "nothing.py:Model"},
            'serve.model: "nothing.py:Model": there is no file .*nothing.py; put it back, or correct the path',
        ),
        (
            {"model": "serve.py:Modell"},
            "serve.model: \"serve.py:Modell\": serve.py has no 'Modell'; did you mean 'Model'?",
        ),
        (
            {"model": "serve.py:Plain"},
            'serve.model: "serve.py:Plain": is no subclass of rg.Served; write `class Plain\\(rg.Served\\):`',
        ),
        (
            {"model": "serve.py:function"},
            'serve.model: "serve.py:function": is no class; write `class function\\(rg.Served\\):`',
        ),
        (
            {"model": "serve.py:Half"},
            'serve.model: "serve.py:Half": has no Input and no predict; write `class Input',
        ),
        (
            {"gate": "scoer > 0.5"},
            "serve.gate: \"scoer > 0.5\": no trial of kept has reported 'scoer'; did you mean 'score'?",
        ),
        (
            {"host": "203.0.113.7"},
            'serve.host: "203.0.113.7": is no name or address of this machine; give one, or 0.0.0.0',
        ),
        (
            {"port": 8100},
            "serve.port: 8100: is the port of other, which is served as well; write another one",
        ),
    ],
)
def test_what_cannot_be_served_is_told_before_anything_runs(
    tmp_path: Path, places: Places, serve: dict[str, Any], line: str
) -> None:
    of_schedule(places, spec(tmp_path, WHOLE), "other")
    Kept(places.store("kept")).best(0.5)
    with pytest.raises(SpecError, match=f"^{line}"):
        checked(spec(tmp_path, serve), places)


@pytest.mark.parametrize(
    "source",
    [
        "class Model(Half): ...",
        "class Model(rg.Served): ...\nModel.predict = Model.load = Model.Input = print",
        "@print\nclass Model: ...",
        "class Model: ...\nModel = type('Model', (Model, rg.Served), {})",
        "class Served(rg.Served): load = predict = Input = None\nclass Model(Served): ...",
        "class Model(rg.Served):\n    if True:\n        def load(self): ...\n    try:\n        from a import Input, predict\n    except ImportError: ...",
    ],
)
def test_a_class_that_may_have_its_members_from_elsewhere_is_left_to_the_server(
    tmp_path: Path, places: Places, source: str
) -> None:
    of = spec(tmp_path, {"model": "serve.py:Model"})
    (tmp_path / "serve.py").write_text(source)
    assert checked(of, places) == []


def test_a_syntax_error_of_the_class_comes_with_its_traceback(
    tmp_path: Path, places: Places
) -> None:
    (tmp_path / "serve.py").write_text("class Model(:\n")
    with pytest.raises(
        UserCodeError, match=r'^serve.model: "serve.py:Model": cannot be imported: SyntaxError'
    ) as told:
        checked(spec(tmp_path, {"model": "serve.py:Model"}), places)
    assert "class Model(:" in told.value.trace


def test_a_gate_on_what_the_file_does_not_name_is_taken_where_it_was_reported_and_else_told(
    tmp_path: Path, places: Places
) -> None:
    asked = spec(tmp_path, {"gate": "score > 0.5 and seconds < 1"})
    assert checked(asked, places) == [
        "serve.gate: the file names no metric 'seconds'; if no trial reports it, nothing is served"
    ]
    (line,) = checked(spec(tmp_path, {"gate": "scoer > 0.5"}), places)
    assert "no metric 'scoer' (did you mean 'score'?); if" in line
    last = Kept(places.store("kept-2026-11-22T04"), name="kept-2026-11-22T04")
    last.report(last.trial(), 0.5, seconds=0.1)
    assert checked(asked, places) == []
    assert checked(spec(tmp_path, {"gate": "size < 1"}, constraints=["size <= 2"]), places) == []


def test_run_tells_it_with_the_line_and_writes_nothing(tmp_path: Path, refused: Refused) -> None:
    text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in SPEC.items())
    Path("a.yaml").write_text(f"{text}serve: {{model: no.py:Model}}\n")
    assert refused("run", "a.yaml").startswith(
        'a.yaml:9: serve.model: "no.py:Model": there is no file'
    )


def test_what_an_experiment_serves_is_written_down_changed_and_taken_back(
    tmp_path: Path, places: Places
) -> None:
    lines = of_experiment(places, spec(tmp_path, WHOLE))
    assert lines[0] == f"serve: with `regrow up --state {places.root}`, a station serves kept"
    there = served.read(places, "kept")
    assert there is not None
    assert (there.folder, there.serve, there.series, there.parsed.replicas) == (
        str(tmp_path),
        WHOLE,
        False,
        2,
    )
    (part,) = servers(places, {"PREFECT_API_URL": "here"})
    assert (part.name, part.command[-1], part.environment["PREFECT_API_URL"]) == (
        f"{SERVER}kept",
        "kept",
        "here",
    )
    of_experiment(places, spec(tmp_path, {"gate": "score > 0.9"}))
    assert (changed := served.read(places, "kept")) is not None
    assert changed.serve == {"gate": "score > 0.9"}
    assert of_experiment(places, spec(tmp_path)) == [
        "serve: kept is served no more, as it was left out"
    ]
    assert of_experiment(places, spec(tmp_path)) == []
    assert (served.names(places), servers(places, {})) == ([], [])


def test_what_a_schedule_serves_is_not_changed_by_a_run_that_somebody_types(
    tmp_path: Path, places: Places
) -> None:
    every = {"when": {"every": "6h"}}
    of_schedule(places, spec(tmp_path, WHOLE, **every), "kept")
    for other in (None, {"gate": "score > 0.9"}):
        assert of_experiment(places, spec(tmp_path, other)) == []
    served.forget(places, "kept", schedule=False)
    there = served.read(places, "kept")
    assert there is not None
    assert (there.serve, there.series) == (WHOLE, True)
    of_schedule(places, spec(tmp_path, WHOLE, when={"every": "6h", "each": "continue"}), "kept")
    assert (one := served.read(places, "kept")) is not None
    assert not one.series, "one experiment, which continues"
    served.forget(places, "kept", schedule=True)
    assert served.names(places) == []


def test_a_token_is_only_spoken_of(tmp_path: Path, places: Places) -> None:
    lines = of_schedule(places, spec(tmp_path, {"host": "0.0.0.0"}), "kept")
    assert lines[-1].startswith(f"serve: its token is in {served.token_file(places)}, unless")


def test_a_server_says_how_it_stands_to_whoever_reads_its_file(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    one = ServingStatus(file)
    one.begins()
    one.listens("http://127.0.0.1:8100", 8100)
    one.troubled("--gate: no trial reports 'acc'; there are score")
    assert status.read(file).trouble == "serve.gate: no trial reports 'acc'; there are score"
    one.serves("main", chosen(3, step=9))
    one.refuses("kept: trial 4, step 1, score 0.1 does not meet score > 0.5")
    one.troubled("")
    said = status.read(file)
    assert said.main is not None
    assert said.main.text == "kept, trial 3, step 9, score 0.5"
    assert (said.url, said.trouble, said.refused[:13]) == (
        "http://127.0.0.1:8100",
        "",
        "kept: trial 4",
    )
    ServingStatus(file).begins()
    after = status.read(file)
    assert (after.main, after.url, after.port, after.refused) == (None, "", 8100, said.refused), (
        "the next one has the port"
    )


def test_an_experiment_that_is_renamed_or_removed_is_served_as_such(
    tmp_path: Path, places: Places
) -> None:
    kept = Kept(places.store("kept"))
    kept.best(0.5)
    kept.end(0)
    kept.say(Closed(t=time.time(), status="finished"))
    of_experiment(places, spec(tmp_path, WHOLE))
    rename(places, "kept", "other")
    there = served.read(places, "other")
    assert there is not None
    assert (there.name, served.names(places)) == ("other", ["other"])
    remove(places, "other")
    assert served.names(places) == []
