"""What the figures say of histories of many kinds: the right numbers in them, and nothing where there is nothing."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import threading
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image

from regrow.infra import pictures
from regrow.infra.figures import (
    KINDS,
    best_trial,
    figure,
    importances,
    learning_curves,
    lineage,
    look,
    optimization_history,
    parallel_coordinates,
    pareto_front,
    rungs,
    series,
    slices,
    timeline,
    wasted_work,
)
from regrow.search import waste
from regrow.search.events import AnyEvent, Began, Created, Decided, Ended, Opened, Proposed, Reported, Row, Started
from regrow.search.history import History
from regrow.search.lifecycle import TrialState
from regrow.search.simulator import Availability, FunctionObjective, Simulation, simulate
from regrow.search.spec import Spec
from tests.unit.told import its_rows, remember, rows_of

SPEC: dict[str, Any] = {
    "name": "figures", "trainable": "work.py:train", "metric": "score", "mode": "max",
    "space": {"lr": {"loguniform": [1e-4, 1e-1]}, "size": {"int": [1, 64]}, "kind": {"choice": ["a", "b"]}},
    "search": "random", "schedule": "fifo", "trials": 16, "max_steps": 9,
}
ASHA = {"asha": {"grace_period": 1, "reduction_factor": 3}}
PBT = {"pbt": {"perturbation_interval": 3}}
TWO = [{"name": "score", "mode": "max"}, {"name": "seconds", "mode": "min"}]
THREE = [*TWO, {"name": "third", "mode": "max"}]
AWAY = (Availability(changes=(0.0, 8.5, 12.0, 31.5, 200.0)), Availability(changes=(0.0, 22.5, 24.0)))


def score(config: Mapping[str, Any], step: int) -> float:
    """Best at a learning rate of 1e-2, whatever the rest; rises with the steps."""
    return round((1.0 - 0.2 * abs(math.log10(config.get("lr", 0.001)) + 2.0)) * step / (step + 1.0), 9)


def metrics(config: Mapping[str, Any], step: int) -> dict[str, float]:
    return {"score": score(config, step), "seconds": float(config.get("size", 1)) / 64}


def run(*, workers: int = 2, machines: tuple[Availability, ...] = (), value: Any = metrics, **changes: Any) -> Simulation:
    spec = Spec.parse({k: v for k, v in {**SPEC, **changes}.items() if v is not None})
    done = simulate(spec, FunctionObjective(function=value, spec=spec), workers=workers, availability=machines)
    remember(done.history, done.events)
    return done


def folded(events: list[AnyEvent]) -> History:
    history = History()
    for event in events:
        history.apply(event)
    return remember(history, events)


def begun(running: int = 0, **changes: Any) -> list[AnyEvent]:
    """An experiment of which so many trials run and have reported nothing."""
    spec = Spec.parse({k: v for k, v in {**SPEC, **changes}.items() if v is not None})
    events: list[AnyEvent] = [
        Created(t=100.0, id="0", spec=spec.to_json()), Opened(t=100.0, by="driver", driver="d", slots=2, trials=spec.total)
    ]
    for number in range(running):
        events += [
            Proposed(t=101.0, trial=number, config={"lr": 0.01, "size": number, "kind": "a"}),
            Started(t=101.0, trial=number, attempt=1), Began(t=102.0, trial=number, attempt=1, node="n1"),
        ]
    return events


def failed(trials: int = 3, message: str = "ValueError: no") -> list[AnyEvent]:
    """All trials raise before their first step."""
    ends = [
        Ended(t=103.0, trial=n, attempt=1, outcome="failed", cause="error", message=message, trace=f"Traceback\n{message}")
        for n in range(trials)
    ]
    return [*begun(trials), *ends]


def reported(values: list[float | None], **changes: Any) -> list[AnyEvent]:
    """One trial that runs: its objective rises, `values` are those of another metric, None for NaN."""
    rows = [Row(n, 102.0 + n, {"score": n / 10, "other": v}) for n, v in enumerate(values, start=1)]
    return [*begun(1, **changes), Reported(t=110.0, trial=0, attempt=1, rows=rows)]


KINDS_OF_HISTORIES: dict[str, Callable[[], History]] = {
    "empty": lambda: folded(begun()),
    "running, no report": lambda: folded(begun(2)),
    "failed only": lambda: folded(failed()),
    "one trial": lambda: run(trials=1).history,
    "one step": lambda: run(max_steps=1).history,
    "metrics that are NaN": lambda: folded(reported([None, 1.0, None])),
    "a metric that is always NaN": lambda: folded(reported([None, None])),
    "categories only": lambda: run(space={"a": {"choice": ["x", "y", [1, 2], None]}, "b": {"choice": [True, False]}}).history,
    "constants only": lambda: run(space={"a": 1, "b": "x"}, repeats=16).history,
    "conditional": lambda: run(space={"o": {"choice": ["s", "t"]}, "m": {"uniform": [0, 1], "when": {"o": "s"}}}).history,
    "grid": lambda: run(space={"g": {"grid": [1, 2, 3]}, "h": {"grid": ["u", "v"]}}, search="grid", trials=6).history,
    "normal": lambda: run(space={"lr": {"normal": [0.01, 0.001]}}).history,
    "asha": lambda: run(schedule=ASHA).history,
    "asha, promoting": lambda: run(schedule={"asha": {"type": "promotion"}}).history,
    "hyperband": lambda: run(schedule="hyperband").history,
    "pbt": lambda: run(schedule=PBT, workers=16).history,
    "two metrics": lambda: run(metric=TWO, mode=None).history,
    "three metrics, constraints": lambda: run(metric=THREE, mode=None, value=three, constraints=["seconds <= 0.5"]).history,
    "no step meets the constraints": lambda: run(constraints=["seconds <= -1"]).history,
    "one of a thousand diverged": lambda: run(mode="min", value=diverging, trials=40).history,
    "lossy": lambda: run(machines=AWAY, checkpoint={"every_steps": 3}).history,
    "all values the same": lambda: run(value=lambda config, step: 1.0).history,
}


def three(config: Mapping[str, Any], step: int) -> dict[str, float]:
    return {**metrics(config, step), "third": math.sin(100 * config["lr"])}


def diverging(config: Mapping[str, Any], step: int) -> float:
    return 1e9 if config["size"] in (3, 4, 5) else 1.0 - score(config, step) / 2


@pytest.fixture(scope="module")
def histories() -> dict[str, History]:
    return {name: make() for name, make in KINDS_OF_HISTORIES.items()}


@pytest.fixture(scope="module")
def figures(histories: dict[str, History]) -> Callable[[str, str], Any]:
    """Each figure of each history, made once: 40 ms on average."""
    return cache(lambda kind, name: figure(rows_of(histories[kind]), name))


def plain(array: Any) -> list[Any]:
    """The values of a trace's array, as Plotly.py holds it."""
    found: list[Any] = np.asarray(array).tolist()
    return found


