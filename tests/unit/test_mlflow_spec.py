"""The keys `mlflow` and `register` of a specification: what they take, and that a session may
change them.
"""

from __future__ import annotations

from typing import Any

import pytest

from regrow.flows.coordinator.claim import SessionOpening, claimed
from regrow.infra.log.reading import replay
from regrow.infra.mlflow.ui import runs_page
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.search.spec.parts import Recording
from tests.memory_store import MemoryStore
from tests.unit.office import opening_of
from tests.unit.simulated import SPEC


def test_they_are_off_by_default_and_kept_in_the_canonical_form() -> None:
    plain = Spec.parse({**SPEC})
    assert (plain.register, plain.mlflow) == (None, Recording())
    given = Spec.parse(
        {**SPEC, "register": "digits", "mlflow": {"experiment": "Shared", "system_metrics": True}}
    )
    assert Spec.parse(given.to_json()) == given
    assert given.identity() == plain.identity(), "where it is recorded makes it no other experiment"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"register": "a/b"}, 'register: "a/b": is no name; write 1 to 63'),
        (
            {"mlflow": {"experiments": "x"}},
            "mlflow.experiments: \"x\": unknown key; did you mean 'experiment'?",
        ),
        ({"mlflow": "x"}, 'mlflow: "x": is not a map; its keys are: experiment, system_metrics'),
        ({"mlflow": {"experiment": ""}}, 'mlflow.experiment: "": is empty; write a name'),
        (
            {"mlflow": {"system_metrics": "yes"}},
            'mlflow.system_metrics: "yes": is neither true nor false; write true or false',
        ),
    ],
)
def test_what_they_do_not_take_is_told(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError) as told:
        Spec.parse({**SPEC, **changes})
    assert str(told.value).startswith(line)


def test_each_session_notes_what_it_was_told_and_the_environment_once() -> None:
    store = MemoryStore()

    def opening(**changes: Any) -> SessionOpening:
        return opening_of(Spec.parse({**SPEC, **changes}), environment={"python": "3"})

    claimed(store, opening(register="a"), "driver-1")
    first = replay(store)
    assert (first.spec.register, first.environment, first.spec.recorded_as) == (
        "a",
        {"python": "3"},
        "simulated",
    )
    claimed(store, opening(mlflow={"experiment": "Shared"}), "driver-2")
    second = replay(store)
    assert (second.spec.register, second.spec.recorded_as) == (None, "Shared")
    claimed(store, opening(mlflow={"experiment": "Shared"}), "driver-2")
    again = replay(store)
    assert again.opened is not None
    assert (again.opened.by, again.opened.environment, again.spec.recorded_as) == (
        "coordinator",
        {},
        "Shared",
    )


def test_the_page_of_a_server_that_is_away_is_its_front_page() -> None:
    assert (
        runs_page("http://127.0.0.1:1", "Shared", "accuracy", "max", only="id")
        == "http://127.0.0.1:1"
    )
