"""Removing, noting, copying and listing experiments of a state root, without a cluster."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from regrow.cli.compare import compare
from regrow.cli.console import plain_console
from regrow.cli.keep import cp, mv, note, rm
from regrow.cli.ls import SortKey, ls
from regrow.cli.run import run_session
from regrow.cli.show import show
from regrow.flows.housekeeping import removal
from regrow.flows.session import Session
from regrow.infra.log.reading import read_events, replay, replayed
from regrow.infra.state import driver_lock, notes
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.experiments import prepare
from regrow.infra.state.places import HalfRemoved, Places
from regrow.infra.state.spec_file import read_spec
from regrow.infra.stores.local import LocalStore
from regrow.result import open as opened
from regrow.search.errors import SpecError
from regrow.search.planning.simulator import FunctionObjective, simulate
from regrow.search.spec import Spec
from regrow.show.live.board import Board
from regrow.show.live.grid import signs_of
from regrow.show.live.sections import compose
from regrow.show.report import report
from regrow.tasks.errors import UserError
from tests.unit import exported

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A root with the finished experiment `kinds`, which also has a checkpoint's files and a
    trial's lines.
    """
    root = tmp_path / "state"
    monkeypatch.setenv("REGROW_STATE", str(root))
    # a driver that is there although its log is closed
    monkeypatch.setattr(driver_lock, "WIND_UP_SECONDS", 0.5)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.py").write_text("def train(trial): ...")
    made = exported.keep(root, exported.simulation().run().events)
    store = made.store("kinds")
    for key in ("manifests/0/1/0000000001.json", "blobs/0/1/aa", "logs/0/1/0.jsonl", "code/aa"):
        store.create(key, b"x" * 1000)
    return made


class CutOff(BaseException):
    """The process is gone."""


class Doomed(LocalStore):
    """A store whose process dies after so many of its effects."""

    left = 0

    def _effect(self) -> None:
        Doomed.left -= 1
        if Doomed.left < 0:
            raise CutOff

    def create(self, key: str, data: bytes | Path) -> None:
        self._effect()
        super().create(key, data)

    def delete(self, keys: Iterable[str], *, ordered: bool = True) -> None:
        for key in keys:
            self._effect()
            super().delete([key], ordered=ordered)


# Removing


def test_a_removal_cut_off_anywhere_leaves_the_experiment_or_something_that_a_second_one_finishes(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = exported.simulation(trials=2).run().events
    removal.remove(places, "kinds")
    exported.keep(Path(places.root), events)
    for effects in range(200):
        with monkeypatch.context() as patched:
            patched.setattr(Places, "store", lambda self, name: Doomed(Path(self.root) / name))
            Doomed.left = effects
            try:
                removal.remove(places, "kinds")
                break
            except CutOff:
                pass
        assert places.experiments() == ["kinds"], "as long as anything is left, it is listed"
        if effects == 0:
            assert len(replay(places.known("kinds")).trials) == 2
        else:
            with pytest.raises(HalfRemoved, match="regrow rm kinds"):
                places.known("kinds")
            # nobody begins a new experiment on the ruins of this one
            with pytest.raises(HalfRemoved):
                prepare(places, "kinds", Spec.parse(exported.SPEC), trials=None, code=None)
        removal.remove(places, "kinds")
        assert places.experiments() == []
        assert not (Path(places.root) / "kinds").exists()
        exported.keep(Path(places.root), events)
    assert effects > 5, "each of its effects was the last one once"
    assert places.experiments() == []


def test_one_that_runs_is_not_removed_and_what_to_do_is_told(places: Places) -> None:
    with (
        driving(places, "kinds"),
        pytest.raises(UserError, match=r"'kinds' is running.*regrow stop kinds"),
    ):
        rm(["kinds"], yes=True)
    assert len(replay(places.known("kinds")).trials) == 12


def test_it_is_asked_first_with_how_many_trials_how_large_and_how_old(
    places: Places, capsys: Printed
) -> None:
    with pytest.raises(UserError, match="no terminal to ask at; say it with --yes"):
        rm(["kinds"])
    said = capsys.readouterr().out
    assert re.fullmatch(
        r"kinds: finished, 12 trials, [\d.]+ kB in \d+ objects, last active \d+ days ago\n", said
    )
    assert places.experiments() == ["kinds"]
    with pytest.raises(UserError, match=r"there is no experiment 'knids'.*did you mean"):
        rm(["kinds", "knids"], yes=True)
    assert places.experiments() == ["kinds"], "a mistake in one name removes none"
    rm(["kinds"], yes=True)
    assert capsys.readouterr().out.endswith("kinds is removed\n")
    assert os.listdir(places.root) == [".services"]


def test_one_with_a_damaged_log_can_be_removed_too(places: Places, capsys: Printed) -> None:
    segment = min((Path(places.root) / "kinds" / "log").iterdir())
    segment.write_bytes(b"nonsense")
    rm(["kinds"], yes=True)
    assert "its log is damaged" in capsys.readouterr().out
    assert places.experiments() == []


# Noting


def test_notes_and_tags_of_several_people_at_once_are_all_kept_also_while_it_runs(
    places: Places,
) -> None:
    store = places.known("kinds")
    with driving(places, "kinds"), ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: notes.add(store, f"note {n}", tags=[f"tag-{n}"]), range(24)))
    found = notes.read(store)
    assert sorted(note.text for note in found.texts) == sorted(f"note {n}" for n in range(24))
    assert sorted(found.tags) == sorted(f"tag-{n}" for n in range(24))


