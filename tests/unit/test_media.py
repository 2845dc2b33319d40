"""What a training logs beside its metrics: which items count, and what is refused."""

from __future__ import annotations

import io
import json
import logging
import multiprocessing
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import regrow as rg
from regrow.show.views import media
from regrow.tasks.checkpoint import writer as checkpoint_writer
from regrow.tasks.errors import ReportError
from regrow.tasks.media import content, writer
from regrow.tasks.media.items import Item, listed, parsed
from regrow.tasks.ports.store import Unavailable
from regrow.tasks.trial.trial import Trial
from tests.memory_store import MemoryStore
from tests.unit.attempting import Attempting, Killed, saving, sent
from tests.unit.office import MakeOffice, Office
from tests.unit.programs import Programs

__all__ = ["attempt", "make_office", "programs"]
from tests.unit.attempting import attempt, make_office
from tests.unit.programs import programs


def shown(office: Office, trial: int = 0) -> list[tuple[str, int, bytes]]:
    """Name, step and content of the items that count."""
    items = media.of_trial(office.store, office.history.trials[trial])
    return [(item.name, item.step, office.store.read(item.key)) for item in items]


def test_an_item_belongs_to_the_step_in_progress_and_a_later_one_of_its_name_replaces_it(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(max_steps=2)

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.log_text("say/it", f"{step}")
            trial.report({"score": 1.0})
            trial.log_text("say/it", f"{step} again")
        rg.trial().log_text("end", "bye")

    ended = attempt(office, train).ended
    assert (ended.outcome, ended.media) == ("done", 5)
    assert shown(office) == [
        ("end", 2, b"bye"),
        ("say/it", 1, b"1 again"),
        ("say/it", 2, b"2 again"),
    ]
    assert len(listed(office.store, 0)) == 3, "what was replaced is deleted"


def test_a_rerun_replaces_what_was_logged_beyond_the_checkpoint(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(max_steps=3)

    def killed(trial: Trial) -> None:
        for step in trial.steps():
            trial.log_text("note", f"first {step}")
            trial.log_text(f"only-first-{step}", "")
            trial.report({"score": 1.0}, checkpoint=saving(step) if step == 1 else None)
            if step == 2:
                sent(trial)
                raise Killed

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.log_text("note", f"second {step}")
            trial.report({"score": 1.0})

    with pytest.raises(Killed):
        attempt(office, killed)
    assert [item.step for item in listed(office.store, 0)] == [1, 1, 2, 2]
    office.lost(0, 1)
    attempt(office, train)
    assert shown(office) == [
        ("note", 1, b"first 1"),
        ("note", 2, b"second 2"),
        ("note", 3, b"second 3"),
        ("only-first-1", 1, b""),
    ]
    assert len(listed(office.store, 0)) == 4, "what was superseded is deleted"


def test_what_was_superseded_does_not_count_although_nothing_replaces_it(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office = make_office(max_steps=2)

    def killed(trial: Trial) -> None:
        for step in trial.steps():
            trial.log_text(f"{step}", "")
            trial.report({"score": 1.0}, checkpoint=saving(step) if step == 1 else None)
            sent(trial)
            if step == 2:
                raise Killed

    with pytest.raises(Killed):
        attempt(office, killed)
    assert [step for _, step, _ in shown(office)] == [1, 2]
    office.lost(0, 1)
    attempt(office, lambda trial: trial.report({"score": 1.0}))
    assert [step for _, step, _ in shown(office)] == [1]


def test_what_is_over_a_limit_is_refused_with_one_line_each_and_the_trial_continues(
    make_office: MakeOffice,
    attempt: Attempting,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(writer, "MOST_BYTES", 10)
    monkeypatch.setattr(writer, "MOST_ITEMS", 3)
    monkeypatch.setattr(writer, "MOST_TRIAL_BYTES", 25)
    office = make_office(max_steps=1)

    def train(trial: Trial) -> None:
        for _ in range(2):
            trial.log_text("large", "x" * 11)
        for name in "ab":
            trial.log_text(name, "x" * 10)
        for _ in range(2):
            trial.log_text("c", "x" * 10)
        trial.log_text("c", "x" * 5)
        trial.log_text("b", "y" * 10)
        trial.log_text("d", "")
        trial.report({"score": 1.0})

    with caplog.at_level(logging.WARNING, "regrow.trial"):
        assert attempt(office, train).ended.outcome == "done"
    assert [(name, data) for name, _, data in shown(office)] == [
        ("a", b"x" * 10),
        ("b", b"y" * 10),
        ("c", b"x" * 5),
    ]
    said = [line for line in caplog.messages if "media" in line]
    assert [line.partition("media ")[2] for line in said] == [
        "large not kept: it has 11 bytes, and 10 bytes are the most",
        "c not kept: all of the trial would have more than 25 bytes",
        "d not kept: the trial has 3 items, which is the most",
    ]


class Refusing(MemoryStore):
    """Refuses media, after it was out of reach once."""

    def __init__(self) -> None:
        super().__init__()
        self.tried = 0

    def create(self, key: str, data: bytes | Path) -> None:
        if key.startswith("media/"):
            self.tried += 1
            if self.tried == 1:
                raise Unavailable(key, "away")
            if "second" in key:
                raise PermissionError("no")
        super().create(key, data)


def test_media_wait_for_the_store_and_no_error_of_it_ends_the_trial(
    make_office: MakeOffice, attempt: Attempting, caplog: pytest.LogCaptureFixture
) -> None:
    office, store = make_office(max_steps=1), Refusing()

    def train(trial: Trial) -> None:
        trial.log_text("first", "1")
        trial.log_text("second", "2")
        trial.report({"score": 1.0}, checkpoint=saving(1))

    with caplog.at_level(logging.WARNING, "regrow.trial"):
        assert attempt(office, train, store=store).ended.outcome == "done"
    assert [item.name for item in listed(store, 0)] == ["first"]
    assert [line for line in caplog.messages if "media" in line] == [
        "trial 0: media second not kept: no"
    ]


class Ordered(MemoryStore):
    """Knows in which order its objects were created; media wait at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []
        self.gate = threading.Event()

    def create(self, key: str, data: bytes | Path) -> None:
        if key.startswith("media/"):
            assert self.gate.wait(30)
        super().create(key, data)
        self.order.append(key.partition("/")[0])


def test_an_item_is_durable_before_the_checkpoint_of_its_step(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office, store = make_office(max_steps=2), Ordered()

    def train(trial: Trial) -> None:
        for step in trial.steps():
            trial.log_text("note", "")
            trial.report({"score": 1.0}, checkpoint=saving(step))
            store.gate.set()

    attempt(office, train, store=store)
    assert [kind for kind in store.order if kind in ("media", "manifests")] == [
        "media",
        "manifests",
    ] * 2


def test_items_for_which_a_slow_store_has_no_time_are_left_out(
    make_office: MakeOffice,
    attempt: Attempting,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoint_writer, "MOST_CALLS", 1)
    monkeypatch.setattr(checkpoint_writer, "CALL_SECONDS", 0.0)
    office, store = make_office(max_steps=1), Ordered()

    def train(trial: Trial) -> None:
        for number in range(5):
            trial.log_text(f"{number}", "")
        store.gate.set()
        trial.report({"score": 1.0})

    with caplog.at_level(logging.WARNING, "regrow.trial"):
        assert attempt(office, train, store=store).ended.outcome == "done"
    kept = [item.name for item in listed(store, 0)]
    assert kept[0] == "0"
    assert len(kept) < 5
    assert sum("too many items wait for the store" in line for line in caplog.messages) == 1


def _child(trial: Trial) -> None:
    trial.log_text("a", "b")


def test_a_process_that_the_trainable_forked_cannot_log(
    make_office: MakeOffice, attempt: Attempting
) -> None:
    office, codes = make_office(max_steps=1), list[int | None]()

    def train(trial: Trial) -> None:
        child = multiprocessing.get_context("fork").Process(target=_child, args=(trial,))
        child.start()
        child.join()
        codes.append(child.exitcode)
        trial.report({"score": 1.0})

    attempt(office, train)
    assert codes == [1]
    assert listed(office.store, 0) == []


def test_a_class_and_a_script_log_by_rg_trial(
    make_office: MakeOffice, attempt: Attempting, programs: Programs
) -> None:
    class Model(rg.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            pass

        def step(self) -> dict[str, float]:
            rg.trial().log_table("t", [{"a": 1}])
            return {"score": 1.0}

    office = make_office(max_steps=1)
    attempt(office, Model)
    assert shown(office) == [("t", 1, b'{"columns": ["a"], "data": [[1]]}')]
    office = programs.office("""
        import regrow as rg
        for step in range(2):
            rg.trial().log_text("text", f"{step}")
            if step:
                rg.trial().log_file("own code", __file__)
            rg.report({"score": 1.0})
    """)
    assert programs.attempt(office).ended.media == 3
    found = shown(office)
    assert [one[:2] for one in found] == [("own code", 2), ("text", 1), ("text", 2)]
    assert found[0][2] == (programs.folder / "train.py").read_bytes()
    assert found[2][2] == b"1"


def test_outside_of_a_trial_nothing_is_logged() -> None:
    rg.trial().log_figure("anything", None)
    with pytest.raises(ReportError, match="is no name"):
        rg.trial().log_text("a//b", "")


@pytest.mark.parametrize(
    "name", ["", " ", "/a", "a/", "a/../b", ".", "a\nb", "x" * 101, "\u4e2d" * 61]
)
def test_a_name_that_cannot_be_used_is_refused(name: str) -> None:
    with pytest.raises(ReportError, match="name"):
        rg.trial().log_text(name, "")


@pytest.mark.parametrize("name", ["val/errors 1.png", "<b>&'\"=%7E~", "\u4e2d\u6587", "-", "a.b"])
def test_a_key_tells_all_about_its_item(name: str) -> None:
    item = Item(trial=1, attempt=2, count=3, step=40, kind="file", size=5, name=name, suffix=".tar")
    assert parsed(item.key) == item
    MemoryStore().create(item.key, b"")


@pytest.mark.parametrize(
    "key",
    [
        "media/1/1/000001-000000001-text-1-../x.txt",
        "media/1/1/000001-000000001-text-1-a%2Fb.txt",
        "media/1/1/1-1-text-1-a.txt",
        "media/1/1/000001-000000001-page-1-a.html",
        "notes/000001.json",
    ],
)
def test_any_other_key_is_none_of_an_item(key: str) -> None:
    assert parsed(key) is None


# What is converted


def pixels(made: content.Content) -> Any:
    assert isinstance(made.data, bytes)
    return np.asarray(Image.open(io.BytesIO(made.data)))


GRADIENT = np.linspace(0, 1, 6).reshape(2, 3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (GRADIENT, [[0, 51, 102], [153, 204, 255]]),
        (np.array([[-1.0, np.nan, 2.0]]), [[0, 0, 255]]),
        (np.array([[0, 300, 7]]), [[0, 255, 7]]),
        (np.array([[True, False]]), [[255, 0]]),
        (GRADIENT[None, :, :2], [[0, 51], [153, 204]]),
        (GRADIENT[:, :, None], [[0, 51, 102], [153, 204, 255]]),
        (np.zeros((3, 5, 7), np.uint8), np.zeros((5, 7, 3))),
        (Image.new("CMYK", (2, 1)), np.full((1, 2, 3), 255)),
    ],
)
def test_pixels_and_pictures_become_png(given: Any, expected: Any) -> None:
    made = content.image(given)
    assert made.suffix == ".png"
    assert pixels(made).tolist() == np.asarray(expected).tolist()


def test_an_image_file_is_kept_as_it_is_and_one_of_another_format_becomes_png(
    tmp_path: Path,
) -> None:
    for name, suffix in (("a.jpeg", ".jpg"), ("a.webp", ".webp"), ("a.bmp", ".png")):
        Image.new("RGB", (4, 4), "red").save(tmp_path / name)
        made = content.image(tmp_path / name)
        assert made.suffix == suffix
        assert (made.data == (tmp_path / name).read_bytes()) is (suffix != ".png")
    (tmp_path / "a.svg").write_text("<svg onload='alert(1)'/>")
    for wrong in (
        tmp_path / "a.svg",
        tmp_path / "none.png",
        np.zeros((2, 2, 2)),
        object(),
        [[1], 2],
    ):
        with pytest.raises(ReportError, match="log_image"):
            content.image(wrong)


def test_rows_become_a_table() -> None:
    import pandas as pd

    def read(*given: Any) -> Any:
        return json.loads(content.table(*given).data)  # type: ignore[arg-type]

    assert read([{"a": 1, "b": np.float32(0.5)}, {"b": "x", "c": float("nan")}]) == {
        "columns": ["a", "b", "c"],
        "data": [[1, 0.5, None], [None, "x", "nan"]],
    }
    assert read([[1, 2], (3, Path("p"))], ["x", "y"])["data"] == [[1, 2], [3, "p"]]
    assert read({"a": [1, 2], "b": [3, 4]}) == read(pd.DataFrame({"a": [1, 2], "b": [3, 4]}))
    assert read([[1, 2]])["columns"] == ["1", "2"]
    assert read([["half \ud800"]])["data"] == [["half ?"]]
    for wrong in (5, "text", ["text"], [[1], [1, 2]], {"a": [1], "b": [1, 2]}, {"a": 1}):
        with pytest.raises(ReportError, match="log_table"):
            content.table(wrong)


def test_figures_become_png_or_json() -> None:
    import plotly.graph_objects as go
    from matplotlib.figure import Figure

    figure = Figure((2, 1))
    axes = figure.subplots()
    axes.plot([1, 2])
    for given in (figure, axes):
        assert pixels(content.figure(given)).shape[2] == 4
    made = content.figure(go.Figure(go.Scatter(y=[1, 2])))
    assert (made.suffix, json.loads(made.data)["data"][0]["type"]) == (".json", "scatter")  # type: ignore[arg-type]
    with pytest.raises(ReportError, match="log_figure"):
        content.figure("plot.png")
