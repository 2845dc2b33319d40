"""How many workers attempts have, and on which nodes, wherever trials are shown; nothing of it
where no trial can have any.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from regrow.cli import tables
from regrow.search.events import AnyEvent, Began, Ended, Place
from regrow.show.live.board import Board
from regrow.show.live.grid import Signs
from regrow.show.live.sections import compose
from regrow.show.report import table
from regrow.show.views import summaries
from tests.unit.figured import folded, groups
from tests.unit.paged import logged, reader


def drawn(events: Sequence[AnyEvent]) -> str:
    """The live view of trials that still run."""
    board = Board()
    for event in events:
        if not isinstance(event, Ended):
            board.apply(event)
    lines = compose(board, width=160, height=40, now=board.history.t_last, signs=Signs())
    return "\n".join(line.plain for line in lines)


def printed(events: list[AnyEvent]) -> str:
    """The table of `regrow trials`."""
    out = io.StringIO()
    console = Console(file=out, width=160)
    console.print(tables.trials(folded(events), console))
    return out.getvalue()


def on_one_node(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """The same groups, all of whose workers are beside the first."""
    return [
        msgspec.structs.replace(
            event, others=[Place(event.node, event.node_id) for _ in event.others]
        )
        if isinstance(event, Began)
        else event
        for event in events
    ]


def test_the_live_view_has_the_workers_of_each_trial_and_their_nodes() -> None:
    shown = drawn(groups(3, 1))
    assert re.search(r"running +step .* workers +node", shown)
    assert "slots" not in re.findall(r"running +step.*", shown)[0]
    assert re.search(r"\b3 +n1, n2 x2\b", shown)
    assert re.search(r"\b2 +n1 x2\b", drawn(on_one_node(groups(2))))


def test_trials_in_a_terminal_have_those_of_their_last_attempt() -> None:
    lines = printed(groups(3, 1)).splitlines()
    assert re.search(r"attempts +workers +node +lr", lines[1])
    assert any(re.search(r"\b1 +3 +n1, n2 x2\b", line) for line in lines)
    assert any(re.search(r"\b1 +1 +n1\b", line) for line in lines)


def test_the_report_and_show_as_json_have_those_of_each_attempt() -> None:
    history = folded(groups(3, 1))
    rows = table.rows(history)
    assert rows["ranked"] is True
    assert [(t["attempts"][0]["workers"], t["attempts"][0]["node"]) for t in rows["trials"]] == [
        (3, "n1, n2 x2"),
        (1, "n1"),
    ]
    assert [
        summaries.trial_view(history, trial)["attempts"][0]["workers"] for trial in history.trials
    ] == [3, 1]


def test_the_page_has_them_in_both_of_its_tables(tmp_path: Path) -> None:
    logged(tmp_path, "figures", groups(3, 1))
    readers = reader(tmp_path)
    assert '<th scope="col" class="num">workers</th>' in readers.get("/e/figures").text
    one = readers.get("/e/figures/t/0").text
    assert '<th scope="col">workers</th>' in one
    assert "<td>3</td><td>n1, n2 x2</td>" in one


def test_nothing_of_it_is_there_where_trials_have_no_workers(tmp_path: Path) -> None:
    plain = groups(1, 1, resources={"cpu": 1})
    assert not re.search(r"workers +(node|lr)", drawn(plain) + printed(plain))
    history = folded(plain)
    assert "ranked" not in table.rows(history)
    assert "workers" not in summaries.trial_view(history, history.trials[0])["attempts"][0]
    logged(tmp_path, "figures", plain)
    readers = reader(tmp_path)
    for page in ("/e/figures", "/e/figures/t/0"):
        assert ">workers</th>" not in readers.get(page).text