def test_a_tag_goes_and_comes_back_and_a_note_stays(places: Places) -> None:
    store = places.known("kinds")
    store.create("notes/.DS_Store", b"of a file manager")
    notes.add(store, "first", tags=["a", "b"])
    notes.add(store, "", untags=["a", "never"])
    assert (notes.read(store).tags, notes.read(store).ever) == (("b",), ("a", "b"))
    notes.add(store, "second", tags=["a"])
    assert notes.read(store).tags == ("b", "a")
    assert [note.text for note in notes.read(store).texts] == ["first", "second"]


@pytest.mark.parametrize("tag", ["", " ", "a,b", "a\nb", "x" * 101, "mlflow.runName", "regrow.key"])
def test_a_tag_that_is_none_is_refused(places: Places, tag: str) -> None:
    with pytest.raises(UserError, match="the tag"):
        notes.add(places.known("kinds"), "", tags=[tag])
    with pytest.raises(UserError, match="nothing to note"):
        notes.add(places.known("kinds"), " ")
    with pytest.raises(UserError, match="not UTF-8"):
        notes.add(places.known("kinds"), "gr\udcf6\udcdfer")  # typed in Latin-1


def test_what_was_noted_is_shown_wherever_the_experiment_is(
    places: Places, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    # see tests/system/test_housekeeping.py
    monkeypatch.setattr("regrow.cli.keep.write_notes", lambda places, name: None)
    note("kinds", "lr was\x1b[31m too high", tag=["baseline", "x"])
    note("kinds", untag=["x"])
    capsys.readouterr()

    def printed(command: object, *arguments: object, **options: object) -> str:
        assert callable(command)
        command(*arguments, **options)
        return str(capsys.readouterr().out)

    shown = r"lr was\x1b[31m too high"
    for said in (
        printed(note, "kinds"),
        printed(ls),
        printed(show, "kinds"),
        printed(compare, ["kinds", "kinds"]),
    ):
        assert "baseline" in said
        assert shown in said
    assert printed(ls, tag="x").startswith("no experiments")
    for said in (printed(ls, as_json=True), printed(show, "kinds", as_json=True)):
        view = json.loads(said)
        assert (view["tags"], [one["text"] for one in view["notes"]]) == (
            ["baseline"],
            ["lr was\x1b[31m too high"],
        )
    result = opened("kinds")
    assert (result.tags, result.notes) == (["baseline"], ["lr was\x1b[31m too high"])
    monkeypatch.setattr(report, "listed", list)  # figures take seconds
    rows, noted = replayed(places.known("kinds")), notes.read(places.known("kinds"))
    page = report.html(rows, places, alive=False, now=rows.history.t_last, notes=noted)
    assert "Tags: baseline" in page
    assert "too high" in page
    board = Board()
    for event in exported.simulation().run().events:
        board.apply(event)
    picture = compose(
        board, width=100, height=30, now=0.0, signs=signs_of(plain_console()), notes=noted
    )
    assert f"tags: baseline; {shown}" in [line.plain.rstrip() for line in picture]


# Renaming


def test_a_renamed_experiment_is_the_same_under_its_new_name(
    places: Places, capsys: Printed
) -> None:
    events = read_events(places.known("kinds"))
    with (
        driving(places, "kinds"),
        pytest.raises(UserError, match="'kinds' is running, so it cannot be renamed"),
    ):
        mv("kinds", "new")
    exported.keep(Path(places.root), exported.simulation(name="other", trials=1).run().events)
    with pytest.raises(UserError, match="something called 'other'"):
        mv("kinds", "other")
    with pytest.raises(SpecError, match="name"):
        mv("kinds", "../new")
    assert places.experiments() == ["kinds", "other"]
    mv("kinds", "new")
    assert capsys.readouterr().out == "kinds is called new; in its YAML file write name: new\n"
    assert places.experiments() == ["new", "other"]
    assert read_events(places.known("new")) == events


def test_in_a_bucket_nothing_is_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="a bucket's objects cannot be renamed"):
        mv("kinds", "new", state="s3://bucket/prefix")


