"""What a user reads at the edges: nothing twice, nothing escaped, and what the machine has."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regrow.cli.stop import stop
from regrow.flows.interrupts import Interrupts
from regrow.flows.loop import stop_requests
from regrow.infra.machine import capacity
from regrow.infra.machine.streams import redirect_to_null
from regrow.infra.ray import joining
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.experiments import request_stop
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.search.errors import SpecError
from regrow.search.events import AnyEvent, Began, Closed, Closing, Ended, Proposed, Started
from regrow.search.spec import Spec
from regrow.show.live import text
from regrow.show.live.board import Board
from regrow.show.live.terminal import Terminal
from regrow.tasks.errors import UserError
from tests.unit.exported import simulation
from tests.unit.office import Office
from tests.unit.simulated import SPEC, created, opened
from tests.unit.told import folded


def failed(count: int, *, other: int | None = None) -> list[AnyEvent]:
    """A log in which trials fail, all but `other` the same way."""
    events: list[AnyEvent] = [created(trials=count), opened(0.0, trials=count)]
    for n in range(count):
        message = "NameError: name 'lerning' is not defined" if n != other else "ValueError: no"
        events += [
            Proposed(t=1.0, trial=n, config={"x": 0.5, "y": "ц"}),
            Started(t=1.0, trial=n, attempt=1, until=None, checkpoints=[]),
            Began(
                t=1.5,
                trial=n,
                attempt=1,
                node="a",
                node_id="a",
                restored=0,
                skipped=[],
                task_run=f"run-{n}",
            ),
            Ended(
                t=2.0,
                trial=n,
                attempt=1,
                outcome="failed",
                cause="error",
                step=0,
                message=message,
                trace=f"trace of {message}\n",
            ),
        ]
    return events


def test_trials_that_failed_the_same_way_are_told_as_one_with_one_traceback() -> None:
    told = list(text.failures(folded(failed(6, other=2))))
    assert told == [
        "trace of NameError: name 'lerning' is not defined",
        "5 trials failed the same way: NameError: name 'lerning' is not defined (trials 0-1, 3-5)",
        "trace of ValueError: no",
        "trial 2 failed: ValueError: no",
    ]


def test_the_live_view_tells_a_way_to_fail_once() -> None:
    board = Board()
    lines = [line for event in failed(5) for line in board.apply(event)]
    assert sum("NameError" in line for line in lines) == 1
    assert sum("(as trial 0 did)" in line for line in lines) == 4
    (loss,) = board.incidents.kept
    assert loss.also == 4  # type: ignore[union-attr]  # a loss, no absence


def test_an_interruption_says_how_many_trials_ended() -> None:
    events = failed(3)[:-1]  # the last one continues
    events += [
        Closing(t=3.0, status="interrupted", why="by the user", by="user"),
        Ended(t=3.0, trial=2, attempt=1, outcome="paused", step=0),
        Closed(t=3.0, status="interrupted"),
    ]
    told = list(text.ending(folded(events), Places.at("/nowhere")))
    assert told[2].startswith("simulated interrupted: 2 of 3 trials ended (1 paused) in ")


def test_more_trials_are_offered_only_where_no_condition_ended_it() -> None:
    for made, offered in ((simulation(), True), (simulation(stop={"target": 0.0}), False)):
        history = made.run().history
        assert history.closed is not None
        lines = text.ending(history, Places.at("/nowhere"))
        assert any(line.startswith("more trials: ") for line in lines) == offered


def test_letters_are_printed_as_themselves_and_control_characters_are_not() -> None:
    assert text.pasted("ц") == '"ц"'
    assert text.pasted(["ö", 1]) == '["ö", 1]'
    assert "\x9b" not in text.pasted("\x9b")


def test_a_machine_without_a_gpu_refuses_before_anything_starts_and_says_what_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(capacity, "resources", lambda: {"CPU": 2.0, "GPU": 0.0, "memory": 8e9})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(SpecError, match=r"it has cpu 2, gpu 0, memory 8\.0 GB; ask for less"):
        joining.check_room(Spec.parse({**SPEC, "resources": {"gpu": 1}}))
    joining.check_room(Spec.parse(SPEC))
    monkeypatch.setenv("RAY_ADDRESS", "somewhere:6379")
    joining.check_room(Spec.parse({**SPEC, "resources": {"gpu": 1}}))


def test_what_cannot_be_told_for_sure_counts_as_there(tmp_path: Path) -> None:
    assert (capacity.resources({}, tmp_path) or {})["GPU"] == 0.0
    (tmp_path / "nvidia0").touch()
    assert (capacity.resources({}, tmp_path) or {})["GPU"] == float("inf")
    assert (capacity.resources({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path) or {})["GPU"] == 2.0
    assert capacity.resources({"RAY_OVERRIDE_RESOURCES": "{}"}, tmp_path) is None


def test_stop_of_a_driver_that_does_not_end_returns_and_says_which_process_it_is(
    tmp_path: Path,
) -> None:
    places = Places.at(str(tmp_path)).writable()
    office = Office(store=LocalStore(tmp_path / "simulated"), driver="vm:4711:abc")
    try:
        with (
            driving(places, "simulated"),
            pytest.raises(
                UserError, match="its driver is process 4711 on vm, which `kill -9 4711`"
            ),
        ):
            stop("simulated", str(tmp_path), wait=0.1)
        with pytest.raises(UserError, match="is not running"):
            stop("simulated", str(tmp_path), wait=0.1)
    finally:
        office.close()


def test_a_stop_that_an_end_has_overtaken_is_not_for_the_next_session(tmp_path: Path) -> None:
    places, store = Places.at(str(tmp_path)).writable(), LocalStore(tmp_path / "simulated")
    office = Office(store=store, driver="vm:4711:abc")
    with ThreadPoolExecutor(1) as pool:
        with driving(places, "simulated"):
            told = pool.submit(stop, "simulated", str(tmp_path), wait=60.0)
            while not store.list("control/"):
                assert not told.done(), told.result()
            office.close()  # its driver ends without having looked
        told.result()
    assert store.list("control/") == []


def test_an_ending_that_has_begun_answers_who_asks_for_a_stop_meanwhile(tmp_path: Path) -> None:
    store, asked = LocalStore(tmp_path), Interrupts()
    asked.begin("interrupted", "it was terminated (SIGTERM)")
    with stop_requests(store, asked):
        request_stop(store)
    assert store.list("control/") == []
    assert asked.begun == ("interrupted", "it was terminated (SIGTERM)")


SPEAKS = """
import sys, time
from regrow.show.live.terminal import Terminal

console = Terminal()
console.print("one")
sys.stdin.readline()
console.print("two")
console.print("three")
sys.exit(3)
"""


def test_a_full_disk_ends_nothing_and_is_remembered() -> None:
    with Path("/dev/full").open("w") as full:
        console = Terminal()
        console.file = full
        console.print("one")
        console.print("two")
        redirect_to_null(console.file)
    assert console.lost == os.strerror(errno.ENOSPC)


def test_a_command_whose_output_cannot_be_written_says_so_and_closed_streams_are_none_of_its_files() -> (
    None
):
    command = [sys.executable, "-m", "regrow", "schema"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        "regrow: standard output cannot be written: No space left on device\n",
    )
    assert (
        subprocess.run(
            ["sh", "-c", f"exec {shlex.join(command)} <&- >&- 2>&-"], check=False
        ).returncode
        == 0
    )


def test_a_reader_that_goes_away_ends_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SPEAKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "one\n"
        process.stdout.close()
        process.stdin.write("continue\n")
        process.stdin.flush()
        assert process.wait(30) == 3
