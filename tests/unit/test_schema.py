"""The published schema: it takes what the product takes, and says while it is typed what would be
refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # its stubs are a package apart

from regrow.search import samplers, schedulers
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from tests.faults.test_every_pair import SAMPLERS, SCHEDULERS
from tests.system.reader import pages
from tests.unit.test_docs_pages import BASE, CLUSTERS

SCHEMA = Spec.model_json_schema()
CHECK = Draft202012Validator(SCHEMA)
SPEC: dict[str, Any] = {
    "name": "x",
    "trainable": "work.py:train",
    "metric": "acc",
    "mode": "max",
    "space": {"lr": {"uniform": [0, 1]}},
    "trials": 1,
}


def is_taken(spec: dict[str, Any]) -> bool:
    """Whether the product takes it."""
    try:
        Spec.parse(spec)
    except SpecError:
        return False
    return True


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def shown() -> list[Any]:
    """The examples' specifications, and those of the documentation's pages."""
    root = Path(__file__).parents[2]
    files = [
        pytest.param(yaml.safe_load(file.read_text()), id=file.name)
        for file in sorted(root.glob("examples/*.yaml"))
    ]
    for page in pages():
        for block in page.blocks:
            if (
                block.language == "yaml"
                and block.mark("skip") is None
                and block.title not in ("wrong.yaml", "automation.yaml", *CLUSTERS)
            ):
                written = yaml.safe_load(block.body)
                base = {
                    key: value
                    for key, value in BASE.items()
                    if key != "trainable" or not {"command", "rllib"} & written.keys()
                }
                whole = written if "trainable" in written else {**base, **written}
                if not {"program", "regrow"} & written.keys():  # a sweep's file
                    files.append(pytest.param(whole, id=f"{page.name}:{block.line}"))
    return files


@pytest.mark.parametrize("spec", shown())
def test_it_takes_every_example(spec: dict[str, Any]) -> None:
    CHECK.validate(spec)
    Spec.parse(spec)


PARTS: list[dict[str, Any]] = [
    *(
        {"search": {name: options}}
        for name, options in SAMPLERS.items()
        if name not in ("grid", "brute_force")
    ),
    *({"search": name, "space": {"lr": {"grid": [0, 1]}}} for name in ("grid", "brute_force")),
    *(
        {"schedule": {name: options}, "max_steps": 9}
        for name, options in sorted(SCHEDULERS.items())
    ),
    {"search": {"tpe": None}},
    {"search": {"tpe": {"multivariate": None}}},
    {"search": "own:Sampler"},
    {"search": {"own.module:Sampler": {"any": [1]}}},
    {"schedule": {"own:Scheduler": None}},
    {
        "schedule": {"resource_changing": {"schedule": {"asha": {"grace_period": 2}}}},
        "max_steps": 9,
    },
    {"points": [{"lr": 0.5}]},
    {"points": [{"config": {"lr": 0.5}, "metrics": {"acc": 1}}]},
    {"warm_start": ["a", {"experiment": "b", "given": {"x": 1}}]},
    {"resources": {"memory": "2GiB", "custom": {"tpu": 1}}},
    {"resources": {"workers": 4, "reduce": "mean"}},
    {"resources": {"workers": [2, 4], "children": {"gpu": 0.5, "memory": "1GiB"}}},
    {"serve": {}},
    {
        "serve": {
            "model": "a.py:A",
            "gate": "acc > 1",
            "canary": "10% for 5min",
            "replicas": 2,
            "host": "h",
            "port": 80,
        }
    },
    {"resources": {"memory": 1024}},
    {"retries": {"error": "unlimited"}},
    {"env": {"A": "1", "B": None}},
    {"stop": {"all": [{"hours": 1}, {"plateau": {"trials": 3}}], "trial": {"target": 1}}},
    {
        "metric": [{"name": "a", "mode": "max"}, {"name": "b", "mode": "min"}],
        "mode": None,
        "search": "nsga2",
    },
]
SPACES: list[dict[str, Any]] = [
    {"a": {"quniform": [0, 1, 0.25]}},
    {"a": {"quniform": [0, 1], "step": 0.25}},
    {"a": {"int": [1, 9], "step": 2}},
    {"a": {"logint": [1, 9]}},
    {"a": {"normal": [0, 1]}},
    {"a": {"choice": [1, "b", None, [1], {"c": 2}]}},
    {"a": {"grid": [1, 2]}},
    {"a": {"constant": {"min": 0, "max": 1}}},
    {"a": {"choice": ["1e-3"], "text": True}},
    {"a": None, "b": "text", "c": True},
    {
        "o": {"choice": ["s", "t"]},
        "m": {"uniform": [0, 1], "when": {"o": "s"}},
        "g": {"when": {"o": ["s"]}, "d": {"deep": 1}},
    },
    {"a": {"min": {"uniform": [0, 1]}, "max": 1}},
    {"a": {"type": "adam", "min": 0, "max": 1}},
    {"uniform": {"uniform": [0, 1]}},
    {"when": 1},
    {"a": {"min": {"constant": 0}, "max": 1}},
    {"a": {"constant": 1, "other": 2}},
    {},
]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_it_takes_every_form_that_is_taken(part: dict[str, Any]) -> None:
    spec = {**SPEC, **part}
    CHECK.validate(spec)
    assert is_taken(spec)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_it_takes_every_form_of_a_space(space: dict[str, Any]) -> None:
    CHECK.validate({**SPEC, "space": space})
    Spec.parse({**SPEC, "space": space})


@pytest.mark.parametrize(
    "wrong",
    [
        {"space": {"lr": {"unifrom": [0, 1]}}},
        {"space": {"net": {"lr": {"unifrom": [0, 1]}}}},
        {"space": {"lr": [0, 1]}},
        {"space": {"lr": {"min": 0.0, "max": 0.1}}},
        {"space": {"lr": {"values": [1, 2]}}},
        {"space": {"lr": {"value": 3}}},
        {"space": {"lr": {"distribution": "log_uniform_values", "min": 0.1, "max": 1}}},
        {"space": {"lr": {"low": 0, "high": 1}}},
        {"space": {"lr": {"type": "loguniform", "lower": 0.1, "upper": 1}}},
        {"space": {"lr": {"uniform": [0]}}},
        {"space": {"lr": {"uniform": {"low": 0, "high": 1}}}},
        {"space": {"lr": {"int": [1, 2.5]}}},
        {"space": {"lr": {}}},
        {"space": {"lr": {"uniform": [0, 1], "wen": {"a": 1}}}},
        {"space": {"a.b": 1}},
        {"space": {"lr": {"uniform": 1}}},
        {"space": {"lr": {"choice": []}}},
        {"space": None},
        {"space": {"lr": {"uniform": ["0", 1]}}},
        {"search": "bayes"},
        {"search": {"name": "tpe"}},
        {"search": {"tpe": {"multivariat": True}}},
        {"search": {"tpe": {"n_startup_trials": "5"}}},
        {"search": {"tpe": {}, "random": {}}},
        {"search": {"random": {"a": 1}}},
        {"schedule": "hyperbnad"},
        {"schedule": {"asha": {"grace_perod": 1}}, "max_steps": 9},
        {"schedule": {"resource_changing": {"schedule": "ashaa"}}, "max_steps": 9},
        {"num_samples": 3},
        {"method": "bayes"},
        {"serve": {"gates": "a > 1"}},
        {"serve": {"port": 0}},
        {"serve": {"replicas": "2"}},
        {"resources": {"workers": 0}},
        {"resources": {"workers": [1]}},
        {"resources": {"children": {"cont": 1}}},
        {"resources": {"memory": "lots"}},
        {"metric": {"name": "a", "goal": "minimize"}},
    ],
    ids=str,
)
def test_it_refuses_what_is_refused(wrong: dict[str, Any]) -> None:
    spec = {**SPEC, **wrong}
    assert not is_taken(spec)
    assert not CHECK.is_valid(spec)


def test_every_sampler_and_scheduler_is_in_it_with_its_options() -> None:
    for part, registry in (("Search", samplers.NAMES), ("Schedule", schedulers.NAMES)):
        names, _, with_options = SCHEMA["$defs"][part]["anyOf"]
        assert names["enum"] == ["auto", *registry]
        assert [*with_options["properties"]] == [*registry]
        for name, options in with_options["properties"].items():
            assert options["description"], name
    assert SCHEMA["$defs"]["Search"]["anyOf"][2]["properties"]["nsga3"]["properties"].keys() == {
        "dividing_parameter",
        "population_size",
        "mutation_prob",
        "crossover_prob",
        "swapping_prob",
    }


words = st.sampled_from(
    [
        "min",
        "max",
        "low",
        "high",
        "type",
        "distribution",
        "value",
        "values",
        "step",
        "log",
        "uniform",
        "int",
        "choice",
        "constant",
        "when",
        "name",
        "a",
    ]
)
leaves = st.sampled_from(
    [0, 1, 0.5, "a", "uniform", "adam", None, True, [0, 1], [1], {"uniform": [0, 1]}]
)
maps = st.dictionaries(words, leaves, max_size=4)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(parameter=leaves | maps | st.dictionaries(words, maps, max_size=2))
def test_whatever_is_taken_the_schema_takes_too(parameter: Any) -> None:
    spec = {**SPEC, "space": {"p": parameter}}
    if is_taken(spec):
        CHECK.validate(spec)
