"""What the figures say of values, curves and parameters: the right numbers in them."""

from __future__ import annotations

import itertools
import math

import pytest

from regrow.search.history import History
from regrow.search.lifecycle import TrialState
from regrow.search.planning.simulator import FunctionObjective, Simulation
from regrow.search.spec import Spec
from regrow.show.figures import (
    best_trial,
    importances,
    learning_curves,
    optimization_history,
    parallel_coordinates,
    parameters,
    pareto_front,
    series,
    slices,
    style,
)
from regrow.show.figures.parameters import decades
from regrow.show.views import summaries
from tests.unit.figured import ASHA, SPEC, TWO, lines, made_by, metrics, run, traces
from tests.unit.told import its_rows, remember

# Optimisation history


def test_the_optimization_history_has_every_trial_at_its_best_and_the_best_so_far(
    histories: dict[str, History],
) -> None:
    history = histories["asha"]
    made = made_by(optimization_history, history)
    points = {}
    for trace in traces(made, mode="markers"):
        if not trace.name.startswith("best"):
            outcome = trace.name.split(" ")[0]
            points.update({n: (y, outcome) for n, y in zip(trace.x, trace.y, strict=True)})
    assert points == {t.number: (t.best[0], t.state.value) for t in history.trials if t.best}
    (line,) = traces(made, name="best so far")
    so_far = [
        max(t.best[0] for t in history.trials[: n + 1] if t.best)
        for n in range(len(history.trials))
    ]
    drawn = dict(zip(line.x, line.y, strict=True))
    assert [drawn[n] for n in drawn] == [so_far[n] for n in drawn]
    assert {so_far.index(value) for value in so_far} <= drawn.keys()
    name = f"best: trial {history.best}, {max(so_far):.5g}"
    (star,) = (trace for trace in made.data if trace.name == name)
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
    assert (
        "1,000 of 4,000" in curves.layout.meta["note"]
        or "1,001 of 4,000" in curves.layout.meta["note"]
    )


def test_outliers_on_the_bad_side_do_not_flatten_the_rest_and_it_says_so(
    histories: dict[str, History],
) -> None:
    values = [1.0 + n / 100 for n in range(60)]
    assert series.span(values, "min") == (None, 0)
    limits, beyond = series.span([*values, 1e9], "min")
    assert limits is not None
    assert (limits[1] < 2, beyond) == (True, 1)
    assert series.span([*values, -1e9], "min") == (None, 0), (
        "on the good side every value is of interest"
    )
    assert series.span([*values, *[1e9] * 5], "min") == (None, 0), (
        "a twelfth of all values are no outliers"
    )


def test_an_axis_over_many_powers_of_ten_is_logarithmic(histories: dict[str, History]) -> None:
    made = made_by(learning_curves, run(mode="min", value=lambda config, step: 10.0**-step).history)
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
            assert trace.line.color == (style.BEST if outcome == "best" else style.COLOURS[outcome])
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


def test_the_best_trial_is_drawn_with_all_its_metrics_and_its_attempts(
    histories: dict[str, History],
) -> None:
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
    history.best = summaries.ranked(history)[0].number


def test_a_metric_that_was_nan_has_a_gap_there(histories: dict[str, History]) -> None:
    (trace,) = traces(made_by(best_trial, histories["metrics that are NaN"]), name="other")
    assert list(trace.y) == [None, 1.0, None]


# Parameters


def test_parallel_coordinates_lead_through_each_value_and_beside_what_is_not_active(
    histories: dict[str, History],
) -> None:
    history = histories["conditional"]
    made = made_by(parallel_coordinates, history)
    assert [t.replace("<b>", "").replace("</b>", "") for t in made.layout.xaxis.ticktext] == [
        "o",
        "m",
        "score",
    ]
    drawn = {number: points for trace in made.data for number, points in lines(trace).items()}
    assert drawn.keys() == {t.number for t in history.trials}
    momenta = [t.config["m"] for t in history.trials if "m" in t.config]
    for trial in history.trials:
        (_, kind), (_, momentum), _ = drawn[trial.number]
        assert kind == pytest.approx("st".index(trial.config["o"]), abs=0.06)
        if "m" in trial.config:
            assert momentum == pytest.approx(
                (trial.config["m"] - min(momenta)) / (max(momenta) - min(momenta)), abs=1e-5
            )
        else:
            assert momentum < -0.1
    assert "not active" in {a.text for a in made.layout.annotations}
    assert list(lines(made.data[-1])) == [history.best], "the best one lies on top"


def test_a_logarithmic_parameter_is_drawn_in_its_logarithm(histories: dict[str, History]) -> None:
    history = histories["asha"]
    drawn = {
        n: points
        for trace in made_by(parallel_coordinates, history).data
        for n, points in lines(trace).items()
    }
    logs = {t.number: math.log10(t.config["lr"]) for t in history.trials}
    low, high = min(logs.values()), max(logs.values())
    assert {n: points[0][1] for n, points in drawn.items()} == {
        n: pytest.approx((v - low) / (high - low), abs=1e-5) for n, v in logs.items()
    }
    panel = next(t for t in made_by(slices, history).data if "lr" in t.hovertemplate)
    assert made_by(slices, history).layout.xaxis.type == "log"
    assert all(1e-4 <= x <= 1e-1 for x in panel.x)
    assert 5 < len(decades(-300.0, 0.0)) < 15


