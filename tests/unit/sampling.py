"""A space with a parameter of every kind, and samplers that are told results over it. No test lives
here.
"""

from __future__ import annotations

import math
from typing import Any

from regrow.search import samplers
from regrow.search.mode import Mode
from regrow.search.samplers.base import Result, Sampler
from regrow.search.space import Space
from regrow.search.space.setting import Setting


def make(search: object, space: Space, mode: Mode) -> Sampler:
    """A sampler for one metric."""
    return samplers.make(search, Setting(space=space, modes=(mode,)))


def size(search: object, space: Space) -> int | None:
    """How many trials it has to offer."""
    return samplers.size(search, Setting(space=space, modes=("min",)))


SPACE = Space.parse(
    {
        "lr": {"loguniform": [1e-5, 1e-1]},
        "momentum": {"uniform": [0.5, 0.99], "when": {"optimizer": "sgd"}},
        "optimizer": {"choice": ["sgd", "adam", "lamb"]},
        "layers": {"int": [1, 6]},
        "width": {"int": [16, 512], "step": 16},
        "units": {"logint": [16, 1024]},
        "drop": {"quniform": [0, 0.6, 0.05]},
        "init": {"normal": [1, 2]},
        "model": {"act": "relu", "shape": {"choice": [[1], [1, 2], None]}},
    }
)


def seed_of(number: int) -> int:
    """The seed of proposal `number`."""
    return 1_000_003 * number + 17


def loss(config: dict[str, Any]) -> float:
    """Some function that depends on every parameter."""
    return float(
        abs(math.log10(config["lr"]) + 3)
        + {"sgd": 0.0, "adam": 0.5, "lamb": 1.0}[config["optimizer"]]
        + abs(config.get("momentum", 0.7) - 0.9)
        + abs(config["layers"] - 3) / 3
        + config["width"] / 512
        + config["units"] / 1024
        + config["drop"]
        + abs(config["init"])
    )


def history(count: int, space: Space = SPACE) -> list[Result]:
    """Random trials of every kind of end, two in seven done; number 5 mod 7 is still running."""
    sampler, results = make("random", space, "min"), []
    for number in range(count):
        proposal = sampler.ask(number, seed_of(number))
        assert proposal is not None
        curve = [(step, loss(proposal.config) + 1 / step) for step in range(1, 2 + number % 5)]
        common: dict[str, Any] = {
            "number": number,
            "config": proposal.config,
            "state": proposal.state,
        }
        if number % 7 == 5:
            results.append(Result(**common, status="running"))
        elif number % 7 == 4:
            results.append(Result(**common, status="failed"))
        elif number % 7 in (1, 3):
            results.append(
                Result(
                    **common, status="stopped", value=curve[-1][1], intermediate=curve[: number % 4]
                )
            )
        else:
            results.append(
                Result(**common, status="done", value=loss(proposal.config), intermediate=curve)
            )
    return results


def told(
    search: object, results: list[Result], mode: Mode = "min", space: Space = SPACE
) -> Sampler:
    sampler = make(search, space, mode)
    for result in results:
        sampler.tell(result)
    return sampler