def made_by(kind: Any, history: History) -> Any:
    """The figure, which is there."""
    made = kind.figure(rows_of(history))
    assert made is not None
    return made


def traces(made: Any, **wanted: Any) -> list[Any]:
    return [trace for trace in made.data if all(trace[key] == value if key in trace else False for key, value in wanted.items())]


def lines(trace: Any) -> dict[int, list[tuple[float, float]]]:
    """The lines of a trace that has many, by the number of the trial."""
    found: dict[int, list[tuple[float, float]]] = {}
    for x, y, number in zip(plain(trace.x), plain(trace.y), plain(trace.customdata), strict=True):
        if not math.isnan(y):
            found.setdefault(number, []).append((x, y))
    return found


# All of them


@pytest.mark.parametrize("kind", KINDS_OF_HISTORIES)
@pytest.mark.parametrize("name", KINDS)
def test_each_figure_of_each_history_is_one_that_plotly_takes_or_none_with_a_reason(
    kind: str, name: str, figures: Callable[[str, str], Any]
) -> None:
    made = figures(kind, name)
    assert KINDS[name].NOTHING.endswith(".")
    if made is not None:
        again = json.loads(made.to_json())
        assert again["data"], "a figure without anything in it"
        assert {"note", "min_width"} == again["layout"]["meta"].keys()
        assert 200 <= again["layout"]["height"] <= 2000


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("empty", set()),
        ("running, no report", {"timeline"}),
        ("failed only", {"timeline", "wasted_work"}),
        ("one trial", {"optimization_history", "learning_curves", "best_trial", "timeline"}),
        ("constants only", {"optimization_history", "learning_curves", "best_trial", "timeline"}),
        ("no step meets the constraints", {"learning_curves", "timeline"}),
        ("asha", {*KINDS} - {"pareto_front", "lineage", "wasted_work"}),
        ("pbt", {*KINDS} - {"pareto_front", "rungs", "wasted_work"}),
        ("two metrics", {*KINDS} - {"rungs", "lineage", "wasted_work"}),
        ("lossy", {*KINDS} - {"pareto_front", "rungs", "lineage"}),
    ],
)
def test_figures_are_there_where_they_have_something_to_show(
    kind: str, expected: set[str], figures: Callable[[str, str], Any]
) -> None:
    assert {name for name in KINDS if figures(kind, name) is not None} == expected


