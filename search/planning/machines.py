"""The machines of a simulated cluster: when they are up, what they cost, and who has their slots.

A machine that is not permanent is started when an attempt waits that no free slot suits, the first
suitable machine of the list first. It takes attempts after `boot` seconds, and is stopped after
`idle` seconds without one. It costs from its start to its stop, boot and idle time included. When
its availability ends it is gone at once, and costs nothing until it is started again.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from regrow.search.bounds import LONGEST
from regrow.search.events import Place, Started
from regrow.search.needs import ClusterPrice
from regrow.search.planning.market import Market


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """When one machine is up.

    Attributes:
        changes: times at which it changes between up and down (seconds, ascending, the first 0).
        begins_up: whether it is up from time 0 on.

    """

    changes: tuple[float, ...] = (0.0,)
    begins_up: bool = True

    def up(self, t: float) -> bool:
        """Return whether the machine is up at time `t`."""
        return (bisect_right(self.changes, t) % 2 == 1) == self.begins_up

    def next_change(self, t: float) -> float | None:
        """Return the first time after `t` at which the state changes, None for never."""
        place = bisect_right(self.changes, t)
        return self.changes[place] if place < len(self.changes) else None


ALWAYS = Availability()


def availability(counts: Sequence[int], gap_seconds: float, workers: int) -> list[Availability]:
    """Return the machines of a recorded trace: `counts[k]` are available from second k *
    gap_seconds on; the last count holds until the end.

    A trace with at most one machine describes that machine: worker n then begins n/workers of the
    way into it, and the trace is cyclic, so that not all workers are lost at once. Otherwise the
    first counts[k] workers are up.

    Raises ValueError for an empty trace, a count below 0 and a gap that is not positive or
    longer than 100 years.
    """
    if not counts:
        raise ValueError("the trace is empty")
    if min(counts) < 0:
        raise ValueError(f"there are {min(counts)} machines")
    if not 0 < gap_seconds <= LONGEST:
        raise ValueError(f"the gap is {gap_seconds:g} seconds")
    single = max(counts) <= 1
    machines = []
    for number in range(workers):
        shift = number * len(counts) // workers if single else 0
        states = [(c > 0 if single else c > number) for c in [*counts[shift:], *counts[:shift]]]
        changes = [n for n in range(1, len(states)) if states[n] != states[n - 1]]
        turns = [place * gap_seconds for place in changes]
        machines.append(Availability(changes=(0.0, *turns), begins_up=states[0]))
    return machines


def shifted(one: Availability, offset: float, length: float, until: float) -> Availability:
    """Return what a machine's recorded `length` seconds are from `offset` on, again and again
    until the time `until`.
    """
    wraps = [] if one.up(length) == one.begins_up else [length]
    turns = [t for t in (*one.changes[1:], *wraps) if t <= length]
    begins = one.up(offset)
    later = [t - offset for t in turns if t > offset]
    for again in range(math.ceil(until / length) + 1 if turns else 0):
        begin = (again + 1) * length - offset
        later += [begin + t for t in turns if begin < until]
    return Availability(changes=(0.0, *later), begins_up=begins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A recorded spot market: how many machines could be had, every `gap_seconds`."""

    counts: tuple[int, ...]
    gap_seconds: float

    def machines(self, workers: int) -> list[Availability]:
        """Return its machines; see `availability`, also for what is raised."""
        return availability(self.counts, self.gap_seconds, workers)

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.counts) * self.gap_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine of the cluster.

    Attributes:
        market: "spot" or "on-demand"; empty: it has no label.
        price: of the whole machine, an hour; None: unknown.
        slots: attempts of one slot that it can run at a time; 0: it takes none.
        availability: when it can be had.
        permanent: it is up whenever it can be had, wanted or not.
        boot: seconds from its start until it takes attempts.
        idle: seconds without an attempt after which it is stopped, unless it is permanent.

    """

    market: Market = ""
    price: float | None = None
    slots: int = 1
    availability: Availability = ALWAYS
    permanent: bool = True
    boot: float = 0.0
    idle: float = 600.0


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The machines by number, and their free slots. Times are virtual, in seconds."""

    machines: Sequence[Machine]
    _state: list[Literal["off", "booting", "up"]] = field(init=False)
    _free: list[int] = field(default_factory=list)
    """Machines with a free slot, each as often as it has free slots, ascending."""
    _uses: list[int] = field(init=False)
    """By machine, how often its state or its use has changed: tells whether it was idle since."""
    _labelled: bool = field(init=False)
    _stays: bool = field(init=False)

    def __post_init__(self) -> None:
        self._state = ["off"] * len(self.machines)
        self._uses = [0] * len(self.machines)
        self._labelled = any(machine.market for machine in self.machines)
        self._stays = any(one.market != "spot" and one.slots for one in self.machines)

    @property
    def priced(self) -> bool:
        """Whether a machine has a price."""
        return any(machine.price is not None for machine in self.machines)

    @property
    def slots(self) -> int:
        """Slots of all machines, up or not."""
        return sum(machine.slots for machine in self.machines)

    def price(self) -> ClusterPrice:
        """Return what the machines that are up or booting cost."""
        known = [
            machine.price
            for machine, state in zip(self.machines, self._state, strict=True)
            if state != "off" and machine.price is not None
        ]
        return ClusterPrice(per_hour=math.fsum(known), nodes=len(known))

    def uses(self, number: int) -> int:
        """Return a count that changes with the machine's state and with each use of it."""
        return self._uses[number]

    def there(self, now: float) -> int:
        """Return how many machines with slots can be had."""
        return sum(one.availability.up(now) for one in self.machines if one.slots)

    def places(self, numbers: Sequence[int]) -> list[Place]:
        """Return the places of an attempt's slots for its `Began`."""
        found = []
        for number in numbers:
            machine, name = self.machines[number], f"worker-{number}"
            if not (self._labelled or self.priced):
                found.append(Place(name))
                continue
            share = 1.0 / machine.slots
            found.append(Place(name, name, market=machine.market, price=machine.price, share=share))
        return found

    def start(self, number: int) -> None:
        """Start a machine, which takes attempts after `finish_boot`."""
        self._state[number] = "booting"
        self._uses[number] += 1

    def finish_boot(self, number: int) -> None:
        """Add the machine's slots to the free ones."""
        self._state[number] = "up"
        self._uses[number] += 1
        self._free = sorted([*self._free, *[number] * self.machines[number].slots])

    def stop(self, number: int) -> None:
        """Take the machine's free slots away, as it was stopped or lost."""
        self._state[number] = "off"
        self._uses[number] += 1
        self._free = [one for one in self._free if one != number]

    def occupy(self, started: Started) -> tuple[int, ...] | None:
        """Take the slots for an attempt; None if there are too few that suit it."""
        found = [one for one in self._free if self._suits(one, started)][: started.width]
        if len(found) < started.width:
            return None
        for number in found:
            self._free.remove(number)
            self._uses[number] += 1
        return tuple(found)

    def give(self, numbers: Iterable[int]) -> list[int]:
        """Take back the slots of an attempt, but of lost machines. Return the machines that became
        idle.
        """
        back = [number for number in numbers if self._state[number] == "up"]
        self._free = sorted([*self._free, *back])
        for number in back:
            self._uses[number] += 1
        return [number for number in dict.fromkeys(back) if self.is_idle(number)]

    def is_idle(self, number: int) -> bool:
        """Return whether a machine that is not permanent is up with all its slots free."""
        machine = self.machines[number]
        up = self._state[number] == "up" and not machine.permanent
        return up and self._free.count(number) == machine.slots

    def wanted(self, waiting: Iterable[Started], now: float) -> list[int]:
        """Return the machines to start for the attempts that wait, beyond those that boot."""
        coming = [
            number
            for number, state in enumerate(self._state)
            if state == "booting"
            for _ in range(self.machines[number].slots)
        ]
        found: list[int] = []
        for started in waiting:
            left = started.width
            for number in [one for one in coming if self._suits(one, started)][:left]:
                coming.remove(number)
                left -= 1
            for number, machine in enumerate(self.machines) if left > 0 else ():
                if left <= 0:
                    break
                off = self._state[number] == "off" and number not in found and machine.slots > 0
                if off and machine.availability.up(now) and self._suits(number, started):
                    found.append(number)
                    coming += [number] * max(0, machine.slots - left)
                    left -= machine.slots
        return found

    def _suits(self, number: int, started: Started) -> bool:
        """Return whether an attempt may run on a machine, as `infra/ray/nodes.py` selects nodes."""
        wish = started.market or ("on-demand" if started.avoid_spot and self._stays else "")
        if not wish or not self._labelled:
            return True
        return (self.machines[number].market == "spot") == (wish == "spot")
