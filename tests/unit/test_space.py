"""What a search space accepts, what it refuses and how it says so, and that its written form loses
nothing."""

from __future__ import annotations

import json
import math
import pickle
import sys
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from regrow.search import space as rg
from regrow.search.errors import SpecError
from regrow.search.space import Domain, Space
from regrow.search.space.domains import value_key

YAML = """
lr: {loguniform: [1.0e-4, 1.0e-1]}
momentum: {uniform: [0.5, 0.99], when: {optimizer: sgd}}
optimizer: {choice: [sgd, adam]}
layers: {int: [1, 4]}
width: {int: [16, 64], step: 16}
depth: {logint: [1, 100]}
dropout: {quniform: [0, 0.5, 0.1]}
decay: {quniform: [0, 1], step: 0.25}
init: {normal: [0, 0.02]}
fold: {grid: [0, 1, 2]}
model:
  act: relu
  norm: {choice: [batch, layer]}
  groups: {choice: [4, 8], when: {norm: [layer]}}
"""


def refusal(mapping: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        Space.parse(mapping)
    return caught.value


# ---- the written form


def test_yaml_and_python_make_equal_spaces() -> None:
    in_python = {
        "lr": rg.loguniform(1e-4, 1e-1),
        "momentum": rg.uniform(0.5, 0.99, when={"optimizer": "sgd"}),
        "optimizer": rg.choice(["sgd", "adam"]),
        "layers": rg.integer(1, 4),
        "width": rg.randint(16, 64, 16),
        "depth": rg.logint(1, 100),
        "dropout": rg.quniform(0, 0.5, 0.1),
        "decay": rg.quniform(0, 1, 0.25),
        "init": rg.normal(0, 0.02),
        "fold": rg.grid([0, 1, 2]),
        "model": Space.parse(
            {
                "act": rg.constant("relu"),
                "norm": rg.choice(["batch", "layer"]),
                "groups": rg.choice([4, 8], when={"norm": ["layer"]}),
            }
        ),
    }
    assert Space.parse(in_python) == Space.parse(yaml.safe_load(YAML))


def test_the_canonical_form_is_json_and_parses_to_an_equal_space() -> None:
    space = Space.parse(yaml.safe_load(YAML))
    form = json.loads(json.dumps(space.to_json()))
    assert Space.parse(form) == space
    assert [p.name for p in Space.parse(form).flat] == [p.name for p in space.flat]
    assert Space.parse(form).to_json() == form
    assert form["momentum"] == {"uniform": [0.5, 0.99], "when": {"optimizer": ["sgd"]}}
    assert form["model"]["act"] == "relu"


def test_flat_has_dotted_names_and_parents_before_children() -> None:
    names = [p.name for p in Space.parse(yaml.safe_load(YAML)).flat]
    assert names[:4] == ["lr", "optimizer", "momentum", "layers"]
    assert names[-3:] == ["model.act", "model.norm", "model.groups"]


def test_nest_puts_dotted_names_into_groups() -> None:
    space = Space.parse({"lr": 0.1, "model": {"layers": {"sizes": {"constant": [1, 2]}}}})
    config = {"lr": 0.1, "model.layers.sizes": [1, 2]}
    nested = space.nest(config)
    assert nested == {"lr": 0.1, "model": {"layers": {"sizes": [1, 2]}}}
    nested["model"]["layers"]["sizes"].append(3)
    assert config["model.layers.sizes"] == [1, 2]


def test_a_trainable_that_changes_a_value_does_not_change_the_space() -> None:
    values: list[Any] = [[1, 2], {"a": [3]}]
    domain = rg.choice(values)
    values[0] = "changed before"
    domain.quantile(0.1).append("changed after")
    domain.to_json()["choice"][1]["a"] = "changed after"
    assert [domain.cell(0), domain.cell(1)] == [[1, 2], {"a": [3]}]


def test_a_map_is_a_group_unless_a_keyword_has_an_argument() -> None:
    space = Space.parse(
        {"batch": {"normal": {"choice": [True, False]}, "grid": {"uniform": [0, 1]}, "int": 3}}
    )
    assert [p.name for p in space.flat] == ["batch.normal", "batch.grid", "batch.int"]


def test_text_that_looks_like_a_number_can_be_meant() -> None:
    space = Space.parse({"a": {"choice": ["1e-3", "x"], "text": True}, "b": rg.constant("1e5")})
    assert Space.parse(space.to_json()) == space
    assert space.flat[0].domain.contains("1e-3")


# ---- conditions


def test_a_parameter_is_active_where_its_condition_holds() -> None:
    space = Space.parse(yaml.safe_load(YAML))
    assert "momentum" in space.active({"optimizer": "sgd"})
    assert "momentum" not in space.active({"optimizer": "adam"})
    assert "momentum" not in space.active({})
    assert "model.groups" in space.active({"model.norm": "layer"})


def test_a_condition_prefers_the_sibling_and_a_dot_means_the_top() -> None:
    written = {
        "kind": {"choice": ["a", "b"]},
        "model": {
            "kind": {"choice": [1, 2]},
            "near": {"uniform": [0, 1], "when": {"kind": 1}},
            "far": {"uniform": [0, 1], "when": {".kind": "a", "model.kind": [1, 2]}},
        },
    }
    space = Space.parse(written)
    parents = {p.name: [c.parameter for c in p.when] for p in space.parameters}
    assert parents["model.near"] == ["model.kind"]
    assert parents["model.far"] == ["kind", "model.kind"]
    assert Space.parse(space.to_json()) == space


def test_a_groups_condition_holds_for_all_of_it() -> None:
    written = {
        "optimizer": {"choice": ["sgd", "adam", "rmsprop"]},
        "more": {
            "when": {"optimizer": ["sgd", "rmsprop"]},
            "momentum": {"uniform": [0, 1]},
            "nesterov": {"choice": [True, False], "when": {".optimizer": "sgd"}},
        },
    }
    space = Space.parse(written)
    assert space.active({"optimizer": "rmsprop"}) == ("optimizer", "more.momentum")
    assert space.active({"optimizer": "sgd"}) == ("optimizer", "more.momentum", "more.nesterov")
    assert Space.parse(space.to_json()) == space


def test_true_and_one_are_different_values_of_a_condition() -> None:
    space = Space.parse({"a": {"choice": [True, 1, "1"]}, "b": {"constant": 0, "when": {"a": 1}}})
    assert [("b" in space.active({"a": a})) for a in (True, 1, 1.0, "1")] == [
        False,
        True,
        True,
        False,
    ]


# ---- refusals


@pytest.mark.parametrize(
    ("written", "key", "says"),
    [
        ({"lr": {"loguniform": [0.1, 0.01]}}, "space.lr.loguniform", "reversed; write [low, high]"),
        ({"a": {"uniform": [1, 1]}}, "space.a.uniform", "equal; write the constant 1"),
        ({"a": {"loguniform": [0, 1]}}, "space.a.loguniform", "above 0"),
        ({"a": {"logint": [0, 9]}}, "space.a.logint", "above 0"),
        (
            {"a": {"loguniform": ["1e-3", 1]}},
            "space.a.loguniform",
            '"1e-3" is text, not a number; write 1.0e-3, without quotes',
        ),
        ({"a": {"uniform": ["0.5", 1]}}, "space.a.uniform", "without quotes"),
        ({"a": {"uniform": [0, True]}}, "space.a.uniform", "true is not a number"),
        ({"a": {"uniform": [0, math.inf]}}, "space.a.uniform", "inf is not a finite number"),
        ({"a": {"uniform": [math.nan, 1]}}, "space.a.uniform", "nan is not a finite number"),
        ({"a": {"uniform": [0, None]}}, "space.a.uniform", "None is not a number"),
        ({"a": {"uniform": [-1e308, 1e308]}}, "space.a.uniform", "too wide"),
        ({"a": {"uniform": [0, 1, 0.1]}}, "space.a.uniform", "quniform: [low, high, step]"),
        ({"a": {"uniform": 3}}, "space.a.uniform", "needs [low, high]"),
        ({"a": {"uniform": [0, 1], "step": 0.1}}, "space.a.step", "use quniform"),
        ({"a": {"uniform": [0, 1], "wen": {"b": 1}}}, "space.a.wen", "did you mean 'when'?"),
        ({"a": {"quniform": [0, 1]}}, "space.a.quniform", "needs [low, high, step]"),
        ({"a": {"quniform": [0, 1, 0]}}, "space.a.quniform", "not above 0"),
        ({"a": {"quniform": [0, 1, 2]}}, "space.a.quniform", "bigger than the range"),
        ({"a": {"quniform": [1, 1e308, 1e308]}}, "space.a.quniform", "too wide for a float"),
        ({"a": {"quniform": [0, 1, 1e-300]}}, "space.a.quniform", "write {uniform: [0.0, 1.0]}"),
        ({"a": {"quniform": [0, 1e9, 1e-300]}}, "space.a.quniform", "more than floats tell apart"),
        ({"a": {"quniform": [0, 1e-310, 5e-324]}}, "space.a.quniform", "use another unit"),
        ({"a": {"uniform": [0, 5e-324]}}, "space.a.uniform", "is finer than 2.2e-308"),
        ({"a": {"int": [1, 9], "step": -1}}, "space.a.step", "not above 0"),
        ({"a": {"int": [1, 9], "step": 9}}, "space.a.step", "bigger than the range"),
        ({"a": {"int": [1, 2.0]}}, "space.a.int", "not a whole number; write 2"),
        ({"a": {"int": [1, 2**60]}}, "space.a.int", "beyond 2**53"),
        ({"a": {"normal": [0, 0]}}, "space.a.normal", "standard deviation"),
        (
            {"a": {"logunifrom": [0.1, 1]}},
            "space.a.logunifrom",
            "did you mean {loguniform: [0.1, 1]}?",
        ),
        ({"a": {"values": [1, 2]}}, "space.a", "write a: {choice: [1, 2]}"),
        ({"a": {"uniform": [0, 1], "normal": [0, 1]}}, "space.a", "two domains"),
        ({"a": {"choice": []}}, "space.a.choice", "nothing to choose from"),
        ({"a": {"choice": "sgd"}}, "space.a.choice", "not a list"),
        ({"a": {"choice": [1, 1.0]}}, "space.a.choice", "there twice"),
        ({"a": {"grid": [[1], [1]]}}, "space.a.grid", "there twice"),
        ({"a": {"choice": [1, {"uniform": [0, 1]}]}}, "space.a.choice", "a domain inside a choice"),
        (
            {"a": {"b": {"grid": [1, [{"x": {"int": [0, 1]}}]]}}},
            "space.a.b.grid",
            "a domain inside a choice",
        ),
        (
            {"a": rg.choice([{"x": {"uniform": [0, 1]}}])},
            "space.a.choice",
            "a domain inside a choice",
        ),
        ({"a": {"choice": [rg.uniform(0, 1)]}}, "space.a.choice", "a domain inside a choice"),
        ({"a": {"choice": [math.nan]}}, "space.a.choice", "not a finite number"),
        ({"a": {"choice": [10**400, 1]}}, "space.a.choice", "is larger than any number"),
        ({"a": 10**5000}, "space.a", "is larger than any number"),
        ({"a": {"choice": {"a", "b"}}}, "space.a.choice", "is not a list of values"),
        (
            {"a": {"choice": ["1e-3"]}},
            "space.a.choice",
            "is text, not a number; write 1.0e-3, without quotes",
        ),
        ({"a": {"choice": [print]}}, "space.a.choice", "not a JSON value"),
        ({"a": {"choice": [{1: 2}]}}, "space.a.choice", "must be text"),
        ({"a": "1e-3"}, "space.a", "write 1.0e-3"),
        ({"a": math.nan}, "space.a", "not a finite number"),
        ({"a": print}, "space.a", "not a JSON value"),
        ({"a": [1, 2]}, "space.a", "{choice: [...]}"),
        ({"a": {}}, "space.a", "empty map"),
        ({True: 1}, "space", "take on, off"),
        ({"a.b": 1}, "space", "no dots"),
        ([], "space", "not a map"),
        ({"a": {"constant": 1, "when": {"b": 1}}}, "space.a.when.b", "there is no parameter 'b'"),
        ({"a": {"constant": 1, "when": "b"}}, "space.a.when", "not a map of conditions"),
        ({"a": {"constant": 1, "when": {"a": 1}}}, "space.a.when", "cyclic"),
    ],
)
def test_what_is_refused_and_the_words_for_it(written: Any, key: str, says: str) -> None:
    error = refusal(written)
    assert error.key == key
    assert says in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("parent", "value", "says"),
    [
        ({"choice": [1, 2]}, 3, "can never be 3"),
        ({"int": [0, 8], "step": 2}, 3, "can never be 3"),
        ({"quniform": [0, 1, 0.1]}, 0.35, "can never be 0.35"),
        ({"choice": [1, 2]}, print, "can never be"),
        ({"choice": [[1], [2]]}, [1], "write [[1]] to mean the list"),
        ({"choice": [1, 2]}, [], "no value in the list"),
        ({"choice": [1, 2]}, [1, 1.0], "there twice"),
        ({"uniform": [0, 1]}, 0.5, "continuous"),
    ],
)
def test_a_condition_that_can_never_hold_is_refused(parent: Any, value: Any, says: str) -> None:
    error = refusal({"b": parent, "a": {"constant": 1, "when": {"b": value}}})
    assert error.key == "space.a.when.b"
    assert says in str(error)


