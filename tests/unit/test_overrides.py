"""`--set KEY=VALUE`: what a specification becomes, and the errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regrow.cli.options import with_limits
from regrow.infra.state.spec_file import read_spec
from regrow.infra.state.yaml_file import set_values
from regrow.search.errors import SpecError
from regrow.search.spec.overrides import overridden
from regrow.tasks.errors import UserError

DATA: dict[str, Any] = {
    "trials": 5,
    "schedule": "asha",
    "search": {"tpe": {"multivariate": True}},
    "space": {
        "lr": {"uniform": [0, 1], "when": {"model": "mlp"}},
        "opt": {"decay": 0.1},
        "opt.momentum": {"uniform": [0, 1]},
    },
    "points": [{"lr": 0.1}],
    "seed": 3,
}


@pytest.mark.parametrize(
    ("given", "where", "becomes"),
    [
        ("trials=40", ["trials"], 40),
        ("stop.hours=2", ["stop"], {"hours": 2}),
        ("seed=null", [], {key: value for key, value in DATA.items() if key != "seed"}),
        ("schedule.asha.grace_period=2", ["schedule"], {"asha": {"grace_period": 2}}),
        ("schedule.hyperband.eta=2", ["schedule"], {"hyperband": {"eta": 2}}),
        ("search.tpe.startup=5", ["search"], {"tpe": {"multivariate": True, "startup": 5}}),
        (
            "space.lr.loguniform=[1e-4, 1]",
            ["space", "lr"],
            {"loguniform": [1e-4, 1], "when": {"model": "mlp"}},
        ),
        ("space.opt.decay.uniform=[0, 1]", ["space", "opt"], {"decay": {"uniform": [0, 1]}}),
        ("space.opt.momentum=0.9", ["space", "opt.momentum"], 0.9),
        ("points.0.lr=0.2", ["points"], [{"lr": 0.2}]),
    ],
)
def test_a_value_takes_the_place_of_the_files(
    given: str, where: list[str], becomes: object
) -> None:
    before = repr(DATA)
    found: Any = overridden(DATA, set_values([given]))
    for key in where:
        found = found[key]
    assert found == becomes
    assert repr(DATA) == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("trials.most=3", "--set trials.most: trials.most: 3: trials is a plain value"),
        ("points.1.lr=3", "points is a list of 1, which has no place 1"),
    ],
)
def test_a_path_through_a_plain_value_is_refused(given: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        overridden(DATA, set_values([given]))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "given", ["trials", "=3", "a..b=3", "trials=[", "trials=", "trials=!!python/none x"]
)
def test_what_is_no_key_and_value_is_refused(given: str) -> None:
    with pytest.raises(UserError, match="--set"):
        set_values([given])


def test_an_invalid_value_is_named_by_its_option_and_another_error_by_its_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "t.py").write_text("def train(trial): ...\n")
    file = tmp_path / "a.yaml"
    file.write_text(
        "name: a\ntrainable: t.py:train\nmetric: m\nmode: max\nspace: {x: {uniform: [0, 1]}}\n"
        "trials: 4\nconcurrency: -1\n"
    )
    with pytest.raises(SpecError, match=r"^--set trials: trials: -4: "):
        read_spec(file, changes={"trials": -4, "concurrency": 1})
    with pytest.raises(SpecError, match=r"a\.yaml:7: concurrency: -1: "):
        read_spec(file, changes={"trials": 5})
    assert read_spec(file, changes={"trials": 5, "concurrency": None}).trials == 5


def test_limits_of_the_command_line_are_values_like_others() -> None:
    given = with_limits(["trials=null"], "20", 5.0, "2026-11-30 08:00")
    assert overridden(DATA, set_values(given)) == {
        **{key: value for key, value in DATA.items() if key != "trials"},
        "budget": 20,
        "stop": {"dollars": 5.0, "deadline": "2026-11-30 08:00"},
    }