def test_what_users_wrote_is_no_markup_no_template_and_no_formula_to_plotly() -> None:
    nasty = "<b>$x$ %{y} & </script>"
    history = run(
        space={nasty.replace(".", ""): {"choice": ["<i>one</i>", "%{x}"]}, "lr": {"uniform": [0.001, 0.1]}}, metric=nasty, trials=12,
        value=lambda config, step: {nasty: score(config, step)},
    ).history
    for name in KINDS:
        made = figure(rows_of(history), name)
        if made is not None:
            written = json.dumps(json.loads(made.to_json()))  # Plotly.py writes "<" as "\\u003c"
            for raw in ("<b>$", "<b>&#36;", "<i>one", "%{y} &", "</script", "$x$"):
                assert raw not in written.replace("<b>&lt;", ""), f"{raw} in {name}"


# Optimisation history


def test_the_optimization_history_has_every_trial_at_its_best_and_the_best_so_far(histories: dict[str, History]) -> None:
    history = histories["asha"]
    made = made_by(optimization_history, history)
    points = {}
    for trace in traces(made, mode="markers"):
        if not trace.name.startswith("best"):
            outcome = trace.name.split(" ")[0]
            points.update({n: (y, outcome) for n, y in zip(trace.x, trace.y, strict=True)})
    assert points == {t.number: (t.best[0], t.state.value) for t in history.trials if t.best}
    (line,) = traces(made, name="best so far")
    so_far = [max(t.best[0] for t in history.trials[: n + 1] if t.best) for n in range(len(history.trials))]
    drawn = dict(zip(line.x, line.y, strict=True))
    assert [drawn[n] for n in drawn] == [so_far[n] for n in drawn]
    assert {so_far.index(value) for value in so_far} <= drawn.keys()
    (star,) = (trace for trace in made.data if trace.name == f"best: trial {history.best}")
    assert (star.x[0], star.y[0]) == (history.best, max(so_far))


def test_where_less_is_better_the_best_so_far_falls() -> None:
    history = run(mode="min").history
    (line,) = traces(made_by(optimization_history, history), name="best so far")
    assert list(line.y) == sorted(line.y, reverse=True)
    assert line.y[-1] == min(t.best[0] for t in history.trials if t.best)


def test_of_very_many_trials_a_part_is_drawn_and_it_says_so() -> None:
    history = run(trials=4000, max_steps=1, workers=50).history
    made = made_by(optimization_history, history)
    drawn = [n for trace in traces(made, mode="markers") for n in trace.x]
    assert 2900 <= len(drawn) <= 3200
    assert {n for n, _ in series.best_so_far(history)} <= set(drawn)
    assert "of 4,000 trials" in made.layout.meta["note"]
    curves = made_by(learning_curves, history)
    assert "1,000 of 4,000" in curves.layout.meta["note"] or "1,001 of 4,000" in curves.layout.meta["note"]


def test_outliers_on_the_bad_side_do_not_flatten_the_rest_and_it_says_so(histories: dict[str, History]) -> None:
    values = [1.0 + n / 100 for n in range(60)]
    assert series.span(values, "min") == (None, 0)
    limits, beyond = series.span([*values, 1e9], "min")
    assert limits is not None
    assert (limits[1] < 2, beyond) == (True, 1)
    assert series.span([*values, -1e9], "min") == (None, 0), "on the good side every value is of interest"
    assert series.span([*values, *[1e9] * 5], "min") == (None, 0), "a twelfth of all values are no outliers"


