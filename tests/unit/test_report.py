"""The page of the report as text: what it says, that what users wrote is nowhere markup, and that
it asks nobody anything.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
import yaml

from regrow.infra.state.places import Places
from regrow.search.events import Ended, Opened
from regrow.search.history import History
from regrow.show.report import report, table
from tests.unit.figured import (
    ASHA,
    AWAY,
    KINDS_OF_HISTORIES,
    PBT,
    TWO,
    begun,
    failed,
    folded,
    reported,
    run,
    score,
)
from tests.unit.told import rows_of


class Page(HTMLParser):
    """A page as a browser reads it: elements with their attributes, texts, what is in scripts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._in = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        elif self._in != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found


def written(history: History, *, alive: bool = False) -> str:
    return report.html(rows_of(history), Places(root="/state"), alive=alive, now=history.t_last)


@pytest.fixture(scope="module")
def lossy() -> History:
    return run(machines=AWAY, checkpoint={"every_steps": 3}, price_per_hour=7200.0).history


def test_the_page_says_how_it_stands_and_gives_the_best_configuration_to_paste(
    lossy: History,
) -> None:
    page = Page(written(lossy))
    assert lossy.best is not None
    trial = lossy.trials[lossy.best]
    assert trial.best is not None
    assert (
        f"Trial {trial.number} reached score {trial.best[0]:.5g} at step {trial.best[1]} of its 9"
        in page.text
    )
    configuration = next(text for text in page.texts if text.startswith("lr: "))
    assert yaml.safe_load(configuration) == trial.config
    manifest = trial.checkpoints[max(trial.checkpoints)].manifest
    assert f"/state/figures/{manifest}" in page.text
    assert "regrow best figures --save FOLDER --state /state" in page.text
    assert "16 of 16 ended" in page.text
    assert "regrow resume figures --trials 26 --state /state" in page.text
    assert (
        yaml.safe_load(next(text for text in page.texts if text.startswith("name: figures")))
        == lossy.spec.to_json()
    )


def test_costs_and_waste_are_those_of_show(lossy: History) -> None:
    from regrow.show.views import summaries

    view = summaries.show(lossy, alive=False, now=lossy.t_last)
    text = Page(written(lossy)).text
    assert f"Cost {view['cost']:,.2f} at 7200 for a slot and hour" in text
    assert f"Steps {view['steps']:,} {view['wasted_steps']} of them done again" in text
    assert f"{view['waste']['preempted']['attempts']} attempts cut off" in text


@pytest.mark.parametrize("kind", KINDS_OF_HISTORIES)
def test_there_is_a_page_for_each_kind_of_history(kind: str) -> None:
    page = Page(written(KINDS_OF_HISTORIES[kind]()))
    drawn = {
        attributes["data-figure"] for _, attributes in page.elements if "data-figure" in attributes
    }
    assert drawn == page.data["figures"].keys()
    assert len(page.data["trials"]) == len(KINDS_OF_HISTORIES[kind]().trials)
    assert "NaN" not in page.scripts[0]
    assert "Infinity" not in page.scripts[0]


def test_a_figure_that_has_nothing_to_show_says_why() -> None:
    text = Page(written(folded(begun()))).text
    assert "Learning curves. No trial has reported a step yet." in text
    assert "Wasted work. No work was lost." in text


@pytest.mark.parametrize(
    ("history", "said"),
    [
        (lambda: folded(begun(2)), "No trial has reported a value yet."),
        (lambda: folded(failed(message="out of luck")), "The last one to fail said: out of luck"),
        (
            lambda: run(constraints=["seconds <= -1"]).history,
            "No step met the constraints: seconds <= -1.",
        ),
    ],
)
def test_where_there_is_no_best_trial_it_says_why(history: Any, said: str) -> None:
    assert said in Page(written(history())).text


def test_an_experiment_that_runs_is_shown_as_it_stands() -> None:
    history = folded(reported([1.0, 2.0], trials=5))
    page = Page(written(history, alive=True))
    assert "running" in page.text
    assert "regrow stop figures" in page.text
    assert "4 not yet proposed" in page.text
    assert page.data["trials"][0]["attempts"][0]["outcome"] == "running"
    assert "interrupted" in Page(written(history)).text
    assert "regrow resume figures" in Page(written(history)).text


def test_several_metrics_are_shown_with_their_front() -> None:
    history = run(metric=TWO, mode=None).history
    text = Page(written(history)).text
    assert "The Pareto front of score, seconds" in text
    assert "max score, min seconds" in text


# Safety


NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}"


