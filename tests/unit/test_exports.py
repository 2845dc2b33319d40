"""`regrow export`, and what all exports keep to."""

from __future__ import annotations

from pathlib import Path

import pytest

from regrow.search.events import Closing
from regrow.show.exports import files, frames, tensorboard
from regrow.tasks.errors import UserError
from tests.unit import exported
from tests.unit.exported import regrow
from tests.unit.fresh import printed
from tests.unit.told import rows_of


def test_export_writes_a_study_and_says_how_to_open_it(
    unfinished_root: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    done = regrow(
        "export", "kinds", "--optuna", url, "--study-name", "mine", "--state", unfinished_root
    )
    assert done.exit_code == 0
    assert f"optuna-dashboard {url}" in done.output
    assert "study 'mine', 10 trials" in done.output
    assert "note: normally distributed" in done.output
    again = regrow(
        "export", "kinds", "--optuna", url, "--study-name", "mine", "--state", unfinished_root
    )
    assert isinstance(again.exception, UserError)
    assert "has a study 'mine' already" in str(again.exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kinds"], "say what to write"),
        (["kinds", "--tensorboard", "tb", "--study-name", "s"], "--study-name goes with --optuna"),
        (["nosuch", "--tensorboard", "tb"], "there is no experiment 'nosuch'"),
    ],
)
def test_a_mistake_with_export_is_said_in_a_line(
    words: list[str], said: str, unfinished_root: Path
) -> None:
    done = regrow("export", *words, "--state", unfinished_root)
    assert isinstance(done.exception, UserError)
    assert said in str(done.exception)


def test_an_interrupted_experiment_is_exported_as_it_stands(tmp_path: Path) -> None:
    run = exported.simulation().run(most_events=60)
    run.record(Closing(t=run.now, status="interrupted", why="by the user", by="user"))
    history = run.run().history
    assert "paused" in {trial.state.value for trial in history.trials}
    tensorboard.write(rows_of(history), tmp_path / "tb")
    assert (
        len(b"".join(files.csv_bytes([frames.trials(rows_of(history))])).splitlines())
        == len(history.trials) + 1
    )


def test_listing_trials_loads_none_of_the_heavy_libraries(unfinished_root: Path) -> None:
    code = (
        "import sys\n"
        "from regrow.cli.app import app\n"
        "try:\n    app(['trials', 'kinds', '--csv', '--state', sys.argv[1]])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'pandas', 'optuna', 'plotly', 'tensorboardX', 'pyarrow', 'mlflow'} & set(sys.modules)))\n"
    )
    assert printed(code, unfinished_root).splitlines()[-1] == "[]"