def test_an_axis_over_many_powers_of_ten_is_logarithmic(histories: dict[str, History]) -> None:
    made = made_by(learning_curves, run(mode="min", value=lambda config, step: 10.0 ** -step).history)
    assert made.layout.yaxis.type == "log"
    assert made_by(learning_curves, histories["asha"]).layout.yaxis.type is None


# Learning curves


def test_learning_curves_are_the_values_by_step_by_outcome(histories: dict[str, History]) -> None:
    history = histories["asha"]
    made = made_by(learning_curves, history)
    drawn: dict[int, list[tuple[float, float]]] = {}
    for trace in traces(made, mode="lines"):
        here = lines(trace)
        outcome = trace.legendgroup
        for number in here:
            assert outcome == "best" or history.trials[number].state.value == outcome
            assert trace.line.color == (look.BEST if outcome == "best" else look.COLOURS[outcome])
        drawn |= here
    expected = {t.number: list(enumerate(t.values, start=1)) for t in history.trials}
    assert drawn.keys() == expected.keys()
    for number, points in expected.items():
        assert drawn[number] == [pytest.approx(point) for point in points]


def test_a_thinned_line_keeps_its_ends_and_its_extremes() -> None:
    values = [math.sin(n / 50) for n in range(1000)]
    values[777] = 9.0
    values[333] = -9.0
    places = series.thinned(values, 40)
    assert len(places) <= 40
    assert places == sorted(set(places))
    assert {0, 333, 777, 999} <= set(places)
    assert series.thinned([1.0, 2.0], 40) == [0, 1]


# The best trial


def test_the_best_trial_is_drawn_with_all_its_metrics_and_its_attempts(histories: dict[str, History]) -> None:
    history = histories["lossy"]
    trial = next(t for t in history.trials if len(t.curve.runs) > 1)
    lineage = list(trial.curve.lineage())
    history.best = trial.number
    made = made_by(best_trial, history)
    for name in ("score", "seconds"):
        (trace,) = traces(made, name=name)
        assert list(trace.y) == [row.metrics[name] for row in its_rows(history, trial)]
        assert list(trace.customdata) == lineage
    later = {step for step, (a, b) in enumerate(itertools.pairwise(lineage), start=2) if a != b}
    assert {shape.x0 for shape in made.layout.shapes} == later
    history.best = series.ranked(history)[0].number


def test_a_metric_that_was_nan_has_a_gap_there(histories: dict[str, History]) -> None:
    (trace,) = traces(made_by(best_trial, histories["metrics that are NaN"]), name="other")
    assert list(trace.y) == [None, 1.0, None]


# Parameters


def test_parallel_coordinates_lead_through_each_value_and_beside_what_is_not_active(histories: dict[str, History]) -> None:
    history = histories["conditional"]
    made = made_by(parallel_coordinates, history)
    assert [t.replace("<b>", "").replace("</b>", "") for t in made.layout.xaxis.ticktext] == ["o", "m", "score"]
    drawn = {number: points for trace in made.data for number, points in lines(trace).items()}
    assert drawn.keys() == {t.number for t in history.trials}
    momenta = [t.config["m"] for t in history.trials if "m" in t.config]
    for trial in history.trials:
        (_, kind), (_, momentum), _ = drawn[trial.number]
        assert kind == pytest.approx("st".index(trial.config["o"]), abs=0.06)
        if "m" in trial.config:
            assert momentum == pytest.approx((trial.config["m"] - min(momenta)) / (max(momenta) - min(momenta)), abs=1e-5)
        else:
            assert momentum < -0.1
    assert "not active" in {a.text for a in made.layout.annotations}
    assert list(lines(made.data[-1])) == [history.best], "the best one lies on top"


def test_a_logarithmic_parameter_is_drawn_in_its_logarithm(histories: dict[str, History]) -> None:
    history = histories["asha"]
    drawn = {n: points for trace in made_by(parallel_coordinates, history).data for n, points in lines(trace).items()}
    logs = {t.number: math.log10(t.config["lr"]) for t in history.trials}
    low, high = min(logs.values()), max(logs.values())
    assert {n: points[0][1] for n, points in drawn.items()} == {
        n: pytest.approx((v - low) / (high - low), abs=1e-5) for n, v in logs.items()
    }
    panel = next(t for t in made_by(slices, history).data if "lr" in t.hovertemplate)
    assert made_by(slices, history).layout.xaxis.type == "log"
    assert all(1e-4 <= x <= 1e-1 for x in panel.x)


