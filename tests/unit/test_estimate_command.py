"""`regrow estimate`, from the command line."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from regrow.infra.log.log import Log
from regrow.infra.state.places import Places
from regrow.search.events import encode
from regrow.search.planning.simulator import FunctionObjective, Machine, simulate
from regrow.show import web
from tests.unit.curve_tables import Call, caller, spec, write

CLUSTER = """
name: sweep
on: aws
region: us-east-1
workers:
  - {type: large, market: spot, most: 8}
  - {type: large, market: on-demand, most: 8}
prices:
  - {type: large, on_demand: 3.0, spot: 1.0}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write(tmp_path / "curves.csv")
    (tmp_path / "work.py").write_text("def train(trial):\n    raise RuntimeError\n")
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec().to_json()))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "trace.json").write_text('{"metadata": {"gap_seconds": 300}, "data": [1, 1, 0, 1]}')
    return tmp_path


@pytest.fixture
def regrow(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Runs `regrow estimate` here: status, standard output, standard error."""
    monkeypatch.chdir(files)

    return caller(monkeypatch, capsys, "estimate", "spec.yaml")


def earlier(root: Path) -> None:
    """An experiment of the same parameters and metric in the state root, with checkpoints that
    took 20 s.
    """
    of = spec(name="earlier", trials=8, schedule="fifo")

    def loss(config: dict[str, Any], step: int) -> float:
        return float(config["lr"]) + 1.0 / step

    objective = FunctionObjective(function=loss, spec=of, seconds=600.0)
    done = simulate(of, objective, machines=[Machine(), Machine()], save=20.0)
    store = Places(root=str(root / ".regrow")).store("earlier")
    Log.open(store).claim([encode(event) for event in done.events])


def test_an_earlier_experiment_tells_what_this_one_costs(regrow: Call, files: Path) -> None:
    earlier(files)
    given = ("--on", "cluster.yaml", "--machines", "2,4", "--budget", "3,100", "--trace")
    status, out, err = regrow(*given, "trace.json", "--simulations", "4")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == ("table: 6 trials, simulated 4 times a line, from curves: 8 of earlier")
    words = "machines budget cost hours best loss in budget"
    assert " ".join(lines[1].split()) == words
    plans = ["2 spot", "4 spot", "2 on-demand", "4 on-demand", "2 spot first", "4 spot first"]
    assert [line[: len(plan)] for line, plan in zip(lines[2:], plans, strict=False)] == plans
    assert "machines: 2: done in" in out or "machines: 4: done in" in out
    assert "less than on-demand" in out
    assert "one takes 20 s, a machine is lost every 15 min" in out
    assert "every 3.16 min (every_steps: 1, or every: auto)" in out
    assert regrow(*given, "trace.json", "--simulations", "4")[1] == out, "the same twice"
    tiny = regrow(*given, "trace.json", "--simulations", "1", "--scale", "1e-320")
    assert (tiny[0], tiny[2]) == (0, "")


def test_for_machines_everything_is_json(regrow: Call, files: Path) -> None:
    earlier(files)
    status, out, _ = regrow(
        *("--on", "cluster.yaml", "--machines", "2", "--simulations", "5", "--json")
    )
    found = json.loads(out)
    assert (status, found["simulations"]) == (0, 5)
    assert found["sources"] == [{"name": "earlier", "curves": 8}]
    assert found["prices"] == {"spot": 1.0, "on-demand": 3.0}
    assert found["timing"]["save"] == 20.0
    spot, on_demand, first = found["plans"]  # machines are there from the beginning to the end
    # 6 trials of 30 min on two machines, which are paid for 3 an hour
    paid = on_demand["cost"]["median"]
    assert paid == pytest.approx(1.5 * (2 * 3.0), rel=0.15)
    assert 0.3 < spot["cost"]["median"] / paid < 0.5
    # but on demand beside spot: one stays, and the other one is not needed
    assert first["cost"]["median"] - spot["cost"]["median"] == pytest.approx(1.5 * 3.0, rel=0.15)
    assert found["recommended"]["kind"] == "spot"
    assert found["more"]["with"]["trials"]["median"] > found["more"]["without"]["trials"]["median"]


def test_a_table_alone_tells_machine_hours(regrow: Call) -> None:
    status, out, err = regrow("--table", "curves.csv", "--machines", "2", "--simulations", "3")
    assert (status, err) == (0, "")
    assert "from curves: 3 of curves.csv" in out
    assert "machine-hours" in out.splitlines()[1]
    assert "assumed: no prices are known" in out
    assert "how long a checkpoint takes is not known" in out


class Page(HTMLParser):
    """Scripts of a page, and its policy."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.policy, self.scripts, self._in = "", list[str](), False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._in = tag == "script" and "type" not in given
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""

    def handle_data(self, data: str) -> None:
        if self._in:
            self.scripts.append(data)
            self._in = False


def test_the_page_has_figures_and_runs_its_own_script_alone(regrow: Call, files: Path) -> None:
    text = (files / "spec.yaml").read_text().replace("metric: loss", "metric: <b>loss")
    (files / "spec.yaml").write_text(text)
    table = (files / "curves.csv").read_text().replace("loss", "<b>loss")
    (files / "curves.csv").write_text(table)
    given = ("--table", "curves.csv", "--machines", "2", "--simulations", "3")
    status, _, err = regrow(*given, "--page", "out.html")
    assert (status, err[:8]) == (0, "out.html")
    page = (files / "out.html").read_text()
    (script,) = Page(page).scripts
    assert web.digest(script) in Page(page).policy
    assert "<b>" not in page
    assert "f-value" in page
    assert "f-time" in page


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], "no experiment in .* has these parameters and this metric; .* --pilot 3"),
        (["--from", "other"], "there is no experiment 'other'"),
        (["--table", "curves.csv", "--from", "a"], "give one"),
        (["--table", "curves.csv", "--machines", "2,x"], "--machines 2,x: write numbers above 0"),
        (["--table", "curves.csv", "--machines", "1.5"], "--machines 1.5: write whole numbers"),
        (["--table", "curves.csv", "--budget", "5"], "--budget: no prices are known"),
    ],
)
def test_a_mistake_is_told_in_a_line(regrow: Call, given: list[str], why: str) -> None:
    status, out, err = regrow(*given)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert re.search(why, err), err