# Copying


def test_a_copy_is_ready_to_run_and_begins_with_the_best_configuration(
    places: Places, tmp_path: Path, capsys: Printed
) -> None:
    best = replay(places.known("kinds"))
    leader = best.trials[best.best or 0]
    cp("kinds")
    assert (
        capsys.readouterr().out == "kinds-2.yaml is written; run it with: regrow run kinds-2.yaml\n"
    )
    written = (tmp_path / "kinds-2.yaml").read_text()
    assert written.startswith(f"# Copied from kinds in {places.root}")
    assert f"of trial {leader.number}.\n" in written
    spec = read_spec(tmp_path / "kinds-2.yaml")
    assert spec.name == "kinds-2"
    again = simulate(spec, FunctionObjective(function=exported.curve, spec=spec), workers=2).history
    assert again.trials[0].config == leader.config
    assert [start.experiment for start in spec.warm_start] == ["kinds"]
    other = {"name", "points", "working_dir", "warm_start"}
    before, after = best.spec.identity(), spec.identity()
    assert {k: v for k, v in after.items() if k not in other} == {
        k: v for k, v in before.items() if k not in other
    }


def test_a_copy_of_one_whose_search_was_chosen_for_it_leaves_the_choice_open_too(
    places: Places, tmp_path: Path
) -> None:
    chosen = exported.simulation(name="chosen", search="auto", schedule="auto")
    exported.keep(Path(places.root), chosen.run().events)
    cp("chosen", tmp_path / "again.yaml")
    again = read_spec(tmp_path / "again.yaml")
    assert (again.search, again.schedule) == ("auto", "auto")
    assert len(again.points) == 1
    assert [start.experiment for start in again.warm_start] == ["chosen"]


def test_a_text_that_looks_like_a_number_is_still_a_text_in_a_copy(
    places: Places, tmp_path: Path
) -> None:
    env = {"RATE": "1e-4", "MODE": "0o17", "DAY": "2026-11-29"}
    exported.keep(Path(places.root), exported.simulation(name="env", env=env).run().events)
    cp("env", tmp_path / "1e4.yaml")
    again = read_spec(tmp_path / "1e4.yaml")
    assert (again.name, again.env) == ("1e4", env)