def test_what_matters_is_the_most_important_also_where_no_trial_is_done() -> None:
    spec = Spec.parse({**SPEC, "trials": 80, "schedule": ASHA})
    done = Simulation(spec=spec, objective=FunctionObjective(function=metrics, spec=spec), workers=30).open()
    history = remember(done.run(most_seconds=8.5).history, done.events)
    assert len(history.by_state[TrialState.STOPPED]) > 40
    assert not history.by_state[TrialState.DONE]
    shares = importances.importances(history)
    assert next(iter(shares)) == "lr"
    assert shares["lr"] > 0.6
    assert sum(shares.values()) == pytest.approx(1.0)
    made = made_by(importances, history)
    assert dict(zip(made.data[0].y, made.data[0].x, strict=True)) == shares


def test_slices_have_each_value_of_each_parameter_and_no_other(histories: dict[str, History]) -> None:
    history = histories["conditional"]
    found = [
        (number, y) for trace in made_by(slices, history).data if trace.name != "best" and trace.hovertemplate.count("m %{text}")
        for number, y in zip(trace.customdata, trace.y, strict=True)
    ]
    assert sorted(found) == [(t.number, t.best[0]) for t in history.trials if "m" in t.config and t.best]


def test_after_population_based_training_the_configuration_of_the_best_step_counts(histories: dict[str, History]) -> None:
    history = histories["pbt"]
    changed = next(t for t in history.trials if t.changes and t.best and t.best[1] > t.changes[-1].step)
    assert series.settings(history, changed) == changed.changes[-1].config
    assert series.settings(history, changed) != changed.proposed


# Several metrics


@pytest.mark.parametrize("kind", ["two metrics", "three metrics, constraints"])
def test_the_pareto_front_is_the_historys(kind: str, histories: dict[str, History]) -> None:
    history = histories[kind]
    made = made_by(pareto_front, history)
    names = [m.name for m in history.spec.metrics]
    fronts = [trace for trace in made.data if (trace.name or "").startswith("front")]
    assert len(fronts) == math.comb(len(names), 2)
    for trace in fronts:
        assert list(trace.customdata) == history.front
    assert list(fronts[0].x) == [its_rows(history, n)[-1].metrics[names[0]] for n in history.front]
    assert list(fronts[0].y) == [its_rows(history, n)[-1].metrics[names[1]] for n in history.front]
    others = {n for trace in made.data if (trace.name or "").startswith(("others", "breaks")) for n in trace.customdata}
    assert others == {t.number for t in history.trials} - set(history.front)
    broken = {n for trace in made.data if (trace.name or "").startswith("breaks") for n in trace.customdata}
    assert broken == {
        t.number for t in history.trials if any(c.violation(its_rows(history, t)[-1].metrics) > 0 for c in history.limits)
    }


def test_the_edge_of_the_front_dominates_no_trial_of_it() -> None:
    history = run(metric=TWO, mode=None, value=lambda config, step: {"score": config["lr"], "seconds": config["lr"] ** 2}).history
    assert len(history.front) == 16
    (edge,) = (trace for trace in made_by(pareto_front, history).data if trace.mode == "lines")
    corners = set(zip(edge.x, edge.y, strict=True))
    points = {(last["score"], last["seconds"]) for last in (its_rows(history, n)[-1].metrics for n in history.front)}
    assert points <= corners
    assert len(corners - points) == 15, "one between each two"
    for score_, seconds in corners - points:  # each corner is as bad as one neighbour in each metric
        assert any(score_ == a for a, _ in points)
        assert any(seconds == b for _, b in points)
        assert any(a >= score_ and b <= seconds for a, b in points)


# Schedules


def test_rungs_say_who_was_stopped_where() -> None:
    done = run(schedule=ASHA, trials=30)
    decided: dict[int, list[str]] = {}
    for event in done.events:
        if isinstance(event, Decided):
            decided.setdefault(event.step, []).append(event.verdict)
    found = {rung.step: (len(rung.reached), len(rung.stopped)) for rung in rungs.rungs(done.history)}
    assert found == {step: (len(all_), all_.count("stop")) for step, all_ in decided.items() if "stop" in all_}
    made = made_by(rungs, done.history)
    (stopped,) = traces(made, name="stopped here")
    places = list(found)
    for x, y, number in zip(stopped.x, stopped.y, stopped.customdata, strict=True):
        trial = done.history.trials[number]
        assert (trial.state, trial.step) == (TrialState.STOPPED, places[round(x)])
        assert y == trial.values[-1]


