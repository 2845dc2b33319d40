"""The end of a log is proved, damage names its experiment, and a renamed folder is what it is
called now.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regrow.cli.app import app
from regrow.infra.log.log import CorruptLog, Log
from regrow.infra.log.reading import read_events, replay
from regrow.infra.log.segments import seal_key
from regrow.infra.state.experiments import prepare
from regrow.infra.state.places import Places
from regrow.search.events import Closed, encode
from tests.memory_store import MemoryStore
from tests.unit.office import opening_of
from tests.unit.simulated import Simulation

RUN = Simulation().open().run().events


def written(places: Places, name: str, *, seal: bool = True, each: int = 5) -> Path:
    """The log of a finished experiment, in segments of so many events."""
    store = places.store(name)
    log = Log.open(store)
    lines = [encode(event) for event in RUN]
    log.claim(lines[:2])
    for at in range(2, len(lines), each):
        log.append(lines[at : at + each])
    if seal:
        log.seal()
    return Path(places.root, name, "log")


def regrow(places: Places, *words: str) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(app, [*words, "--state", places.root])
    return done.exit_code, done.output, done.exception


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


# The end


@pytest.mark.parametrize("command", ["verify", "show", "trials", "best", "ls"])
def test_a_finished_log_without_its_last_segment_is_damaged_for_every_command(
    places: Places, command: str
) -> None:
    folder = written(places, "one")
    last = segments(folder)[-1]
    last.unlink()
    _, _, raised = regrow(places, *([command] if command == "ls" else [command, "one"]))
    assert isinstance(raised, CorruptLog)
    assert str(raised).startswith(
        f"the log of experiment 'one' in {places.root} is damaged at log/{last.name}: it is missing"
    )
    assert seal_key(len(segments(folder)) + 1) in str(raised)
    with pytest.raises(CorruptLog, match="it is missing"):
        Log.open(places.store("one"))


def test_so_is_one_of_which_more_is_gone(places: Places) -> None:
    folder = written(places, "one")
    for path in segments(folder)[-3:]:
        path.unlink()
    with pytest.raises(CorruptLog, match="it is missing, and the log was closed with segment"):
        read_events(places.store("one"))
    for path in segments(folder):
        path.unlink()
    with pytest.raises(CorruptLog, match=r"log/0000000001\.jsonl: it is missing"):
        read_events(places.store("one"))


def test_a_last_record_that_was_damaged_after_it_was_closed_is_no_torn_write(
    places: Places,
) -> None:
    for name, seal in (("one", True), ("old", False)):
        last = segments(written(places, name, seal=seal))[-1]
        last.write_bytes(last.read_bytes()[:-9])
    for command in ("show", "verify"):
        _, _, raised = regrow(places, command, "one")
        assert isinstance(raised, CorruptLog)
        assert "experiment 'one'" in str(raised)
        assert "is damaged" in str(raised)
    with pytest.raises(CorruptLog):
        Log.open(places.store("one"))
    assert regrow(places, "show", "old")[0] == 0, (
        "without a seal it counts as one that was cut short"
    )


def test_one_whose_last_segment_is_another_than_when_it_was_closed_is_told_by_verify(
    places: Places,
) -> None:
    folder = written(places, "one")
    last = segments(folder)[-1]
    seal = (folder / last.with_suffix(".seal").name).read_bytes()
    last.unlink()
    (folder / last.with_suffix(".seal").name).unlink()
    Log.open(places.store("one"))
    log = Log.open(places.store("one"))
    log.claim([b'{"event":"opened","t":99.0,"by":"driver","driver":"e","slots":1,"trials":6}'])
    (folder / last.with_suffix(".seal").name).write_bytes(seal)
    _, _, raised = regrow(places, "verify", "one")
    assert isinstance(raised, CorruptLog)
    assert "it is not what it was when the log was closed with it" in str(raised)


def test_verify_says_whether_the_end_is_proved(places: Places) -> None:
    written(places, "new")
    written(places, "old", seal=False)
    assert "its log is whole up to segment" in regrow(places, "verify", "new")[1]
    code, said, _ = regrow(places, "verify", "old")
    assert (code, "the end of its log cannot be proved" in said) == (0, True), (
        "logs of earlier versions are fine"
    )


def test_a_log_that_goes_on_is_longer_than_its_seal_and_sealed_again() -> None:
    store = MemoryStore()
    for writer in range(3):
        log = Log.open(store)
        log.claim([b"opened %d" % writer])
        for number in range(10):
            log.append([b"%d" % number])
            log.compact(3)
        log.seal()
        log.seal()
        assert Log.proven(store) == log.last
    assert len([key for key in store.list("log/") if key.endswith(".seal")]) == 3
    assert [line for _, lines in Log.read(store) for line in lines][-1] == b"9"


def test_a_seal_that_was_cut_short_says_all_the_same_that_the_segment_was_there() -> None:
    store = MemoryStore()
    log = Log.open(store)
    log.claim([b"a"])
    log.append([b"b"])
    store.create(seal_key(2), b'{"segm')
    assert Log.proven(store) == 2
    store.delete(["log/0000000002.jsonl"])
    with pytest.raises(CorruptLog, match="it is missing"):
        list(Log.read(store))


# Whose log


def test_ls_tells_whose_log_is_damaged_and_lists_the_others(
    places: Places, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "c"):
        folder = written(places, name)
        if name != "b":
            middle = segments(folder)[2]
            middle.write_bytes(middle.read_bytes()[:-9] + b"xxxxxxx\n")
    done = CliRunner().invoke(app, ["ls", "--state", places.root])
    assert isinstance(done.exception, CorruptLog)
    assert "experiment 'c'" in str(done.exception)
    assert "experiment 'a'" in done.output
    assert any(line.startswith("b ") and "finished" in line for line in done.output.splitlines())


# A renamed folder


def test_a_renamed_folder_is_listed_as_what_it_is_called_and_every_command_takes_that(
    places: Places,
) -> None:
    folder = written(places, "before").parent
    folder.rename(folder.with_name("after"))
    _, listed, _ = regrow(places, "ls")
    assert any(line.startswith("after ") for line in listed.splitlines())
    assert "after: renamed, its log has the name simulated; every command takes after" in listed
    assert json.loads(regrow(places, "show", "after", "--json")[1])["name"] == "after"
    assert regrow(places, "show", "after")[1].startswith("after is finished")
    assert f"{places.root}/after/manifests/" in regrow(places, "best", "after")[1]
    assert regrow(places, "verify", "after")[0] == 0
    assert "there is no experiment 'before'" in str(regrow(places, "show", "before")[2])


def test_from_its_next_session_on_the_log_of_a_renamed_folder_has_its_name(places: Places) -> None:
    from regrow.flows.coordinator.claim import claimed

    folder = written(places, "before").parent
    folder.rename(folder.with_name("after"))
    prepared = prepare(places, "after", None, trials=9, code=None)
    assert prepared.spec.name == "after"
    opening = opening_of(prepared.spec, id="x", trials=9)
    claimed(prepared.store, opening, "driver-2")
    assert replay(prepared.store).spec.name == "after"
    assert any(isinstance(event, Closed) for event in read_events(prepared.store))