def test_an_axis_has_ticks_of_any_numbers_and_not_too_many() -> None:
    assert parameters.ticks(1e-15, 5e-15) == [1e-15, 2e-15, 3e-15, 4e-15, 5e-15]
    assert parameters.ticks(0.0, 5e-324) == [0.0, 5e-324]
    assert len(parameters.decades(-323.3, 308.2)) < 24


def test_what_matters_is_the_most_important_also_where_no_trial_is_done() -> None:
    spec = Spec.parse({**SPEC, "trials": 80, "schedule": ASHA})
    done = Simulation(
        spec=spec, objective=FunctionObjective(function=metrics, spec=spec), workers=30
    ).open()
    history = remember(done.run(most_seconds=8.5).history, done.events)
    assert len(history.by_state[TrialState.STOPPED]) > 40
    assert not history.by_state[TrialState.DONE]
    shares = importances.importances(history)
    assert next(iter(shares)) == "lr"
    assert shares["lr"] > 0.6
    assert sum(shares.values()) == pytest.approx(1.0)
    made = made_by(importances, history)
    assert dict(zip(made.data[0].y, made.data[0].x, strict=True)) == shares


def test_slices_have_each_value_of_each_parameter_and_no_other(
    histories: dict[str, History],
) -> None:
    history = histories["conditional"]
    found = [
        (number, y)
        for trace in made_by(slices, history).data
        if trace.name != "best" and trace.hovertemplate.count("m %{text}")
        for number, y in zip(trace.customdata, trace.y, strict=True)
    ]
    assert sorted(found) == [
        (t.number, t.best[0]) for t in history.trials if "m" in t.config and t.best
    ]


def test_points_of_a_choice_lie_beside_each_other_at_their_choice() -> None:
    spec = Spec.parse(
        {
            "name": "alike",
            "trainable": "a:b",
            "metric": "score",
            "mode": "max",
            "space": {"kind": {"choice": ["a", "b"]}, "size": {"choice": [1, 2, 4, 8]}},
            "search": "random",
            "schedule": "fifo",
            "trials": 200,
            "max_steps": 1,
        }
    )
    objective = FunctionObjective(function=lambda config, step: 1.0, spec=spec)
    done = Simulation(spec=spec, objective=objective, workers=4).open().run()
    history = remember(done.history, done.events)
    made = made_by(slices, history)
    for name, axis, choices in (
        ("kind", made.layout.xaxis, ["a", "b"]),
        ("size", made.layout.xaxis2, [1, 2, 4, 8]),
    ):
        [points] = [t for t in traces(made, name="done") if f"<br>{name} " in t.hovertemplate]
        assert [round(x) for x in points.x] == [
            choices.index(history.trials[number].config[name]) for number in points.customdata
        ]
        assert list(axis.tickvals) == list(range(len(choices)))
        assert list(axis.ticktext) == list(map(str, choices))
        ordered = sorted(points.x)
        assert min(b - a for a, b in itertools.pairwise(ordered)) > 0.6 / 200 / 3, (
            "evenly, each apart"
        )
    assert list(made.data[0].x) == list(made_by(slices, history).data[0].x), "always the same"


def test_after_population_based_training_the_configuration_of_the_best_step_counts(
    histories: dict[str, History],
) -> None:
    history = histories["pbt"]
    changed = next(
        t for t in history.trials if t.changes and t.best and t.best[1] > t.changes[-1].step
    )
    assert summaries.reached_with(history, changed) == changed.changes[-1].config
    assert summaries.reached_with(history, changed) != changed.proposed


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
    others = {
        n
        for trace in made.data
        if (trace.name or "").startswith(("others", "breaks"))
        for n in trace.customdata
    }
    assert others == {t.number for t in history.trials} - set(history.front)
    broken = {
        n
        for trace in made.data
        if (trace.name or "").startswith("breaks")
        for n in trace.customdata
    }
    assert broken == {
        t.number
        for t in history.trials
        if any(c.violation(its_rows(history, t)[-1].metrics) > 0 for c in history.limits)
    }


def test_the_edge_of_the_front_dominates_no_trial_of_it() -> None:
    history = run(
        metric=TWO,
        mode=None,
        value=lambda config, step: {"score": config["lr"], "seconds": config["lr"] ** 2},
    ).history
    assert len(history.front) == 16
    (edge,) = (trace for trace in made_by(pareto_front, history).data if trace.mode == "lines")
    corners = set(zip(edge.x, edge.y, strict=True))
    points = {
        (last["score"], last["seconds"])
        for last in (its_rows(history, n)[-1].metrics for n in history.front)
    }
    assert points <= corners
    assert len(corners - points) == 15, "one between each two"
    # each corner is as bad as one neighbour in each metric
    for score_, seconds in corners - points:
        assert any(score_ == a for a, _ in points)
        assert any(seconds == b for _, b in points)
        assert any(a >= score_ and b <= seconds for a, b in points)