def test_rungs_show_those_that_wait_to_be_promoted() -> None:
    spec = Spec.parse({**SPEC, "schedule": {"asha": {"type": "promotion"}}})
    done = Simulation(spec=spec, objective=FunctionObjective(function=metrics, spec=spec), workers=2).open().run(most_events=120)
    assert done.history.held
    waiting = {t.number for rung in rungs.rungs(done.history) for t in rung.waiting}
    assert waiting == done.history.held


def test_the_lineage_has_each_clone_and_the_way_of_the_best(histories: dict[str, History]) -> None:
    history = histories["pbt"]
    made = made_by(lineage, history)
    clones = {(t.number, c.step) for t in history.trials for c in t.changes if c.source is not None}
    (marks,) = traces(made, mode="markers")
    assert {(n, x - 0.5) for n, x in zip(marks.customdata, marks.x, strict=True)} == clones
    assert history.best is not None
    best = history.trials[history.best].best
    assert best is not None
    way = series.ancestry(history, history.best, best[1])
    assert sum(until - after for _, after, until in way) == len(history.path(history.best, best[1]))
    assert way[-1][1] == 0, "it leads back to the first step of a trial"


def test_in_the_lineage_the_best_trial_of_a_step_is_the_darkest(histories: dict[str, History]) -> None:
    history = histories["pbt"]
    heat = next(trace for trace in made_by(lineage, history).data if trace.type == "heatmap")
    ranks, values = np.asarray(heat.z), np.asarray(heat.customdata)[..., 1]
    for step in range(ranks.shape[1]):
        assert values[np.argmax(ranks[:, step]), step] == np.max(values[:, step])
        assert values[np.argmin(ranks[:, step]), step] == np.min(values[:, step])


# Losses


def test_the_timeline_has_each_attempt_on_its_node_and_no_two_in_one_place(histories: dict[str, History]) -> None:
    history = histories["lossy"]
    made = made_by(timeline, history)
    bars = [
        (number, y, base, base + x) for trace in made.data if trace.type == "bar"
        for number, y, base, x in zip(trace.customdata, trace.y, trace.base, trace.x, strict=True)
    ]
    attempts = [(t.number, a) for t in history.trials for a in t.attempts]
    assert sorted(n for n, *_ in bars) == sorted(n for n, _ in attempts)
    for lane in {y for _, y, *_ in bars}:
        spans = sorted((begin, end) for _, y, begin, end in bars if y == lane)
        assert all(end <= begin + 1e-9 for (_, end), (begin, _) in pairwise(spans))
    outcomes = {trace.name.split(" ")[0]: len(trace.y) for trace in made.data if trace.type == "bar"}
    assert outcomes == {o: sum(a.outcome == o for _, a in attempts) for o in {a.outcome for _, a in attempts}}


def test_the_timeline_leads_from_a_loss_to_where_the_trial_went_on(histories: dict[str, History]) -> None:
    history = histories["lossy"]
    made = made_by(timeline, history)
    lost = [(t.number, a) for t in history.trials for a in t.attempts if a.outcome == "lost"]
    assert lost
    (marks,) = (trace for trace in made.data if (trace.name or "").startswith("loss"))
    assert sorted(marks.customdata) == sorted(n for n, _ in lost)
    number, attempt = lost[0]
    text = next(text for n, text in zip(marks.customdata, marks.text, strict=True) if n == number)
    after = history.trials[number].attempts[attempt.number]
    assert attempt.message in text
    assert f"on {after.node}, from step {after.from_step + 1}" in text
    (way,) = traces(made, name="went on")
    assert list(way.y).count(None) == len(lost)


def test_the_timeline_leaves_out_pauses_in_which_nothing_ran() -> None:
    clock = timeline.clock([(1000.0, 1100.0), (1050.0, 1200.0), (90_000.0, 90_100.0), (90_100.5, 90_200.0)])
    assert clock.pauses == [(1200.0, 90_000.0)]
    assert [clock.at(t) for t in (1000.0, 1200.0, 50_000.0, 90_000.0, 90_200.0)] == [0.0, 200.0, 200.0, 200.0, 400.0]


