"""`notify:` of a specification: it names variables, never addresses, and what becomes of the events
that it can name.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from regrow.infra.prefect.events import PrefectEvents
from regrow.infra.prefect.notifications import EVENTS, automation, block_name
from regrow.search.errors import SpecError
from regrow.search.events import Began, Ended
from regrow.search.recurrence import run_name
from regrow.search.spec import Spec
from regrow.search.spec.station import Notify, Told
from tests.unit.simulated import Simulation

SECRET = "https://hooks.slack.com/services/T000/B000/XXXX"


def spec(notify: Any) -> Spec:
    return Spec.parse(
        {
            "name": "x",
            "trainable": "a.py:b",
            "metric": "acc",
            "mode": "max",
            "space": {"lr": {"uniform": [0, 1]}},
            "trials": 1,
            "notify": notify,
        }
    )


def test_variables_are_named_with_or_without_braces() -> None:
    notify = spec({"slack": "$SLACK_WEBHOOK", "email": "${MAIL}"}).notify
    assert notify is not None
    assert notify.addresses == {"slack": "SLACK_WEBHOOK", "email": "MAIL"}
    assert notify.events == ("finished", "failed")


@pytest.mark.parametrize(
    ("notify", "said"),
    [
        ({"slack": SECRET}, r'notify\.slack: "\*\*\*".*is a secret.*\$SLACK_URL'),
        ({"webhook": 3}, r'notify\.webhook: "\*\*\*"'),
        ({"smtp": "$X"}, "notify.smtp.*unknown key"),
        ({}, "names nobody"),
        ({"slack": "$X", "events": []}, r"notify\.events.*is empty"),
        ({"slack": "$X", "events": ["finish"]}, "finished"),
        ({"block": "no block"}, r"notify\.block"),
    ],
)
def test_what_cannot_be_is_refused_without_the_address(notify: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        spec(notify)
    assert SECRET not in str(caught.value)


def test_each_event_that_can_be_named_has_one_of_prefects() -> None:
    assert EVENTS.keys() == set(Told.__args__)  # type: ignore[attr-defined]  # of a Literal


def test_no_two_owners_share_a_block() -> None:
    names = {block_name(owner, "slack") for owner in ("a.b", "a-b", "A_b", "a-b-", "é")}
    assert len(names) == 5
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in names)


def test_an_automation_is_about_its_experiment_alone() -> None:
    made = automation("n", "digits", Notify(slack="$X"), [], scheduled=False)
    trigger = made.trigger.model_dump()
    assert trigger["expect"] == {"regrow.experiment.finished", "regrow.experiment.failed"}
    assert trigger["match"]["prefect.resource.id"] == [
        "regrow.experiment.digits",
        "regrow.trial.digits.*",
    ]


def test_a_schedules_automation_is_about_the_experiments_that_are_named_after_it() -> None:
    owner = "a" * 60
    made = automation("n", owner, Notify(slack="$X"), [], scheduled=True)
    name = run_name(owner, datetime(2026, 11, 22, 2, 30, 15, tzinfo=UTC), ())
    matched = made.trigger.model_dump()["match"]["prefect.resource.id"]
    assert any(
        one.endswith("*") and f"regrow.experiment.{name}".startswith(one[:-1]) for one in matched
    )


def test_an_experiment_whose_hours_are_over_says_so() -> None:
    events = Simulation().open(schedule="fifo", stop={"hours": 0.001}).run().events
    fold = PrefectEvents()
    told = [one for event in events for one in fold.apply(event)]
    [budget] = [one for one in told if one.event == "regrow.experiment.budget"]
    assert budget.payload["why"] == "0.001 hours are over"
    assert all(one.payload["text"] for one in told if one.event)
    other = PrefectEvents()
    unlimited = Simulation().open(schedule="fifo", stop={"target": 0.1}).run().events
    assert not [
        one
        for event in unlimited
        for one in other.apply(event)
        if one.event == "regrow.experiment.budget"
    ]


def test_a_trial_that_stalled_is_lost_and_says_that_it_stalled() -> None:
    fold = PrefectEvents()
    for event in Simulation().open(schedule="fifo").run().events:
        fold.apply(event)
        if isinstance(event, Began):
            break
    assert isinstance(event, Began)
    ended = Ended(
        t=event.t + 1,
        trial=event.trial,
        attempt=event.attempt,
        outcome="lost",
        cause="stalled",
        message="hung",
    )
    lost, stalled = fold.apply(ended)
    assert (lost.event, stalled.event, stalled.line) == (
        "regrow.trial.lost",
        "regrow.trial.stalled",
        "",
    )
    assert lost.id != stalled.id
    assert "hung" in lost.payload["text"] == stalled.payload["text"]