def test_a_cycle_is_shown() -> None:
    two = {"choice": [1, 2]}
    error = refusal(
        {
            "a": two | {"when": {"c": 1}},
            "b": two | {"when": {"a": 1}},
            "c": two | {"when": {"b": 1}},
        }
    )
    assert error.value == "a -> c -> b -> a"


def test_each_of_many_parameters_can_depend_on_the_next() -> None:
    many = 3000
    chain = {f"p{n}": {"choice": [0, 1], "when": {f"p{n + 1}": 1}} for n in range(many)}
    space = Space.parse({**chain, f"p{many}": {"choice": [0, 1]}})
    assert [p.name for p in space.flat] == [f"p{n}" for n in range(many, -1, -1)]
    assert "p0 -> p1 -> " in refusal({**chain, f"p{many}": chain["p0"] | {"when": {"p0": 1}}}).value


def test_a_condition_against_its_groups_is_refused() -> None:
    inner = {"uniform": [0, 1], "when": {"o": 2}}
    assert "contradicts" in str(
        refusal({"o": {"choice": [1, 2]}, "g": {"when": {"o": 1}, "x": inner}})
    )


def test_a_domain_made_in_python_is_checked_at_once() -> None:
    with pytest.raises(SpecError, match=r"^loguniform: \[0.1, 0.01\]: bounds are reversed"):
        rg.loguniform(0.1, 0.01)
    with pytest.raises(SpecError, match="not a list of values"):
        rg.choice("sgd")