def test_a_copy_overwrites_neither_a_file_nor_an_experiment(places: Places, tmp_path: Path) -> None:
    (tmp_path / "kinds-2.yaml").write_text("mine")
    cp("kinds")
    assert (tmp_path / "kinds-3.yaml").exists()
    with pytest.raises(UserError, match="is there already"):
        cp("kinds", tmp_path / "kinds-2.yaml")
    with pytest.raises(UserError, match="there is an experiment 'kinds' already"):
        cp("kinds", tmp_path / "kinds.yaml")
    assert (tmp_path / "kinds-2.yaml").read_text() == "mine"


def test_a_copy_s_comment_is_one_whatever_its_state_root_is_called(
    places: Places, tmp_path: Path
) -> None:
    odd = tmp_path / "a\nb: c #d"
    Path(places.root).rename(odd)
    cp("kinds", tmp_path / "copy.yaml", state=str(odd))
    assert read_spec(tmp_path / "copy.yaml").name == "copy"


def test_a_copy_of_one_that_tries_every_configuration_has_no_point(
    places: Places, tmp_path: Path
) -> None:
    grid = exported.simulation(
        name="grid", search="grid", space={"a": {"grid": [1, 2, 3]}}, trials=None, schedule="fifo"
    )
    grid.objective = FunctionObjective(
        function=lambda config, step: {"score": float(config["a"])}, spec=grid.spec
    )
    exported.keep(Path(places.root), grid.run().events)
    cp("grid", tmp_path / "again.yaml")
    assert "points" not in yaml.safe_load((tmp_path / "again.yaml").read_text())
    again = read_spec(tmp_path / "again.yaml")
    assert again.total == 3


def test_a_copy_of_one_from_python_says_how_to_do_it_there(places: Places, tmp_path: Path) -> None:
    exported.keep(
        Path(places.root), exported.simulation(name="python", trainable="pickled").run().events
    )
    with pytest.raises(
        UserError, match=r"run from Python.*rg.Experiment\(.*name='new', points=\[\{"
    ):
        cp("python", tmp_path / "new.yaml")


# Listing


def test_ls_says_how_each_stands_how_old_and_how_large_it_is_and_sorts(
    places: Places, capsys: Printed
) -> None:
    exported.keep(Path(places.root), exported.simulation(name="a", trials=3).run().events)
    os.makedirs(Path(places.root) / "ruin" / "log")
    (Path(places.root) / "ruin" / "log" / "removed").write_bytes(b"{}")
    ls()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [
        "name",
        "status",
        "trials",
        "best",
        "value",
        "ran",
        "age",
        "size",
        "wasted",
    ]
    assert [line.split()[0] for line in lines[1:]] == ["a", "kinds", "ruin"]
    assert "half-removed" in lines[3]
    assert re.search(
        r"kinds +finished +12/12 +trial \d+ +[\d.]+ +0:\d\d +\d+ days +[\d.]+ kB +0", lines[2]
    )
    ls(sort=SortKey.SIZE)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "kinds",
        "a",
        "ruin",
    ]
    ls(as_json=True)
    one, two = map(json.loads, capsys.readouterr().out.splitlines())
    assert {
        "name",
        "status",
        "metric",
        "mode",
        "best",
        "counts",
        "total",
        "wasted_steps",
        "elapsed_s",
        "bytes",
        "tags",
    } <= one.keys()
    assert two["bytes"] == sum(
        file.stat().st_size for file in (Path(places.root) / "kinds").rglob("*") if file.is_file()
    )
    assert two["last_t"] < time.time()


def test_a_session_that_has_ended_says_so_even_if_it_is_removed_meanwhile(
    places: Places, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    def launched(session: Session) -> None:
        session.history = replay(session.prepared.store, session.name)
        removal.remove(session.places, session.name)  # its servers still end for seconds

    monkeypatch.setattr("regrow.flows.launch.launch", launched)
    monkeypatch.setattr("regrow.cli.exit_codes.ignore_signals", lambda: None)
    with pytest.raises(SystemExit) as left:
        run_session(places, "kinds", spec=None, as_json=False)
    assert left.value.code == 0
    assert "kinds finished: 12 of 12 trials" in capsys.readouterr().out
