"""What a notebook's cell is sent while an experiment runs. With a real kernel:
tests/system/test_notebook.py.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from regrow import notebook
from regrow.figures import Figures
from regrow.notebook import NotebookViewer, in_notebook
from regrow.search.events import encode
from regrow.search.planning.simulator import FunctionObjective
from tests.unit import exported
from tests.unit.told import rows_of


class Cell:
    """Where a kernel's messages go: how many new outputs there were, and what each picture
    showed.
    """

    def __init__(self) -> None:
        self.outputs = 0
        self.pictures: list[dict[str, Any]] = []

    def display(self, picture: dict[str, Any], *, raw: bool, display_id: bool = False) -> Cell:
        """As IPython.display has it; the cell is the handle as well."""
        assert raw
        self.outputs += 1
        self.pictures.append(picture)
        return self

    def update(self, picture: dict[str, Any], *, raw: bool) -> None:
        """As a handle has it."""
        assert raw
        self.pictures.append(picture)

    @property
    def html(self) -> list[str]:
        return [str(picture["text/html"]) for picture in self.pictures]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    found, ipython, display = Cell(), ModuleType("IPython"), ModuleType("IPython.display")
    display.display = found.display  # type: ignore[attr-defined]  # a stand-in
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "PERIOD_SECONDS", 0.0)
    return found


def test_one_output_is_renewed_from_the_first_line_to_the_last(cell: Cell) -> None:
    assert in_notebook()
    events = exported.simulation(
        space={"x": {"uniform": [0, 1]}, "kind": {"choice": ["<b>", "c"]}},
        trials=30,
        schedule="fifo",
    )
    events.objective = FunctionObjective(
        function=lambda config, step: {"score": config["x"] * step}, spec=events.spec
    )
    events.run()
    viewer = NotebookViewer()
    viewer.say("Prefect: http://127.0.0.1:1")
    assert cell.html == ["<div>starting ...</div><pre>Prefect: http://127.0.0.1:1</pre>"]
    for number, event in enumerate(events.events, start=1):
        viewer.apply([(number, [encode(event)])])
    viewer.end(["kinds finished", "or <run> this cell again"])
    assert cell.outputs == 1, "one that is renewed, not a line a trial"
    assert len(cell.pictures) > 30
    under_way = cell.html[len(cell.html) // 2]
    assert "<b>kinds</b> is running" in under_way
    states = re.findall(r"<tr><td>\d+</td><td>(\w+)</td>", under_way)
    assert states == sorted(states, key=lambda state: state != "running"), (
        "those that run come first"
    )
    assert len(states) == notebook.ROWS
    last = cell.html[-1]
    assert "<b>kinds</b> is finished" in last
    assert "and 20 more" in last
    assert "<pre>kinds finished\nor &lt;run&gt; this cell again</pre>" in last
    assert "Prefect:" not in last
    assert all("<b></td>" not in picture for picture in cell.html), "what a user wrote is text"
    assert "30 of 30 trials" in cell.pictures[-1]["text/plain"]


def test_a_quiet_one_shows_nothing(cell: Cell) -> None:
    viewer = NotebookViewer(quiet=True)
    viewer.say("Prefect: http://127.0.0.1:1")
    viewer.end(["over"])
    assert cell.pictures == []


def test_a_terminals_python_is_no_notebook() -> None:
    assert not in_notebook()


def test_a_figure_is_kept_as_plotlys_data_and_as_html_that_needs_nothing_else(cell: Cell) -> None:
    history = exported.history()  # whose events are remembered as long as it is there
    figures = Figures(rows_of(history))
    figures.learning_curves()._ipython_display_()
    figures.all()["slices"]._ipython_display_()
    assert cell.outputs == 2
    for picture in cell.pictures:
        assert picture["application/vnd.plotly.v1+json"]["data"]
        page = picture["text/html"]
        assert "DecompressionStream" in page
        assert not re.search(
            r"(src|href)\s*=|https?://(?!www\.w3\.org)", page[page.index("const figure") :]
        )