@pytest.mark.parametrize("value", [[0.1, 0.01], print, lambda: None])
def test_the_error_survives_pickling(value: Any) -> None:
    error = SpecError("space.lr.loguniform", value, "bounds are reversed", "write [low, high]").at(
        "sweep.yaml"
    )
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is SpecError
    assert str(copy) == str(error)
    assert (copy.key, copy.problem, copy.hint, copy.where) == (
        "space.lr.loguniform",
        "bounds are reversed",
        "write [low, high]",
        "sweep.yaml",
    )


def test_the_error_is_one_line() -> None:
    error = SpecError(
        "space.lr.loguniform", [0.1, 0.01], "bounds are reversed", "write [low, high]"
    )
    assert str(error) == "space.lr.loguniform: [0.1, 0.01]: bounds are reversed; write [low, high]"
    assert str(error.at("sweep.yaml")) == f"sweep.yaml: {error}"


# ---- properties

numbers = st.floats(-1e6, 1e6, allow_nan=False)
scalars = st.none() | st.booleans() | st.integers(-99, 99) | numbers | st.text(max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner)
)


@st.composite
def domains(draw: st.DrawFn) -> Domain:
    """Any domain."""
    kind = draw(
        st.sampled_from(["float", "quniform", "int", "normal", "choice", "grid", "constant"])
    )
    log = draw(st.booleans())
    if kind == "float":
        low, high = sorted((draw(numbers), draw(numbers)))
        assume(low > 0 < high - low if log else high - low >= sys.float_info.min)
        return rg.loguniform(low, high) if log else rg.uniform(low, high)
    if kind == "quniform":
        low, step, cells = (
            draw(st.integers(-50, 50)),
            draw(st.sampled_from([0.1, 0.25, 3, 1e-3])),
            draw(st.integers(1, 40)),
        )
        return rg.quniform(low, low + step * (cells + draw(st.sampled_from([0.01, 0.5]))), step)
    if kind == "int":
        low, width = draw(st.integers(1, 50)), draw(st.integers(1, 1000))
        return (
            rg.logint(low, low + width)
            if log
            else rg.randint(-low, -low + width, draw(st.integers(1, width)))
        )
    if kind == "normal":
        return rg.normal(draw(numbers), draw(st.floats(1e-6, 1e6)))
    if kind == "constant":
        return rg.constant(draw(values))
    several = draw(st.lists(values, min_size=1, max_size=4, unique_by=value_key))
    return rg.choice(several) if kind == "choice" else rg.grid(several)


