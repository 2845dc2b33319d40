"""The table of legal moves, read from end to end."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import pytest

from regrow.search.lifecycle import TABLE, IllegalMove, Move, TrialState, mermaid, move

S, M = TrialState, Move

LEGAL = {
    S.PENDING: {M.START: S.RUNNING},
    S.PAUSED: {M.START: S.RUNNING, M.STOP: S.STOPPED},
    S.LOST: {M.START: S.RUNNING},
    S.RUNNING: {
        M.REPORT: S.RUNNING,
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


@pytest.mark.parametrize(("state", "what"), [pair for pair in EVERY if pair[1] in LEGAL[pair[0]]])
def test_a_legal_move_leads_where_the_table_says(state: TrialState, what: Move) -> None:
    assert move(0, state, what) is LEGAL[state][what]


@pytest.mark.parametrize(("state", "what"), [pair for pair in EVERY if pair[1] not in LEGAL[pair[0]]])
def test_an_illegal_move_names_trial_state_and_move_and_changes_nothing(state: TrialState, what: Move) -> None:
    before = dict(TABLE)
    with pytest.raises(IllegalMove) as caught:
        move(17, state, what)
    assert str(caught.value) == f"trial 17, in state {state.value!r}, cannot {what.value}"
    assert (caught.value.trial, caught.value.state, caught.value.move) == (17, state, what.value)
    assert before == TABLE


def test_the_final_states_are_those_that_nothing_leaves_but_a_failed_one_by_the_users_wish() -> None:
    assert {state for state in TrialState if state.final} - {S.FAILED} == {state for state in TrialState if not LEGAL[state]}


def test_every_state_is_reached_from_pending_and_leads_to_a_final_one() -> None:
    reached = {S.PENDING}
    for _ in TrialState:
        reached |= {after for (before, _), after in TABLE.items() if before in reached}
    assert reached == set(TrialState)
    ending = {state for state in TrialState if state.final}
    for _ in TrialState:
        ending |= {before for (before, _), after in TABLE.items() if after in ending}
    assert ending == set(TrialState)


def test_an_illegal_move_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(IllegalMove(3, None, "start")))
    assert str(error) == "trial 3, which does not exist, cannot start"


def test_the_diagram_of_the_documentation_is_made_from_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    _, _, rest = page.partition("<!-- lifecycle -->")
    between, end, _ = rest.partition("<!-- /lifecycle -->")
    assert end
    assert between.strip() == f"```mermaid\n{mermaid()}\n```"
