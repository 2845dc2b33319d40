"""Every cell of a finite space once, in a random order: the sampler "brute_force"."""

from __future__ import annotations

from hashlib import shake_256

from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.grid import Cells
from regrow.search.space.setting import Setting

ROUNDS = 8
"""Rounds of the Feistel network. 4 suffice for a pseudo-random permutation (Luby and Rackoff,
1988); small ones gain from more.
"""


class BruteForce:
    """Draws without replacement from the cells of a finite space; there are `size` trials.

    Equivalent to Optuna's BruteForceSampler, but without a list of tried cells: the order is a
    permutation of the cell numbers, drawn from the experiment's seed, and any place in it can be
    computed. So 10**29 cells cost no more than ten. A trial that the user proposed takes no place
    in it. Raises SpecError for a parameter with too many values, or a continuous one.
    """

    several = True

    def __init__(self, setting: Setting) -> None:
        self._cells = Cells.of_all(
            setting.space,
            problem="its values cannot be tried one by one",
            hint="use choice: [...] with the values to try",
            continuous=", or quniform",
        )
        self._seed = setting.seed
        self.size = self._cells.count
        self._users: set[int] = set()

    def ask(self, number: int, seed: int) -> Proposal | None:
        """Return the next cell of the order, None after the last one. `seed` is not used: the order
        depends on the experiment's seed.
        """
        place = number - sum(other < number for other in self._users)
        if place >= self.size:
            return None
        return Proposal(
            config=self._cells.at(permuted(place, self.size, self._seed)), state={"place": place}
        )

    def tell(self, result: Result) -> None:
        """Remember which trials the user proposed; ignore everything else."""
        if result.number >= 0 and "place" not in result.state:
            self._users.add(result.number)


def permuted(index: int, size: int, seed: int) -> int:
    """Return where a permutation of range(size), drawn from `seed`, takes `index`.

    A balanced Feistel network over the next larger even number of bits, repeated until the result
    is below `size` (Black and Rogaway, CT-RSA 2002, section 4: "cycle-walking"): less than 4
    repetitions on average, up to 256 if size is tiny. Its round function is SHAKE-256, which is the
    same everywhere. Raises ValueError unless 0 <= index < size.
    """
    if not 0 <= index < size:
        raise ValueError(f"{index} is not in range({size})")
    half = max(4, ((size - 1).bit_length() + 1) // 2)
    mask, width = (1 << half) - 1, (half + 7) // 8
    while True:
        left, right = index >> half, index & mask
        for turn in range(ROUNDS):
            digest = shake_256(f"{seed}:{half}:{turn}:{right}".encode()).digest(width)
            left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
        index = left << half | right
        if index < size:
            return index