@st.composite
def spaces(draw: st.DrawFn) -> dict[str, Any]:
    """The mapping of a space with groups and conditions, also on parameters that come later."""
    name = st.sampled_from(["a", "b", "c", "d"])
    tops = draw(st.dictionaries(name, domains(), max_size=4))
    group = draw(st.dictionaries(name, domains(), max_size=3))
    written: dict[str, Any] = {**tops, **({"group": dict(group)} if group else {})}
    parents = [n for n, d in tops.items() if d.cells is not None]
    for target, names in ((written, tops), (written.get("group", {}), group)):
        for child in names:
            parent = draw(st.sampled_from([None, *parents]))
            if parent is not None and parent < child:  # so there is no cycle
                chosen = tops[parent].cell(
                    draw(st.integers(0, min(tops[parent].cells or 1, 30) - 1))
                )
                target[child] = replace(target[child], when={f".{parent}": [chosen]})
    return written


@settings(max_examples=50, deadline=None)
@given(spaces())
def test_any_space_survives_its_written_form(written: dict[str, Any]) -> None:
    space = Space.parse(written)
    form = space.to_json()
    through_yaml = yaml.safe_load(yaml.safe_dump(form, sort_keys=False))
    for again in (Space.parse(json.loads(json.dumps(form))), Space.parse(through_yaml)):
        assert again == space
        assert again.flat == space.flat