def test_what_users_wrote_is_nowhere_markup() -> None:
    events = failed(2, message=f"ValueError: {NASTY}")
    events[1] = (
        msgspec.structs.replace(
            events[1],
            environment={"git": {"branch": NASTY}, "user": NASTY, "packages": {NASTY: NASTY}},
        )
        if isinstance(events[1], Opened)
        else events[1]
    )
    ran = run(
        space={NASTY.replace(".", ""): {"choice": [NASTY, "b"]}, "lr": {"uniform": [0.001, 0.1]}},
        metric=NASTY,
        value=lambda config, step: {NASTY: score(config, step), f"{NASTY} 2": 1.0},
        trials=12,
    ).history
    for history in (folded(events), ran):
        page = Page(written(history))
        plain = Page(written(run(trials=1).history))
        assert len(page.scripts) == len(plain.scripts) == 3
        assert {tag for tag, _ in page.elements} <= {tag for tag, _ in plain.elements} | {
            "ul",
            "li",
            "details",
            "summary",
            "tr",
        }
        assert not [
            a
            for tag, a in page.elements
            if tag == "img" or any(name.startswith("on") for name in a)
        ]
        assert "<" not in page.scripts[0]
        assert "49" not in page.text.split("ValueError")[0] or "{{ 7 * 7 }}" in page.text


def test_the_policy_lets_nothing_in_and_no_script_run_but_the_pages_own(lossy: History) -> None:
    page = Page(written(lossy))
    policy = next(
        a["content"]
        for tag, a in page.elements
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(page.scripts[-1].encode()).digest()).decode()
    assert dict(part.strip().split(" ", 1) for part in policy.split(";")) == {
        "default-src": "'none'",
        "script-src": f"'sha256-{digest}' blob:",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    order = [tag for tag, _ in page.elements]
    assert order.index("meta") < order.index("style"), "a policy holds for what comes after it"


def test_the_page_refers_to_nothing_outside_of_itself(lossy: History) -> None:
    page = Page(written(lossy))
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), f"<{tag} {name}={value}>"
    style = re.search(r"<style>(.*?)</style>", written(lossy), re.DOTALL)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_plotlys_script_is_in_it_once_and_packed(lossy: History) -> None:
    from plotly.offline import get_plotlyjs

    page = written(lossy)
    assert gzip.decompress(base64.b64decode(Page(page).scripts[1])).decode() == get_plotlyjs()
    assert len(page) < 2_400_000


# The table


def test_the_table_has_every_trial_with_its_attempts_and_reasons(lossy: History) -> None:
    rows = table.rows(lossy)
    titles = [column["title"] for column in rows["columns"]]
    assert titles == [
        "trial",
        "state",
        "lr",
        "size",
        "kind",
        "score",
        "seconds",
        "at step",
        "steps",
        "attempts",
        "time",
    ]
    for trial, row in zip(lossy.trials, rows["trials"], strict=True):
        cells = dict(zip(titles, row["cells"], strict=True))
        assert trial.best is not None
        assert (cells["trial"], cells["state"], cells["score"], cells["at step"]) == (
            trial.number,
            trial.state.value,
            *trial.best,
        )
        assert (cells["lr"], cells["size"], cells["kind"]) == tuple(trial.config.values())
        assert [(a["outcome"], a["from"], a["to"], a["node"]) for a in row["attempts"]] == [
            (a.outcome, a.from_step, a.to_step, a.node) for a in trial.attempts
        ]
    assert rows["trials"][lossy.best or 0]["best"]
    assert titles[rows["sorted_by"]] == "score"


def test_a_traceback_is_kept_once_however_many_trials_have_it() -> None:
    rows = table.rows(folded(failed(3)))
    assert rows["traces"] == ["Traceback\nValueError: no"]
    assert [trial["attempts"][0]["trace"] for trial in rows["trials"]] == [0, 0, 0]


def test_ever_new_tracebacks_do_not_make_the_page_big() -> None:
    events = failed(table.TRACES + 5)
    events = [
        msgspec.structs.replace(event, trace="x" * 20_000 + f"{event.trial}")
        if isinstance(event, Ended)
        else event
        for event in events
    ]
    rows = table.rows(folded(events))
    assert len(rows["traces"]) == table.TRACES
    assert {len(trace) for trace in rows["traces"]} == {table.TRACE}
    assert rows["trials"][-1]["attempts"][0]["trace"] is None


def test_why_the_scheduler_stopped_a_trial_is_said() -> None:
    history = run(schedule=ASHA).history
    stopped = next(t for t in history.trials if t.state.value == "stopped")
    row = table.rows(history)["trials"][stopped.number]
    assert re.fullmatch(r"place \d+ of \d+ at rung \d, \d go on", row["attempts"][-1]["message"])


def test_what_population_based_training_changed_is_said() -> None:
    history = run(schedule=PBT, workers=16).history
    changed = next(t for t in history.trials if t.changes and t.changes[0].source is not None)
    said = table.rows(history)["trials"][changed.number]["changes"][0]
    assert said.startswith(
        f"after step 3: the weights of trial {changed.changes[0].source} at its step "
    )
