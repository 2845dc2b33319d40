"""The table of legal moves, read from end to end."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from regrow.search.events import Outcome
from regrow.search.lifecycle import (
    ATTEMPT_TABLE,
    CAUSES,
    HELD,
    OUTCOMES,
    REVIVAL,
    STANDING,
    TABLE,
    AttemptMove,
    AttemptState,
    IllegalMove,
    Leave,
    Move,
    TrialState,
    consequence,
    move,
    move_attempt,
)

S, M = TrialState, Move
A, W = AttemptState, AttemptMove

LEGAL = {
    S.PENDING: {M.START: S.RUNNING, M.STOP: S.STOPPED},
    S.PAUSED: {M.START: S.RUNNING, M.STOP: S.STOPPED},
    S.LOST: {M.START: S.RUNNING, M.STOP: S.STOPPED},
    S.RUNNING: {
        M.DONE: S.DONE,
        M.PAUSE: S.PAUSED,
        M.STOP: S.STOPPED,
        M.LOSE: S.LOST,
        M.FAIL: S.FAILED,
    },
    S.DONE: {},
    S.STOPPED: {},
    S.FAILED: {M.RETRY: S.LOST, M.PAUSE: S.PAUSED, M.STOP: S.STOPPED},
}
"""Written out once more, so that no entry of the table changes unnoticed."""
EVERY = list(itertools.product(TrialState, Move))
LEGAL_OF_ATTEMPTS = {
    A.SUBMITTED: {W.BEGIN: A.RUNNING, W.LEAVE: A.SUBMITTED, W.END: A.ENDED},
    A.RUNNING: {
        W.REPORT: A.RUNNING,
        W.SAVE: A.RUNNING,
        W.GO_ON: A.RUNNING,
        W.LEAVE: A.LEAVING,
        W.END: A.ENDED,
    },
    A.LEAVING: {
        W.REPORT: A.LEAVING,
        W.SAVE: A.LEAVING,
        W.LEAVE: A.LEAVING,
        W.END: A.ENDED,
    },
    A.ENDED: {},
}


@pytest.mark.parametrize(("state", "what"), [pair for pair in EVERY if pair[1] in LEGAL[pair[0]]])
def test_a_legal_move_leads_where_the_table_says(state: TrialState, what: Move) -> None:
    assert move(0, state, what) is LEGAL[state][what]


@pytest.mark.parametrize(
    ("state", "what"), [pair for pair in EVERY if pair[1] not in LEGAL[pair[0]]]
)
def test_an_illegal_move_names_trial_state_and_move_and_changes_nothing(
    state: TrialState, what: Move
) -> None:
    before = dict(TABLE)
    with pytest.raises(IllegalMove) as caught:
        move(17, state, what)
    assert str(caught.value) == f"trial 17, in state {state.value!r}, cannot {what.value}"
    assert (caught.value.trial, caught.value.state, caught.value.move) == (17, state, what.value)
    assert before == TABLE


def test_the_final_states_are_those_that_nothing_leaves_but_a_failed_one_by_the_users_wish() -> (
    None
):
    assert {state for state in TrialState if state.final} - {S.FAILED} == {
        state for state in TrialState if not LEGAL[state]
    }


def test_every_state_is_reached_from_pending_and_leads_to_a_final_one() -> None:
    reached = {S.PENDING}
    for _ in TrialState:
        reached |= {after for (before, _), after in TABLE.items() if before in reached}
    assert reached == set(TrialState)
    ending = {state for state in TrialState if state.final}
    for _ in TrialState:
        ending |= {before for (before, _), after in TABLE.items() if after in ending}
    assert ending == set(TrialState)


@pytest.mark.parametrize(("state", "what"), list(itertools.product(AttemptState, AttemptMove)))
def test_a_move_of_an_attempt_leads_where_its_table_says_and_every_other_is_illegal(
    state: AttemptState, what: AttemptMove
) -> None:
    if what in LEGAL_OF_ATTEMPTS[state]:
        assert (
            move_attempt(0, 1, state, what)
            is LEGAL_OF_ATTEMPTS[state][what]
            is ATTEMPT_TABLE[state, what]
        )
        return
    with pytest.raises(IllegalMove) as caught:
        move_attempt(17, 2, state, what)
    assert str(caught.value).startswith(
        f"attempt 2 of trial 17, in state {state.value!r}, cannot {what.value}"
    )


def test_what_an_attempt_was_to_do_stands_although_it_was_lost_before_it_heard_of_that() -> None:
    verdicts: tuple[Leave | None, ...] = (None, "stop", "pause", "restart")
    told = {
        (verdict, out): consequence(out, verdict, retries=True)
        for verdict in verdicts
        for out in OUTCOMES
    }
    usual: dict[Outcome, Move] = {**OUTCOMES, "failed": M.LOSE, "lost": M.LOSE, "preempted": M.LOSE}
    changed: dict[tuple[Leave | None, Outcome], Move] = {
        ("stop", "paused"): M.STOP,
        ("stop", "failed"): M.STOP,
        ("stop", "lost"): M.STOP,
        ("stop", "preempted"): M.STOP,
        ("pause", "failed"): M.PAUSE,
        ("pause", "lost"): M.PAUSE,
        ("pause", "preempted"): M.PAUSE,
    }
    assert told == {
        (verdict, out): changed.get((verdict, out), usual[out])
        for verdict in verdicts
        for out in OUTCOMES
    }
    assert all(consequence("failed", verdict, retries=False) is M.FAIL for verdict in verdicts)


def test_the_rules_beside_the_tables_lead_to_legal_moves_only() -> None:
    assert {(S.RUNNING, what) for what in (*OUTCOMES.values(), *STANDING.values(), M.LOSE)} <= set(
        TABLE
    )
    assert {(S.FAILED, what) for what in REVIVAL.values()} <= set(TABLE)
    assert {outcome for outcome, what in OUTCOMES.items() if what is M.FAIL} == set(CAUSES)
    assert not any(state.final for state, _ in HELD)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (IllegalMove(3, None, "start"), "trial 3, which does not exist, cannot start"),
        (IllegalMove(None, None, "be created twice"), "the experiment cannot be created twice"),
        (
            IllegalMove(3, None, "report", attempt=7),
            "attempt 7 of trial 3, which does not exist, cannot report",
        ),
        (
            IllegalMove(3, A.SUBMITTED, "report", attempt=2),
            "attempt 2 of trial 3, in state 'submitted', cannot report",
        ),
    ],
)
def test_an_illegal_move_reads_well_whoever_it_is_about_and_survives_pickling(
    error: IllegalMove, text: str
) -> None:
    assert str(error) == text
    error.story = ("attempt 1 was submitted at 1.0 s", "attempt 1 ended as lost at 2.0 s")
    again = pickle.loads(pickle.dumps(error))
    assert (
        str(again)
        == f"{text}; its last events: attempt 1 was submitted at 1.0 s; attempt 1 ended as lost at 2.0 s"
    )
    assert (again.trial, again.attempt, again.state, again.story) == (
        error.trial,
        error.attempt,
        error.state,
        error.story,
    )


def diagram(table: Mapping[Any, Any], first: str, last: list[Any]) -> str:
    """A table of moves as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    stays: dict[str, list[str]] = {}
    for (before, what), after in table.items():
        if before != after:
            lines.append(f"    {before} --> {after}: {what}")
        else:  # Mermaid draws several arrows from a state to itself on top of each other
            stays.setdefault(before, []).append(what)
    lines += [f"    note left of {state}: {', '.join(several)}" for state, several in stays.items()]
    return "\n".join([*lines, *(f"    {s} --> [*]" for s in last)])


@pytest.mark.parametrize(
    ("mark", "drawn"),
    [
        ("lifecycle", diagram(TABLE, "pending: propose", [s for s in S if s.final])),
        ("lifecycle of attempts", diagram(ATTEMPT_TABLE, "submitted: start", [A.ENDED])),
    ],
)
def test_the_diagrams_of_the_documentation_are_made_from_the_tables(mark: str, drawn: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    _, _, rest = page.partition(f"<!-- {mark} -->")
    between, end, _ = rest.partition(f"<!-- /{mark} -->")
    assert end
    assert between.strip() == f"```mermaid\n{drawn}\n```"