@settings(max_examples=80, deadline=None)
@given(domains(), st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_what_a_domain_draws_is_in_it(domain: Domain, u: float) -> None:
    value = domain.quantile(u)
    assert domain.contains(value)
    assert json.loads(json.dumps(value)) == value


@settings(max_examples=80, deadline=None)
@given(
    domains(),
    st.floats(0, 1, exclude_min=True, exclude_max=True),
    st.floats(0, 1, exclude_min=True, exclude_max=True),
)
def test_a_range_is_drawn_in_order(domain: Domain, u: float, v: float) -> None:
    assume(not isinstance(domain, (rg.Choice, rg.Constant)))
    assert (domain.quantile(u) <= domain.quantile(v)) or u > v


@settings(max_examples=60, deadline=None)
@given(domains())
def test_every_cell_is_in_its_domain_and_is_different(domain: Domain) -> None:
    assume(domain.cells is not None and domain.cells <= 200)
    cells = [domain.cell(i) for i in range(domain.cells or 0)]
    assert all(map(domain.contains, cells))
    assert len({value_key(cell) for cell in cells}) == domain.cells


def test_steps_are_written_as_people_write_them() -> None:
    domain = rg.quniform(0, 0.5, 0.1)
    assert [domain.cell(i) for i in range(domain.cells or 0)] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]


def test_each_whole_number_of_a_logarithmic_range_has_half_a_unit_on_either_side() -> None:
    domain = rg.logint(1, 3)
    assert [domain.quantile(u) for u in (0.01, 0.5, 0.6, 0.8, 0.84, 0.99)] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("text", ["1e-3", "1e4", "1.5E3", ".5e2", "-2.e3", "+1e-10"])
def test_the_hint_is_a_number_in_yaml(text: str) -> None:
    assert yaml.safe_load(text) == text, "else there is no need of a hint"
    with pytest.raises(SpecError) as caught:
        Space.parse({"a": yaml.safe_load(text)})
    hint = caught.value.hint.removeprefix("write ").split(",")[0]
    assert yaml.safe_load(hint) == float(text)


@pytest.mark.parametrize("text", ["1.e", "e5", "x1e3", "1e3x", "sgd", "12", ""])
def test_other_texts_are_texts(text: str) -> None:
    assert Space.parse({"a": text}).flat[0].domain.cell(0) == text


# ---- the ends of what numbers can hold


@pytest.mark.parametrize(
    "domain",
    [
        rg.randint(-(2**53), 2**53),
        rg.randint(-1, 2**53),
        rg.randint(-(2**53) + 1, 2**53, step=7),
        rg.logint(1, 2**53),
    ],
)
def test_a_wide_range_of_whole_numbers_has_each_of_its_values(domain: Any) -> None:
    for index in (0, 1, domain.cells // 2, domain.cells - 2, domain.cells - 1):
        value = domain.cell(index)
        assert domain.own(value) == value
    assert not domain.contains(domain.high + 1)


def test_a_normal_value_beyond_the_largest_float_is_the_largest() -> None:
    assert math.isfinite(rg.normal(0, 1e308).quantile(1 - 2**-40))
