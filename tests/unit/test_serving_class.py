"""The user's class and the command's options: what is wrong with them is told in one line, before
anything is served.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import regrow as rg
from regrow.apps.serving import image
from regrow.apps.serving.child import tried
from regrow.apps.serving.messages import METRICS_FOLDER, TOKEN, Setup
from regrow.apps.serving.mlflow_model import MODEL, ServedMlflowModel
from regrow.apps.serving.replicas import Replicas
from regrow.apps.serving.running import token_in
from regrow.apps.serving.serve import Count, ServeRequest
from regrow.apps.serving.serve import serve as served
from regrow.apps.serving.users_class import Computing, example_of, found
from regrow.cli.serve import serve
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.search.errors import SpecError
from regrow.search.rollout import Canary
from regrow.tasks.errors import UserCodeError, UserError
from tests.unit.answering import Answering, Double
from tests.unit.kept import Kept

HEAD = "from pydantic import BaseModel, RootModel\nimport regrow as rg\n"
WHOLE = """class Good(rg.Served):
    class Input(BaseModel):
        x: int
    def load(self, folder, config): ...
    def predict(self, inputs): return inputs
"""


def written(folder: Path, text: str, name: str) -> str:
    (folder / f"{name}.py").write_text(HEAD + text)
    return f"{name}.py"


def test_a_whole_class_is_found(tmp_path: Path) -> None:
    kind = found(f"{written(tmp_path, WHOLE, 'serve_whole')}:Good", str(tmp_path))
    assert issubclass(kind, rg.Served)


def test_the_class_that_stands_for_logged_models_is_found() -> None:
    assert found(MODEL, ".") is ServedMlflowModel


@pytest.mark.parametrize(
    ("number", "text", "name", "said"),
    [
        (0, WHOLE, "Goood", "{file}:Goood: {file} has no 'Goood'; did you mean 'Good'?"),
        (
            1,
            "class Bad: ...",
            "Bad",
            "{file}:Bad is no subclass of rg.Served; write `class Bad(rg.Served):`",
        ),
        (
            2,
            "bad = 3",
            "bad",
            "{file}:bad is no subclass of rg.Served; write `class bad(rg.Served):`",
        ),
        (
            3,
            "class Bad(rg.Served): ...",
            "Bad",
            "{file}:Bad has no Input; write `class Input(pydantic.BaseModel):` in it, with its fields",
        ),
        (
            4,
            "class Bad(rg.Served):\n    Input = dict",
            "Bad",
            "{file}:Bad: Input is no pydantic model with fields; write `class Input(pydantic.BaseModel):`",
        ),
        (
            5,
            "class Bad(rg.Served):\n    Input = RootModel[list[int]]",
            "Bad",
            "{file}:Bad: Input is no pydantic model with fields; write `class Input(pydantic.BaseModel):`",
        ),
        (
            6,
            "class Bad(rg.Served):\n    class Input(BaseModel): x: int",
            "Bad",
            "{file}:Bad has no method load and no predict",
        ),
        (
            7,
            WHOLE + "    max_batch = 0",
            "Good",
            "{file}:Good: max_batch is 0; write a whole number of 1 or more",
        ),
        (
            8,
            WHOLE + "    max_wait = 60",
            "Good",
            "{file}:Good: max_wait is 60; write seconds, from 0 to 10",
        ),
        (
            9,
            WHOLE + "    max_bach = 3",
            "Good",
            "{file}:Good sets max_bach, which is no limit; did you mean 'max_batch'?",
        ),
    ],
)
def test_what_is_wrong_with_a_class_is_told(
    tmp_path: Path, number: int, text: str, name: str, said: str
) -> None:
    file = written(tmp_path, text, f"serve_wrong_{number}")
    with pytest.raises(UserError) as told:
        found(f"{file}:{name}", str(tmp_path))
    assert str(told.value) == "--model: " + said.format(file=file)


@pytest.mark.parametrize("path", ["serve.py", ":Digits", "serve.py:", ""])
def test_a_path_that_names_no_class_is_told(path: str) -> None:
    with pytest.raises(
        UserError, match=r"names no class; write FILE.py:CLASS, such as serve.py:Digits"
    ):
        found(path, ".")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=rf"--model: nowhere.py:A: there is no file {tmp_path}/nowhere.py"
    ):
        found("nowhere.py:A", str(tmp_path))


@pytest.mark.parametrize("raises", ["1 / 0", "raise SystemExit(2)", "import no_such_module"])
def test_a_module_that_raises_is_told_with_the_users_own_lines(tmp_path: Path, raises: str) -> None:
    file = written(tmp_path, raises, f"serve_raises_{len(raises)}")
    with pytest.raises(UserCodeError) as told:
        found(f"{file}:A", str(tmp_path))
    assert f"--model: {file}:A: importing it raised " in str(told.value)
    assert f'{file}", line 3' in told.value.trace
    assert "regrow/" not in told.value.trace


def test_an_example_that_is_no_input_is_told_and_the_class_has_the_first_word() -> None:
    with pytest.raises(
        UserError,
        match="--model: the example of Some is no Input: x: Input should be a valid number",
    ):
        example_of(type("Some", (Double,), {"example": {"x": "a"}}), None)
    assert example_of(type("Some", (Double,), {"example": {"x": 1}}), '{"x": 2}') == Double.Input(
        x=1
    )
    assert example_of(
        type("Some", (Double,), {"example": Double.Input(x=1)}), None
    ) == Double.Input(x=1)
    assert example_of(Double, '{"x": 2}') == Double.Input(x=2)
    assert example_of(Double, None) is None


def test_a_warm_up_raises_what_the_model_does() -> None:
    Computing(Double, Path(), {"by": "no number"})
    with pytest.raises(TypeError):
        Computing(Double, Path(), {"by": "no number"}, Double.Input(x=1.5))


@pytest.mark.parametrize(
    "returned", [None, 1.5, {"x": 1}, "a", b"a", {1}, SimpleNamespace(columns=["x"])]
)
def test_what_is_no_list_of_outputs_is_an_error_of_the_model(returned: Any) -> None:
    class Odd(Double):
        def predict(self, inputs: list[Any]) -> Any:
            return returned

    with pytest.raises(TypeError, match=r"predict returned .*return a list, one output for each"):
        Computing(Odd, Path(), {"by": 2}, Double.Input(x=1.5))


def test_an_input_with_which_predict_exits_fails_alone() -> None:
    class Exits(Double):
        def predict(self, inputs: list[Any]) -> Any:
            return [sys.exit(3) if one.x == 13 else one.x for one in inputs]

    good, bad = Double.Input(x=1), Double.Input(x=13)
    first, wrong, last = Computing(Exits, Path(), {"by": 2}).run([good, bad, good])
    assert (first, last) == (b"1.0", b"1.0")
    assert isinstance(wrong, SystemExit)


def test_a_model_is_loaded_tried_and_called_in_one_thread() -> None:
    threads: list[int] = []

    class Threaded(Double):
        def load(self, folder: Path, config: dict[str, Any]) -> None:
            threads.append(threading.get_ident())

        def predict(self, inputs: list[Any]) -> list[float]:
            threads.append(threading.get_ident())
            return [0.0] * len(inputs)

    Answering(Threaded).post([{"x": 1}] * 20)
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert threading.get_ident() not in threads


# ---- options


@pytest.mark.parametrize(
    ("text", "trial", "share"), [("17=10%", 17, 0.1), ("0=0.5", 0, 0.005), ("3= 99 %", 3, 0.99)]
)
def test_a_canary_is_a_trial_and_its_share(text: str, trial: int, share: float) -> None:
    canary = Canary.parse(text, "--canary", of_a_trial=True)
    assert canary.trial == trial
    assert canary.share == pytest.approx(share)


@pytest.mark.parametrize(
    "text", ["17=", "10% for ever", "17=10% for 5min", "0%", "100%", "a=10%", "-1=10%", "17=10%%"]
)
def test_a_wrong_canary_is_told(text: str) -> None:
    with pytest.raises(
        SpecError,
        match=r'^--canary: ".*": is no share of the requests; write 10%, or 10% for 5min; .*17=10%$',
    ):
        Canary.parse(text, "--canary", of_a_trial=True)


def test_ray_serve_answers_with_a_class_only() -> None:
    with pytest.raises(
        UserError, match=r"--ray goes with --model, the class that answers, such as serve.py:Digits"
    ):
        serve("digits", ray=True)


def test_a_token_is_made_once_for_its_owner_alone_unless_a_long_one_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "station" / "serve-token"
    monkeypatch.setenv(TOKEN, "long-enough-for-a-test")
    assert token_in(file) is None
    assert not file.exists()
    for short in ("", "   ", "short"):
        monkeypatch.setenv(TOKEN, short)
        with pytest.raises(UserError, match=f"{TOKEN} is too short to be a secret") as told:
            token_in(file)
        assert "'short'" not in str(told.value)
    for odd in ("geheimnis-größer-16", "two\nlines-of-a-token", "bytes-\udcff\udcfe-0123456789"):
        monkeypatch.setenv(TOKEN, odd)
        with pytest.raises(UserError, match=f"{TOKEN} has characters that no header carries"):
            token_in(file)
    monkeypatch.delenv(TOKEN)
    assert token_in(file) == file
    assert file.stat().st_mode & 0o777 == 0o600
    made = os.environ[TOKEN]
    assert len(made) == 32
    monkeypatch.delenv(TOKEN)
    token_in(file)
    assert os.environ[TOKEN] == made
    monkeypatch.delenv(TOKEN)
    (damaged := tmp_path / "damaged").write_bytes(b"\xff\xfe\0 0123456789abcdef")
    with pytest.raises(UserError, match=f"the token in {damaged} has characters"):
        token_in(damaged)
    assert TOKEN not in os.environ
    with pytest.raises(UserError, match=f"no token can be kept in .*set {TOKEN}"):
        token_in(file / "below-a-file")


def asked(name: str, port: int = 0) -> ServeRequest:
    one = Count(least=1, most=1)
    return ServeRequest(
        name=name,
        model="a.py:A",
        follow=False,
        trial=None,
        canary=None,
        replicas=one,
        ray=False,
        host=None,
        port=port,
    )


def test_replicas_are_a_number_and_with_ray_a_range() -> None:
    assert (Count.parse("3", ray=False), Count.parse("2-8", ray=True)) == (
        Count(least=3, most=3),
        Count(least=2, most=8),
    )
    with pytest.raises(
        SpecError,
        match=r'--replicas: "2-8": is a range, between which Ray Serve chooses; .* add --ray',
    ):
        Count.parse("2-8", ray=False)
    for wrong in ("0", "many", "8-2", "-2", "2-", "1-257"):
        with pytest.raises(SpecError, match=f'--replicas: "{wrong}": is no number of processes'):
            Count.parse(wrong, ray=True)


def test_a_process_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    replicas = Replicas(Setup(experiment="a", model="no.py:No", code=str(tmp_path)), [], 1)
    stop, before = threading.Event(), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    threading.Timer(0.5, resource.setrlimit, (resource.RLIMIT_NOFILE, before)).start()
    late = threading.Timer(60, stop.set)
    late.start()
    with pytest.raises(UserError, match="there is no file"):
        replicas.start(stop=stop)
    late.cancel()


def test_the_end_of_a_process_is_noticed_although_it_forked_another(tmp_path: Path) -> None:
    text = "import os, time\nif os.fork():\n    os._exit(3)\ntime.sleep(60)\n"
    (tmp_path / "forks.py").write_text(text)
    began = time.monotonic()
    setup = Setup(experiment="a", model="forks.py:A", code=str(tmp_path))
    refused = tried(setup, None, None, 600.0)
    assert refused is not None
    assert "ended (exit code 3)" in refused.why
    assert time.monotonic() - began < 50


@pytest.mark.parametrize("lacks", ["space", "the folder", ""])
def test_counting_goes_on_where_no_file_for_it_can_be_made(tmp_path: Path, lacks: str) -> None:
    text = """import resource, sys
