"""What is handed on of an experiment: which files, whose folder, and what a reader finds meanwhile."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec
import pytest
import yaml

import regrow as rg
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.search.events import Created
from regrow.tasks.checkpoint import saving
from tests.unit import exported
from tests.unit.exported import regrow
from tests.unit.test_report import Page

SECRET = "hush-4711"
FILES = ["best.yaml", "index.html", "share.json", "specification.yaml", "trials.csv"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state root with an experiment that stands still, and its checkpoints."""
    run = exported.simulation(
        env={"MODE": SECRET}, checkpoint={"every_steps": 1, "keep_last": 2}
    ).run()
    exported.keep(tmp_path / "state", run.events)
    store = Places.at(str(tmp_path / "state")).store("kinds")
    for trial in run.history.trials:
        for step, kept in trial.checkpoints.items():
            folder = tmp_path / f"made-{trial.number}-{step}"
            (folder / "parts").mkdir(parents=True)
            (folder / "model.html").write_text(f"<script>{trial.number} {step}</script>")
            (folder / "parts" / "a b%.pt").write_bytes(b"w")
            saving.save(store, folder, trial=trial.number, attempt=kept.attempt, step=step)
    return tmp_path / "state"


def there(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def links(folder: Path) -> list[str]:
    """The files to which the page refers, all of which have to be there."""
    page = Page((folder / "index.html").read_text())
    found = [str(a["href"]) for tag, a in page.elements if tag == "a" and "href" in a]
    return [unquote(link.removeprefix("./")) for link in found if link.startswith("./")]


def test_the_folder_has_the_report_and_what_it_refers_to(state: Path, tmp_path: Path) -> None:
    folder = tmp_path / "to" / "share"
    done = regrow("report", "kinds", "--share", folder, "--checkpoint", "--state", state)
    assert done.exit_code == 0, done.exception
    best = rg.open("kinds", str(state)).best
    assert best is not None
    assert f"open it: {(folder / 'index.html').as_uri()}" in done.output
    own = [name for name in there(folder) if name.startswith("checkpoint/")]
    kept = re.fullmatch(r"checkpoint/trial-(\d+)-attempt-1-step-(\d+)/model\.html", own[0])
    assert kept is not None
    assert int(kept[1]) == best.trial
    assert (folder / own[0]).read_text() == f"<script>{kept[1]} {kept[2]}</script>"
    assert own[1].endswith("/parts/a b%.pt")
    assert there(folder) == [FILES[0], *own, *FILES[1:]]
    assert sorted(links(folder)) == ["best.yaml", *own, "specification.yaml", "trials.csv"]
    written = yaml.safe_load((folder / "best.yaml").read_text())
    assert written == best.config
    with (folder / "trials.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 12
    assert rg.Spec.parse(yaml.safe_load((folder / "specification.yaml").read_text())).trials == 12
    assert (folder / "index.html").stat().st_mode & 0o444 == 0o444, "a web server reads it"


def test_no_file_has_a_secret_and_no_table_a_place(state: Path, tmp_path: Path) -> None:
    rg.open("kinds", str(state)).share(tmp_path / "share")
    assert any(SECRET in file.read_text() for file in (state / "kinds" / "log").iterdir())
    for name in there(tmp_path / "share"):
        text = (tmp_path / "share" / name).read_text()
        assert SECRET not in text, name
        assert name == "index.html" or str(tmp_path) not in text, name


def test_the_same_again_updates_it_and_leaves_nothing_of_before(
    state: Path, tmp_path: Path
) -> None:
    folder, result = tmp_path / "share", rg.open("kinds", str(state))
    assert urlsplit(result.share(folder, checkpoint=True)).path == str(folder / "index.html")
    first = there(folder)
    (folder / "checkpoint" / "trial-99-attempt-1-step-1").mkdir()
    (folder / "checkpoint" / "mine.txt").write_text("the reader's own")
    record = (folder / "share.json").read_text()
    (folder / "share.json").write_text(
        record.replace('"checkpoints":[', '"checkpoints":["checkpoint/../..","checkpoint",')
    )
    assert result.best is not None
    result.trials[result.best.trial].drop()
    result.share(folder, checkpoint=True)
    assert set(there(folder)) & set(first) == set(FILES)
    assert "checkpoint/mine.txt" in there(folder), "only what a share wrote is deleted"
    result.share(folder)
    assert there(folder) == sorted([*FILES, "checkpoint/mine.txt"])


def test_a_share_that_is_cut_off_leaves_the_page_of_before_whole(
    state: Path, tmp_path: Path
) -> None:
    folder, result = tmp_path / "share", rg.open("kinds", str(state))
    result.share(folder, checkpoint=True)
    before = (folder / "index.html").read_bytes()
    (folder / "trials.csv").unlink()
    (folder / "trials.csv").mkdir()  # where the next one cannot be written
    assert result.best is not None
    result.trials[result.best.trial].drop()
    with pytest.raises(rg.UserError, match=r"trials\.csv cannot be written"):
        result.share(folder, checkpoint=True)
    assert (folder / "index.html").read_bytes() == before
    assert [name for name in links(folder) if not (folder / name).exists()] == []
    (folder / "trials.csv").rmdir()
    result.share(folder, checkpoint=True)
    assert set(there(folder)) == {*FILES, *links(folder)}


def test_what_is_no_share_of_it_is_refused_in_a_line(state: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "share.json").write_text("[]")
    events = exported.simulation().events
    created = events[0]
    assert isinstance(created, Created)
    exported.keep(tmp_path / "other", [msgspec.structs.replace(created, id="other"), *events[1:]])
    rg.open("kinds", str(tmp_path / "other")).share(tmp_path / "others")
    for folder, said in (
        ("mine", r"is no earlier share, it holds thesis\.tex; name an empty or a new folder"),
        ("file", "is no folder"),
        ("broken", r"share\.json in \S+ is not regrow's"),
        ("others", "is the share of another experiment 'kinds'"),
    ):
        before = there(tmp_path / folder)
        done = regrow("report", "kinds", "--share", tmp_path / folder, "--state", state)
        assert isinstance(done.exception, rg.UserError)
        assert re.search(said, str(done.exception)), done.exception
        assert "\n" not in str(done.exception)
        assert there(tmp_path / folder) == before
    assert LocalStore(state / "kinds").list("log/"), "nothing of the state was touched"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--share", "x", "--png", "y"], "--share: goes without --output and --png"),
        (["--checkpoint"], "--checkpoint: goes with --share"),
        (["--share", "gs://bucket"], "holds no pages; give a folder, or s3://"),
        (["--share", "x", "--checkpoint"], "the best checkpoint cannot be shared: manifests/"),
    ],
)
def test_a_mistake_is_said_in_a_line(
    words: list[str],
    said: str,
    unfinished_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = regrow("report", "kinds", *words, "--state", unfinished_root)
    assert isinstance(done.exception, rg.UserError)
    assert said in str(done.exception)
    assert list(tmp_path.iterdir()) == []
