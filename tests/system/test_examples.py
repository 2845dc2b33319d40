"""The examples' own promise: a trial that continues from a checkpoint continues with the curve that it
would have had.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from regrow.apps.serving.users_class import Computing, example_of, found

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
AUGMENT = {"shift": 0.3, "noise": 0.1}
SGD = {
    "hidden": 32,
    "layers": 2,
    "optimizer": "sgd",
    "lr": 0.01,
    "momentum": 0.9,
    "alpha": 1e-4,
    "augment": AUGMENT,
}
ADAM = {
    "hidden": 32,
    "layers": 1,
    "optimizer": "adam",
    "lr": 0.003,
    "alpha": 1e-4,
    "augment": AUGMENT,
}


def example(name: str) -> ModuleType:
    """An example's module, loaded from its file."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Session:
    """A trial's steps in this process: `first` to `last`, with a checkpoint into `folder` at
    each.
    """

    def __init__(self, config: Mapping[str, Any], folder: Path, *, first: int, last: int) -> None:
        self.config, self.seed, self.folder = config, 7, folder
        self.first, self.last = first, last
        self.restored = folder if first > 1 else None
        self.rows: list[dict[str, float]] = []

    def steps(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def report(self, metrics: Mapping[str, Any], checkpoint: Any) -> None:
        self.rows.append({name: float(value) for name, value in metrics.items()})
        checkpoint(self.folder)


@pytest.mark.parametrize("config", [SGD, ADAM], ids=["sgd", "adam"])
def test_a_restored_network_of_scikit_learn_goes_on_with_the_same_curve(
    config: dict[str, Any], tmp_path: Path
) -> None:
    train = example("digits").train

    def rows(folder: str, first: int, last: int) -> list[dict[str, float]]:
        (tmp_path / folder).mkdir(exist_ok=True)
        session = Session(config, tmp_path / folder, first=first, last=last)
        train(session)
        return session.rows

    assert rows("cut", 1, 2) + rows("cut", 3, 5) == rows("whole", 1, 5)


def test_a_restored_network_of_several_workers_goes_on_with_the_same_curve(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")
    train = example("digits_ddp").train

    def rows(folder: str, first: int, last: int) -> list[dict[str, float]]:
        (tmp_path / folder).mkdir(exist_ok=True)
        session = Session(
            {"channels": 8, "lr": 0.003, "weight_decay": 0.001},
            tmp_path / folder,
            first=first,
            last=last,
        )
        train(session)
        return session.rows

    assert rows("cut", 1, 1) + rows("cut", 2, 3) == (whole := rows("whole", 1, 3))
    assert whole[-1]["loss"] < whole[0]["loss"]


def test_a_restored_network_of_pytorch_goes_on_with_the_same_curve(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it")
    net_type = example("digits_torch").Net

    def net() -> Any:
        made = net_type()
        made.setup({"channels": 8, "lr": 0.003, "weight_decay": 0.001, "seed": 1})
        return made

    whole, again = net(), net()
    before = [whole.step(), whole.step()]
    whole.save(tmp_path)
    after = [whole.step(), whole.step()]
    again.load(tmp_path)
    assert [again.step(), again.step()] == after
    assert after[-1]["loss"] < before[0]["loss"]


def test_the_class_that_serves_the_digits_answers_as_the_network_does(tmp_path: Path) -> None:
    digits, kind = example("digits"), found("digits_serve.py:Digits", str(EXAMPLES))
    digits.train(Session(ADAM, tmp_path, first=1, last=5))
    _, images, _, labels = digits.data()
    computing = Computing(kind, tmp_path, ADAM, example_of(kind, None))
    results = computing.run([kind.Input(pixels=list(image)) for image in images[:100]])
    answers = [json.loads(one) for one in results if isinstance(one, bytes)]
    assert (
        sum(answer["digit"] == label for answer, label in zip(answers, labels[:100], strict=True))
        > 90
    )
    assert all(0.1 <= answer["probability"] <= 1 for answer in answers)
    with pytest.raises(ValueError, match="at least 64 items"):
        kind.Input(pixels=[0.0])
