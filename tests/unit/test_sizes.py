"""How many on-demand machines there are beside spot machines: as many as attempts need that wait
for one or run on one, and one that stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from regrow.search.events import Began, Closing, Ended, Joined, Left, Opened, Proposed, Started
from regrow.search.history import History
from regrow.search.planning import sizes
from regrow.search.planning.sizes import KEPT, SETTLE_SECONDS, Group
from tests.unit.simulated import created

BOOT, IDLE = 60.0, 300.0
GROUPS = (
    Group(name="small", market="on-demand", most=1),
    Group(name="spot", market="spot", most=16),
    Group(name="large", market="on-demand", most=6),
)


@dataclass
class World:
    """A cloud whose groups are sized every second, with virtual machines and attempts. A machine of
    the small group runs no attempt.
    """

    slots: int = 2
    groups: list[Group] = field(default_factory=lambda: list(GROUPS))
    history: History = field(default_factory=lambda: History("simulated"))
    now: float = 0.0
    booting: list[tuple[float, str]] = field(default_factory=list)
    machines: dict[str, str] = field(default_factory=dict)
    """Groups of those that take part, by the names of their agents."""
    asked: int = 0
    trials: int = 0

    def __post_init__(self) -> None:
        self.history.apply(created(trials=40, max_steps=9, market="spot"))
        self.history.apply(Opened(t=0.0, by="driver", driver="d", slots=16, trials=40))
        for name, size in sizes.first(self.groups).items():
            if name != "spot":
                self.start(name, size)

    def start(self, name: str, count: int) -> None:
        self.booting += [(self.now + BOOT, name)] * count
        self.groups = [
            replace(one, there=one.there + count) if one.name == name else one
            for one in self.groups
        ]

    def wait(self, market: str = "on-demand", *, avoid_spot: bool = False) -> int:
        """An attempt of a new trial is submitted."""
        trial, self.trials = self.trials, self.trials + 1
        self.history.apply(Proposed(t=self.now, trial=trial, config={"x": 0.5}))
        started = Started(t=self.now, trial=trial, attempt=1, market=market, avoid_spot=avoid_spot)
        self.history.apply(started)
        return trial

    def end(self, trial: int) -> None:
        self.history.apply(
            Ended(t=self.now, trial=trial, attempt=1, outcome="failed", cause="error")
        )

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            self._boot()
            self._schedule()
            if sizes.is_short(self.history, self.now):
                self.asked += 1
                for name, size in sizes.sizes(self.history, self.groups, self.now).items():
                    (there,) = [one.there for one in self.groups if one.name == name]
                    assert size >= there, "a leader never shrinks a group"
                    self.start(name, size - there)
            for agent in list(self.machines):
                if sizes.idle(self.history, agent, self.now) >= IDLE:
                    self.leave(agent)

    def leave(self, agent: str) -> None:
        name = self.machines.pop(agent)
        self.history.apply(Left(t=self.now, agent=agent, why="idle"))
        self.groups = [
            replace(one, there=one.there - 1) if one.name == name else one for one in self.groups
        ]

    def count(self, name: str) -> int:
        return sum(one == name for one in self.machines.values())

    def _boot(self) -> None:
        for t, name in [one for one in self.booting if one[0] <= self.now]:
            self.booting.remove((t, name))
            agent = f"{name}-{self.now:g}-{len(self.machines)}"
            self.machines[agent] = name
            asked: Any = {"cpus": 2.0, "gpus": 0.0, "market": "on-demand"}
            joined = Joined(t=self.now, agent=agent, host="h", node_id=agent, **asked)
            self.history.apply(joined)

    def _schedule(self) -> None:
        used = {name: 0 for name, group in self.machines.items() if group == "large"}
        running = [self.history.trials[n].attempts[-1] for n in sorted(self.history.running)]
        for one in running:
            if one.node_id in used:
                used[one.node_id] += 1
        for number in sorted(self.history.running):
            one = self.history.trials[number].attempts[-1]
            free = [name for name, count in used.items() if count < self.slots]
            if one.t_began is None and free and (one.market != "spot"):
                used[free[0]] += 1
                place: Any = {"node": "n", "node_id": free[0], "market": "on-demand"}
                self.history.apply(Began(t=self.now, trial=number, attempt=1, **place))


def test_one_on_demand_machine_is_there_from_the_start_and_all_spot_machines() -> None:
    assert sizes.first(GROUPS) == {"small": 1, "spot": 16, "large": 0}
    alone = [one for one in GROUPS if one.market == "on-demand"]
    assert sizes.first(alone) == {"small": 1, "large": 6}, "without spot machines all of them"


def test_nothing_is_started_while_spot_machines_do() -> None:
    world = World()
    for _ in range(8):
        world.wait("spot")
    world.run(2000)
    assert world.machines.keys() == {"small-60-0"}, "the one that stays does no trial, and stays"


def test_machines_come_for_attempts_that_wait_for_them_and_leave_when_idle() -> None:
    world = World()
    world.run(100)
    for _ in range(3):
        world.wait()
    world.wait(market="", avoid_spot=True)
    world.run(SETTLE_SECONDS - 1)
    assert not world.booting, "a machine that is there would have taken them"
    world.run(2)
    assert [name for _, name in world.booting] == ["large"] * 4, "a machine's slots are not known"
    world.run(BOOT)
    assert world.count("large") == 4
    world.run(IDLE)
    assert world.count("large") == 2, "two machines had room for all"

    for _ in range(5):
        world.wait()
    world.run(SETTLE_SECONDS + BOOT + 2)
    assert world.count("large") == 5, "two attempts run on a machine, so five need three more"
    for _ in range(20):
        world.wait()
    world.run(SETTLE_SECONDS + BOOT + 2)
    assert (world.count("large"), world.booting) == (6, []), "`most` machines"

    for trial in sorted(world.history.running):
        world.end(trial)
    world.run(IDLE - 1)
    assert world.count("large") == 6
    world.run(3)
    assert list(world.machines.values()) == ["small"]


def test_the_one_that_stays_is_replaced_also_without_an_attempt() -> None:
    world = World()
    world.run(100)
    world.leave("small-60-0")
    world.run(BOOT + 2)
    assert world.count("small") == KEPT
    assert world.booting == []
    asked = world.asked
    world.run(100)
    assert world.asked == asked, "the cloud is not asked without need"


def test_nothing_is_started_for_an_experiment_that_ends() -> None:
    world = World()
    world.run(100)
    world.wait()
    world.history.apply(Closing(t=world.now, by="user", status="stopped", why="by its user"))
    world.run(100)
    assert world.booting == []
    assert list(world.machines.values()) == ["small"]


def spare(history: History, now: float) -> dict[str, float]:
    return {name: sizes.spare(history, name, now) for name in history.agents}


def test_machines_leave_that_no_trial_is_left_for_the_last_to_join_first() -> None:
    history = History("simulated")
    history.apply(created(trials=4, max_steps=9))
    history.apply(Opened(t=0.0, by="driver", driver="d", slots=4, trials=4, agent="a"))
    for t, name in enumerate("abcd"):
        asked: Any = {"cpus": 2.0, "gpus": 0.0}
        history.apply(Joined(t=float(t), agent=name, host="h", node_id=name, **asked))
    assert spare(history, 100.0) == {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0}, "each may get one"
    for trial, node in enumerate("abcd"):
        history.apply(Proposed(t=4.0, trial=trial, config={"x": 0.5}))
        history.apply(Started(t=4.0, trial=trial, attempt=1))
        place: Any = {"node": "n", "node_id": node}
        history.apply(Began(t=5.0, trial=trial, attempt=1, **place))
    failed: Any = {"attempt": 1, "outcome": "failed", "cause": "error"}
    history.apply(Ended(t=10.0, trial=1, **failed))
    history.apply(Ended(t=20.0, trial=2, **failed))
    # two trials are left, on the machines of the leader and d
    assert spare(history, 100.0) == {"a": 0.0, "b": 90.0, "c": 80.0, "d": 0.0}
    history.apply(Ended(t=30.0, trial=3, attempt=1, outcome="preempted", cause="preempted"))
    # the trial of d continues on any of b, c and d: the first of them stays
    assert spare(history, 100.0) == {"a": 0.0, "b": 0.0, "c": 80.0, "d": 70.0}
    history.apply(Left(t=40.0, agent="b", why="lost"))
    assert spare(history, 100.0) == {"a": 0.0, "b": 0.0, "c": 0.0, "d": 70.0}
    history.apply(Closing(t=50.0, status="interrupted", by="user", why="SIGTERM"))
    assert set(spare(history, 100.0).values()) == {0.0}
