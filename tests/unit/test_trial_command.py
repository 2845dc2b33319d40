"""`regrow trial NAME N`: all that the log has of one trial, and what can be done next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import regrow as rg
from regrow.infra.log.log import Log
from regrow.infra.state.places import Places
from regrow.search.events import encode
from regrow.search.history import History
from regrow.search.numbers import readable
from regrow.tasks.errors import UserError
from regrow.tasks.output.traces import one_line
from tests.unit.exported import regrow
from tests.unit.revived import simulated


def test_each_trial_is_shown_with_its_attempts_and_why_it_stands_so(
    unfinished_root: Path, unfinished_history: History
) -> None:
    name = unfinished_history.spec.name
    for trial in unfinished_history.trials:
        shown = regrow("trial", name, trial.number, "--state", unfinished_root)
        assert shown.exit_code == 0, shown.output
        head = shown.stdout.splitlines()[0]
        assert head.startswith(f"trial {trial.number} of {name}: {trial.state.value}")
        for attempt in trial.attempts:
            assert one_line(attempt.message) in shown.stdout
        if trial.best is not None:
            assert readable(trial.best[0]) in shown.stdout
        assert f"regrow trial {name} {trial.number} --again --seeds 3" in shown.stdout
        view = json.loads(
            regrow("trial", name, trial.number, "--json", "--state", unfinished_root).stdout
        )
        assert (view["number"], len(view["attempts"])) == (trial.number, len(trial.attempts))


def test_a_trial_that_is_not_there_is_named_with_those_that_are(
    unfinished_root: Path, unfinished_history: History
) -> None:
    name = unfinished_history.spec.name
    failed = regrow("trial", name, 999, "--state", unfinished_root).exception
    assert isinstance(failed, UserError)
    last = len(unfinished_history.trials) - 1
    assert f"there is no trial 999 in '{name}'; it has the trials 0 to {last}" in str(failed)


def test_its_configuration_is_copied_for_a_run_of_its_own(
    unfinished_root: Path,
    unfinished_history: History,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    name = unfinished_history.spec.name
    words = ("cp", name, "again.yaml", "--trial", 1, "--set", "max_steps=99")
    copied = regrow(*words, "--state", unfinished_root)
    assert copied.exit_code == 0, copied.output
    written = (tmp_path / "again.yaml").read_text()
    assert "Here its trial 1 alone is run again." in written
    assert "max_steps: 99" in written
    assert "trials: 1" in written
    assert "schedule:" not in written
    assert "points:" not in written, "the space is that configuration"


def test_trials_are_dropped_and_kept_by_a_condition(tmp_path: Path) -> None:
    run = simulated(schedule="fifo").open().run()
    Log.open(Places.at(str(tmp_path)).writable().store("simulated")).claim(
        [encode(event) for event in run.events]
    )

    def typed(*words: object) -> Any:
        return regrow("trial", "simulated", *words, "--state", tmp_path)

    best = run.history.best
    listed = typed("--where", f"trial == {best} and state == done")
    assert listed.stdout.splitlines()[2].split()[:2] == [str(best), "done"]
    asked = typed(best, "--drop")
    assert isinstance(asked.exception, UserError)
    assert "say it with --yes" in str(asked.exception)
    dropped = typed("--where", f"trial == {best}", "--drop", "--yes")
    assert f"trial {best} of simulated: dropped" in dropped.stdout, dropped.output
    assert "the best is trial" in dropped.stdout
    assert f"the best is trial {best}:" not in dropped.stdout
    shown = typed(best).stdout
    assert shown.startswith(f"trial {best} of simulated: done, dropped at step 9")
    assert f"regrow trial simulated {best} --keep" in shown
    assert "nothing to do: it is dropped already" in typed(best, "--drop", "--yes").stdout
    kept = typed("--where", "dropped == true", "--keep", "--yes").stdout
    assert f"trial {best} of simulated: kept" in kept
    assert f"the best is trial {best}:" in kept

    python = rg.open("simulated", str(tmp_path))
    assert best is not None
    python.trial(best).drop()
    assert python.best is not None
    assert python.best.trial != best
    python.trial(best).keep()
    assert python.best.trial == best
    python.trial(best).stop()  # nothing happens to one that has ended
    assert python.trial(best).state == "done"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name one trial by its number"),
        ((1, "--where", "trial < 3"), "name one trial by its number"),
        ((1, "--drop", "--keep"), "exclude each other"),
        ((1, "--drop", "--yes", "--json"), "--json shows trials"),
        (("--code", "none"), "no trial of"),
        (("--code", "abc"), "at least 4 characters"),
    ],
)
def test_what_cannot_be_selected_is_refused(
    unfinished_root: Path, unfinished_history: History, words: tuple[object, ...], told: str
) -> None:
    name = unfinished_history.spec.name
    failed = regrow("trial", name, *words, "--state", unfinished_root).exception
    assert isinstance(failed, UserError)
    assert told in str(failed)
