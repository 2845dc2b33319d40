"""Every cell of a finite space once, in a random order: the sampler "brute_force"."""

from __future__ import annotations

from hashlib import shake_256

from regrow.search.samplers.base import Proposal, Result
from regrow.search.samplers.grid import Cells
from regrow.search.space.setting import Setting

ROUNDS = 8
"""Of the Feistel network; 4 suffice for a pseudo-random permutation (Luby and Rackoff, 1988), small ones gain from more."""


class BruteForce:
    """Draws without replacement from the cells of a finite space; there are `size` trials.

    What Optuna's BruteForceSampler does, without a list of what was tried: the order is a permutation of the cell
    numbers, drawn from the experiment's seed, of which any place can be computed. So 10**29 cells are as cheap as
    10. A trial that the user proposed takes no place in it. Raises SpecError for a parameter with too many values (or
    a continuum of them).
    """

    several = True

    def __init__(self, setting: Setting) -> None:
        self._cells = Cells.of_all(
            setting.space, problem="its values cannot be tried one by one", hint="use choice: [...] with the values to try",
            continuous=", or quniform",
        )
        self._seed = setting.seed
        self.size = self._cells.count
        self._users: set[int] = set()

    def ask(self, number: int, seed: int) -> Proposal | None:
        """The next cell of the order; None after the last one. `seed` plays no part: the order is the
        experiment's."""
        place = number - sum(other < number for other in self._users)
        if place >= self.size:
            return None
        return Proposal(config=self._cells.at(permuted(place, self.size, self._seed)), state={"place": place})

    def tell(self, result: Result) -> None:
        """Remembers which trials the user proposed; nothing else is learnt."""
        if result.number >= 0 and "place" not in result.state:
            self._users.add(result.number)


def permuted(index: int, size: int, seed: int) -> int:
    """Where a permutation of range(size), drawn from `seed`, takes `index`.

    A balanced Feistel network over the next larger even number of bits, walked until it falls below `size` (Black and
    Rogaway, CT-RSA 2002, section 4: "cycle-walking"): less than 4 rounds of it on average, up to 256 where size is
    tiny. Its round function is SHAKE-256, which is the same everywhere. Raises ValueError unless 0 <= index < size.
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
