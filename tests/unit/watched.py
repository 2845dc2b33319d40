"""A recorded experiment on machines that come and go, to be looked at. No test lives here."""

from __future__ import annotations

import random
from typing import Any

from regrow.search.planning.simulator import Availability, FunctionObjective, Simulation
from regrow.search.spec import Spec

SCHEDULES: dict[str, Any] = {
    "fifo": "fifo",
    "asha": {"asha": {}},
    "promotion": {"asha": {"type": "promotion"}},
    "hyperband": "hyperband",
    "async_hyperband": {"async_hyperband": {}},
    "pbt": {"pbt": {"perturbation_interval": 3}},
    "median": {"median": {}},
}


def simulated(
    schedule: str, *, most: int | None = 600, lose: bool = True, trials: int = 40, **changes: Any
) -> Simulation:
    """An experiment on four machines that come and go, up to `most` events."""

    def learn(config: dict[str, Any], step: int) -> dict[str, float]:
        return {
            "accuracy": config["x"] * step / (step + 1),
            "loss": 1 / (step + config["x"]),
            "seconds": 0.1,
        }

    spec = Spec.parse(
        {
            "name": "digits",
            "trainable": "a.py:f",
            "metric": "accuracy",
            "mode": "max",
            "search": "random",
            "trials": trials,
            "space": {
                "x": {"uniform": [0, 1]},
                "lr": {"loguniform": [1e-4, 1]},
                "kind": {"choice": ["sgd", "adam"]},
            },
            "schedule": SCHEDULES[schedule],
            "max_steps": 27,
            **changes,
        }
    )
    machines = [
        Availability(changes=(0.0, *sorted(random.Random(number).sample(range(5, 300), 12))))
        for number in range(4)
    ]
    run = Simulation(
        spec=spec,
        objective=FunctionObjective(function=learn, spec=spec),
        workers=4,
        availability=machines if lose else (),
    )
    return run.open().run(most_events=most)
