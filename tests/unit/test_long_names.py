"""An experiment with a long name, many parameters and many metrics, wherever it is shown: names
are cut, values are not, and what is left out is counted.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regrow.apps.page import trials as page
from regrow.apps.page.asked import TableQuery
from regrow.cli import compare, ls, tables, trial
from regrow.search.history import History
from regrow.search.numbers import columned, readable
from regrow.search.planning.simulator import FunctionObjective, Simulation
from regrow.search.spec import Spec
from regrow.show.live.board import Board
from regrow.show.live.grid import ASCII, Signs
from regrow.show.live.sections import compose
from regrow.show.live.terminal import PlainConsole
from regrow.show.report import table
from regrow.show.views import summaries
from regrow.show.views.names import middle, shortened
from tests.unit.paged import logged

LONG = "image-classification-of-histopathology-slides-frozen-backbone"
PARAMETERS = [
    f"{what}_of_the_{part}_in_the_{phase}_phase"
    for what in ("learning_rate", "weight_decay", "dropout_probability")
    for part in ("backbone", "classification_head")
    for phase in ("first", "second")
]
METRICS = [
    f"{where}/{what}_of_the_held_out_fold"
    for where in ("validation", "test")
    for what in ("accuracy", "f1_score", "precision", "recall", "calibration", "cross_entropy")
]


def learn(config: dict[str, Any], step: int) -> dict[str, float]:
    base = sum(config.values()) * step
    return {name: base + place for place, name in enumerate(METRICS)}


@cache
def simulated(name: str = LONG + "-1", **changes: Any) -> Simulation:
    spec = Spec.parse(
        {
            "name": name,
            "trainable": "work.py:train",
            "metric": METRICS[0],
            "mode": "max",
            "space": {parameter: {"uniform": [0.001, 1.0]} for parameter in PARAMETERS},
            "search": "random",
            "schedule": "fifo",
            "trials": 8,
            "max_steps": 3,
            **changes,
        }
    )
    objective = FunctionObjective(function=learn, spec=spec)
    return Simulation(spec=spec, objective=objective, workers=2).open().run()


def console(width: int) -> Console:
    return PlainConsole(file=io.StringIO(), width=width)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Console:
    """The terminal of this width that commands print on."""
    made = console(request.param)
    for module in (compare, ls, trial):
        monkeypatch.setattr(module, "plain_console", lambda: made)
    return made


def printed(on: Console) -> list[str]:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue().splitlines()


def test_names_are_cut_in_their_middle_and_stay_different() -> None:
    assert middle("validation_accuracy", 11) == "valid…uracy"
    assert middle("validation_accuracy", 11, "~") == "valid~uracy"
    names = ["optimizer_rate_of_the_backbone", "optimizer_decay_of_the_backbone", "short"]
    assert shortened(names, [12] * 3) == ["…rate…ckbone", "…deca…ckbone", "short"]
    alike = ["a" * 40 + "b" + "c" * 40, "a" * 40 + "d" + "c" * 40, "a" * 41, "x", "x"]
    for most in (1, 4, 12):
        cut = shortened(alike, [most] * 5)
        assert len(set(cut)) == 4
        assert cut[3] == cut[4] == "x"


@pytest.mark.parametrize("width", [80, 160, 400, 5000])
def test_the_table_of_trials_has_parameters_then_metrics_and_counts_the_rest(width: int) -> None:
    history, at = simulated().history, console(width)
    made = tables.trials(history, at)
    at.print(made)
    lines = printed(at)
    assert max(map(len, lines)) <= width
    fixed, parameters = lines[0].index("parameters"), lines[0].index("metrics")
    titles = lines[1][fixed:parameters].split(), lines[1][parameters:].split()
    hidden = len(PARAMETERS) - len(titles[0]), len(METRICS) - len(titles[1])
    assert len({*titles[0], *titles[1]}) == len(titles[0]) + len(titles[1])
    assert hidden[1] == 11 or not hidden[0], "parameters that differ come before other metrics"
    told = f"{hidden[0]} more parameters, {hidden[1]} more metrics: a wider terminal, --csv"
    if hidden[0]:
        assert lines[-1].strip() == told
    for line, one in zip(lines[2:], summaries.ranked(history), strict=False):
        assert one.best is not None
        assert line[parameters:].split()[0] == columned([one.best[0]])[0]
        row = line[:fixed].split() + line[fixed:].split()
        assert len(row) == 5 + len(titles[0]) + len(titles[1]), "every value is there, whole"
    if width == 5000:
        assert titles == (PARAMETERS, METRICS)


def test_a_number_is_never_cut_in_the_table_of_trials() -> None:
    spec = Spec.parse(
        {
            **simulated().history.spec.to_json(),
            "metric": "score",
            "space": {
                "kind": {"choice": ["of a name that is long", "of another name that is long"]},
                "x": {"choice": [0.123456789012, 0.123456789013]},
            },
        }
    )

    def near(config: dict[str, Any], step: int) -> dict[str, float]:
        return {"score": 0.999999999999 - config["x"] * 1e-9 * (step == 3), "loss": 1e-12}

    objective = FunctionObjective(function=near, spec=spec)
    history = Simulation(spec=spec, objective=objective, workers=2).open().run().history
    at = console(79)
    at.print(tables.trials(history, at))
    lines = printed(at)
    assert "of a…is long" in "".join(lines)
    for one in history.trials:
        assert one.best is not None
        row = next(line.split() for line in lines[2:] if line.split()[0] == str(one.number))
        assert columned([one.best[0], 1.0])[0] in row, "the objective, whole"


@pytest.mark.parametrize("signs", [Signs(), ASCII])
@pytest.mark.parametrize(("width", "height"), [(79, 23), (159, 49)])
def test_the_live_view_keeps_values_and_counts_columns(
    width: int, height: int, signs: Signs
) -> None:
    board = Board()
    for event in simulated().events[:-14]:
        board.apply(event)
    history = board.history
    assert history.running
    lines = [
        line.plain
        for line in compose(board, width=width, height=height, now=history.t_last, signs=signs)
    ]
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("image-class"), lines[0]
    assert lines[0].split()[0].endswith("backbone-1"), "both ends of its name"
    running = next(n for n, line in enumerate(lines) if line.startswith("running"))
    shown = [title for title in lines[running].split() if "fold" in title]
    assert 1 < len(shown) < len(METRICS)
    assert lines[running].endswith(" more")
    assert int(lines[running].split()[-2]) >= len(METRICS) - len(shown)
    best = next(n for n, line in enumerate(lines) if line.startswith("best"))
    value = readable(board.leaders.trials[0].best[0])  # type: ignore[index]  # it has one
    assert value in lines[best + 1].split()
    assert "=" in lines[best + 1], "values of parameters are in sight"
    latest = next(n for n, line in enumerate(lines) if line.startswith("latest"))
    ended = [line.rstrip(" *").split()[-1] for line in lines[latest + 1 :] if " done at " in line]
    values = {readable(t.best[0]) for t in history.trials if t.best is not None}
    assert ended
    assert {*ended} <= values


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in (1, 2, 3):
        name = f"{LONG}-{number}"
        logged(tmp_path, name, simulated(name, seed=number).events)
    return tmp_path


@pytest.mark.parametrize("terminal", [60, 80, 160], indirect=True)
def test_the_list_keeps_its_values_and_names_what_it_leaves_out(
    terminal: Console, root: Path
) -> None:
    ls.ls(str(root))
    titles, *rows = printed(terminal)
    names = [row.split()[0] for row in rows[:3]]
    assert len({*names}) == 3
    assert [name[-2:] for name in names] == ["-1", "-2", "-3"]
    assert all("finished" in row and "8/8" in row for row in rows[:3])
    gone = {"wasted", "size", "ran"} - {*titles.split()}
    assert all(title in rows[-1] for title in gone)
    assert ("not shown" in rows[-1]) == bool(gone)


@pytest.mark.parametrize("terminal", [60, 80, 160], indirect=True)
def test_a_comparison_keeps_its_values_and_marks_what_differs(
    terminal: Console, root: Path
) -> None:
    names = [f"{LONG}-{number}" for number in (1, 2, 3)]
    compare.compare(names, str(root))
    lines = printed(terminal)
    history = simulated(names[0], seed=1).history
    assert history.best is not None
    cells = [cell for line in lines for cell in line.split()]
    for value in history.trials[history.best].config.values():
        assert readable(value) in cells
    starred = {line.split()[0] for line in lines if " * " in line and "phase" in line}
    assert starred
    assert len(starred) % len(PARAMETERS) == 0, "in each part of the table"


@pytest.mark.parametrize("terminal", [60, 120], indirect=True)
def test_one_trial_has_its_parameters_then_its_metrics(
    terminal: Console, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trial.trial(f"{LONG}-1", 2, state=str(root))
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("parameters, proposed by random:")
    then = lines.index("metrics at step 3, its best:")
    config = simulated(seed=1).history.trials[2].config
    values = [line.rpartition(": ")[2] for line in lines[first + 1 : then]]
    assert values == [repr(value) for value in config.values()]
    metrics = lines[then + 1 : then + 1 + len(METRICS)]
    assert max(map(len, [*lines[first:then], *metrics])) <= terminal.width + 4, (
        "names that would look the same are cut less"
    )


def test_the_report_and_the_page_have_headings_and_the_whole_names() -> None:
    history = simulated().history
    columns = table.rows(history)["columns"]
    kinds = [column["kind"] for column in columns]
    assert kinds[2:26] == ["parameter"] * 12 + ["objective"] + ["metric"] * 11
    assert [column["name"] for column in columns[2:26]] == PARAMETERS + METRICS
    assert len({column["title"] for column in columns}) == len(columns)
    assert max(len(column["title"]) for column in columns) < 30
    shown = page.table(history, TableQuery())
    assert [name for name, _ in shown["parameters"]] == PARAMETERS
    assert [shown["metric"], *(name for name, _ in shown["metrics"])] == METRICS
    assert len(shown["groups"][0]["rows"][0]["metrics"]) == 11


def test_the_report_and_the_page_count_what_has_no_column() -> None:
    history = wide()
    assert table.left_out(history) == "2 parameters, 1 metric"
    assert page.table(history, TableQuery())["left_out"] == "2 parameters, 1 metric"
    assert table.left_out(simulated().history) == ""


def wide() -> History:
    names = [*PARAMETERS, "one", "two"]

    def more(config: dict[str, Any], step: int) -> dict[str, float]:
        return {**learn(config, step), "another": 1.0}

    spec = Spec.parse(
        {
            **simulated().history.spec.to_json(),
            "space": {name: {"uniform": [0.0, 1.0]} for name in names},
        }
    )
    objective = FunctionObjective(function=more, spec=spec)
    return Simulation(spec=spec, objective=objective, workers=2).open().run().history
