"""A rank falls silent, stopped or cut off: the attempt is lost by the group's own lease, and its
node is avoided meanwhile.
"""

from __future__ import annotations

import pytest

from regrow.search.events import Ended, Reported
from regrow.tasks.group import leader as leading
from regrow.tasks.ports.ranks import GroupBroken
from regrow.tasks.trial.trial import Trial
from tests.unit.attempting import Killed
from tests.unit.grouped import Grouping
from tests.unit.office import MakeOffice, Office


def fall_silent(group: Grouping) -> None:
    """Nothing of rank 1 is heard any more."""
    member = group.ranks[1].member
    assert member is not None
    member.send = lambda message: None  # type: ignore[method-assign]  # it vanishes


def avoided(office: Office) -> tuple[str, ...]:
    return office.instructions().avoid


@pytest.mark.parametrize(
    ("nodes", "avoid"), [({1: "node-1"}, ("node-1",)), ({}, ())], ids=["elsewhere", "here"]
)
def test_rank_0_that_waits_for_it_says_so_and_only_a_node_of_its_own_is_avoided(
    make_pair: MakeOffice, group: Grouping, nodes: dict[int, str], avoid: tuple[str, ...]
) -> None:
    office, group.lease = make_pair(), 0.5

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if trial.world.rank == 1 and step == 3:
                fall_silent(group)
                group.ends.wait(20)
            trial.report({"score": step})

    with pytest.raises(GroupBroken, match=r"rank 1 on node\S* was silent for 0\.5 s") as broken:
        group(office, train, nodes=nodes)
    assert broken.value.silent
    assert avoided(office) == avoid
    assert [row.step for e in office.events if isinstance(e, Reported) for row in e.rows] == [1, 2]


# the end of the process is an exception here
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_rank_0_in_the_middle_of_a_step_says_so_and_leaves(
    make_pair: MakeOffice, group: Grouping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "SILENT_SECONDS", 0.1)
    office, group.lease = make_pair(), 0.5

    def train(trial: Trial) -> None:
        for step in trial.steps():
            if step == 3:
                if trial.world.rank == 0:
                    assert group.left.wait(20)
                    raise Killed
                fall_silent(group)
                group.ends.wait(20)
            trial.report({"score": step})

    with pytest.raises(Killed):
        group(office, train, nodes={1: "node-1"})
    (ended,) = (event for event in office.events if isinstance(event, Ended))
    assert (ended.outcome, ended.cause, ended.step) == ("lost", "preempted", 2)
    assert ended.message.endswith("was silent for 0.5 s"), (
        "all that anybody else saw is that the process ended"
    )
    assert avoided(office) == ("node-1",)