from regrow.apps.serving.metrics import Metrics
if sys.argv[1] == "space":
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
counted = Metrics()
counted.reserve()
counted.answered("1", 500, 0.1)
counted.batch("1", 2)
print(counted.text().decode())
"""
    folder = tmp_path / "gone" if lacks == "the folder" else tmp_path
    given = {**os.environ, METRICS_FOLDER: str(folder)}
    printed = subprocess.check_output([sys.executable, "-c", text, lacks], env=given, text=True)
    assert 'regrow_serve_errors_total{trial="1"} 1.0' in printed
    files = [file.stat() for file in tmp_path.iterdir()]
    assert len(files) == (0 if lacks else 2)
    # Without its blocks, a mapped file on a full disk ends the process that writes to it.
    assert all(one.st_blocks * 512 >= one.st_size > 0 for one in files)


def test_an_experiment_that_is_not_there_is_told(tmp_path: Path) -> None:
    Kept(LocalStore(tmp_path / "kept"))
    with pytest.raises(
        UserError, match=r"there is no experiment 'kepd' in .* \(there: kept\); did you mean 'kept'"
    ):
        served(Places.at(str(tmp_path)), asked("kepd"))


def test_a_place_that_takes_no_image_is_told(tmp_path: Path) -> None:
    Kept(LocalStore(tmp_path / "state" / "kept"))
    (tmp_path / "file").write_text("")
    places = Places.at(str(tmp_path / "state"))
    with pytest.raises(UserError, match=r"--image: .*/file/image cannot be written \("):
        image.write(places, "kept", model="a.py:A", trial=None, folder=tmp_path / "file" / "image")


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    Kept(LocalStore(tmp_path / "kept"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            UserError,
            match=rf"--port: {port} cannot be used \(.*in use.*\); name another one, or 0 for any",
        ):
            served(Places.at(str(tmp_path)), asked("kept", port))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            '--canary: "10 % for 10 min": is for what comes later; add --follow, or name a trial for good: 17=10%',
        ),
        (
            {"follow": True, "ray": True},
            '--canary: "10 % for 10 min": goes without --ray; leave --ray out, or name a trial for good',
        ),
    ],
)
def test_a_canary_that_would_never_come_is_told(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    Kept(LocalStore(tmp_path / "kept"))
    wanted = dataclasses.replace(asked("kept"), canary=Canary.parse("10%", "--canary"), **changes)
    with pytest.raises(SpecError) as told:
        served(Places.at(str(tmp_path)), wanted)
    assert str(told.value).startswith(said)