def test_an_attempt_that_was_lost_before_it_began_is_said_to_be_missing() -> None:
    lost = Ended(t=104.0, trial=2, attempt=1, outcome="lost", cause="infrastructure", by="driver")
    events = [*begun(2), Proposed(t=101.0, trial=2, config={}), Started(t=101.0, trial=2, attempt=1), lost]
    made = made_by(timeline, folded(events))
    assert made.layout.meta["note"] == "Not drawn: 1 attempt that ended before beginning on a node."
    bars = [pair for trace in made.data if trace.type == "bar" for pair in zip(trace.customdata, trace.y, strict=True)]
    assert sorted(bars) == [(0, 0), (1, 1)], "two at a time on one node have a place each"


def test_only_attempts_that_ended_alike_and_well_become_one_bar() -> None:
    ends = ["done", "done", "lost", "lost", "done", "stopped"]
    bars = [timeline.Bar(trial=n, lane=0, begin=float(n), end=n + 0.9, outcome=end, text="") for n, end in enumerate(ends)]
    merged = timeline._merged(bars, 3.0)
    assert [(bar.trial, bar.outcome, bar.count, bar.end) for bar in merged] == [
        (0, "done", 2, 1.9), (2, "lost", 1, 2.9), (3, "lost", 1, 3.9), (4, "done", 1, 4.9), (5, "stopped", 1, 5.9)
    ]


def test_a_thousand_short_attempts_are_fewer_bars_and_all_losses_stay() -> None:
    history = run(trials=2500, max_steps=1, workers=4, machines=(Availability(changes=(0.0, 30.5, 33.0)),)).history
    made = made_by(timeline, history)
    drawn = sum(len(trace.y) for trace in made.data if trace.type == "bar")
    assert drawn < 2 * timeline.BARS
    assert "are one bar" in made.layout.meta["note"]
    lost = sum(a.outcome == "lost" for t in history.trials for a in t.attempts)
    (marks,) = (trace for trace in made.data if (trace.name or "").startswith("loss"))
    assert len(marks.x) == lost
    assert lost


def test_wasted_work_is_that_of_the_ledger(histories: dict[str, History]) -> None:
    history = histories["lossy"]
    made = made_by(wasted_work, history)
    left = {trace.y[0]: trace.x[0] for trace in made.data if trace.xaxis == "x"}
    assert left == {kind: one.seconds for kind, one in waste.of_all(history).items()}
    right: dict[str, float] = {}
    for trace in made.data:
        if trace.xaxis == "x2":
            for name, seconds in zip(trace.y, trace.x, strict=True):
                right[name] = right.get(name, 0.0) + seconds
    assert right == {
        f"trial {t.number}": sum(one.seconds for one in parts.values()) for t in history.trials if (parts := waste.of_trial(t))
    }


# Pictures without a browser


@pytest.mark.parametrize("kind", ["empty", "failed only", "asha", "one trial", "one of a thousand diverged", "all values the same"])
@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_there_exactly_where_the_figures_are(kind: str, name: str, histories: dict[str, History]) -> None:
    picture = pictures.png(histories[kind], name)
    assert (picture is None) == (figure(rows_of(histories[kind]), name) is None)
    if picture is not None:
        image = Image.open(io.BytesIO(picture))
        assert image.size == (1600, 900)
        assert len(image.getcolors(2**24) or []) > 20, "an empty picture"


def test_pictures_can_be_made_by_several_threads(histories: dict[str, History]) -> None:
    history = histories["asha"]
    alone = pictures.png(history, "learning_curves")
    found: list[bytes | None] = []
    threads = [threading.Thread(target=lambda: found.append(pictures.png(history, "learning_curves"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 4


def test_a_name_with_dollars_is_no_formula() -> None:
    history = run(metric="a$b$", value=lambda config, step: {"a$b$": score(config, step)}).history
    assert pictures.png(history, "learning_curves") is not None


def test_typed_arrays_reach_the_page_in_few_bytes(histories: dict[str, History]) -> None:
    written = json.loads(made_by(learning_curves, histories["asha"]).to_json())
    packed = next(trace["y"] for trace in written["data"] if trace["mode"] == "lines")
    assert packed["dtype"] == "f4"
    assert len(base64.b64decode(packed["bdata"])) % 4 == 0
