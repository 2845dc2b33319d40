"""The zoo: families of learning curves by name, each with the workers and the budget for which it
is searched.

Each kind has four variants, which differ in seed, size, workers and budget. Three are to tune on:
all of their searches have been looked at. The fourth is held out: its results are looked at once
all choices are made (2026-11-28), and what is looked at before a change of constants is held out
no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import Task
from benchmarks.surrogate import Continuum
from benchmarks.zoo.synthetic import (
    Shape,
    Synthetic,
    cliff,
    conditional,
    crossing,
    explosion,
    failing,
    late,
    mild,
    misleading,
    mixed,
    narrow,
    numbers,
    overfitting,
    plateau,
    useless,
)

RECORDED = Path(__file__).parent.parent / "curves"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A task of the zoo, how many workers search it and for how many full trainings."""

    name: str
    held_out: bool
    workers: int
    trainings: float
    make: Callable[[], Task]

    def task(self) -> Task:
        task = self.make()
        task.workers, task.trainings = self.workers, self.trainings
        return task


Variant = tuple[int, int, dict[str, Any], int, int, float]
"""Seed, steps, space, parameters that matter, workers, budget."""


def _made(
    kind: str,
    shape: Shape,
    first: Variant,
    second: Variant,
    noise: tuple[float, float, float] = (0.0, 0.0, 0.0),
    given: Mapping[str, Any] | None = None,
) -> list[Family]:
    """The variants of a kind. Two are written down, two drawn by chance, but for what is `given`.

    `noise` is of the first, the second and both that are drawn.
    """
    drawn = [_drawn(seed + first[0], **(given or {})) for seed in (200, 300)]
    variants = first, second, *drawn
    noises = *noise, noise[-1]

    def variant(place: int) -> Family:
        seed, steps, space, matter, workers, trainings = variants[place]
        name = f"{kind}-{place + 1}"
        return Family(
            name=name,
            held_out=place == len(variants) - 1,
            workers=workers,
            trainings=trainings,
            make=lambda: Synthetic(
                name, seed, shape, steps=steps, space=space, matter=matter, noise=noises[place]
            ),
        )

    return [variant(place) for place in range(len(variants))]


def _drawn(
    seed: int,
    *,
    steps: int | None = None,
    space: dict[str, Any] | None = None,
    matter: int | None = None,
    workers: int | None = None,
    trainings: float | None = None,
) -> Variant:
    """A variant by chance, but for what is given."""
    rng = np.random.default_rng(seed)
    count, form = int(rng.integers(4, 9)), (numbers, mixed)[rng.integers(2)]
    drawn = [int(rng.choice(of)) for of in ((27, 40, 52, 81), (3, 4), (2, 4, 8), (10, 30))]
    return (
        seed,
        steps or drawn[0],
        space or form(count),
        matter or drawn[1],
        workers or drawn[2],
        trainings or drawn[3],
    )


def _recorded(name: str, *, held_out: bool, workers: int, trainings: float) -> Family:
    return Family(
        name=name,
        held_out=held_out,
        workers=workers,
        trainings=trainings,
        make=lambda: Continuum(RECORDED / f"{name}.yaml"),
    )


ZOO = {
    family.name: family
    for family in (
        *_made("mild", mild, (1, 27, numbers(5), 3, 4, 30), (101, 50, numbers(6), 4, 8, 30)),
        *_made("useless", useless, (2, 27, numbers(6), 4, 4, 30), (102, 52, mixed(7), 4, 4, 10)),
        *_made(
            "misleading", misleading, (3, 52, numbers(7), 4, 4, 10), (133, 27, mixed(6), 3, 4, 30)
        ),
        *_made("late", late, (4, 40, numbers(5), 3, 4, 30), (104, 100, numbers(6), 4, 8, 30)),
        *_made("crossing", crossing, (5, 27, mixed(6), 4, 4, 30), (105, 81, numbers(5), 3, 8, 10)),
        *_made(
            "overfitting", overfitting, (6, 50, mixed(6), 4, 4, 30), (106, 27, numbers(7), 4, 4, 30)
        ),
        *_made(
            "noise-small",
            mild,
            (7, 27, numbers(5), 3, 4, 30),
            (107, 50, mixed(6), 4, 8, 30),
            (0.02, 0.03, 0.025),
        ),
        *_made(
            "noise-large",
            mild,
            (8, 27, mixed(6), 3, 4, 30),
            (108, 40, numbers(5), 3, 4, 30),
            (0.15, 0.2, 0.2),
        ),
        *_made("plateau", plateau, (9, 27, numbers(5), 3, 4, 30), (109, 50, mixed(7), 3, 8, 30)),
        *_made("narrow", narrow, (10, 27, numbers(4), 3, 4, 30), (110, 50, numbers(5), 3, 4, 30)),
        *_made("cliff-nan", cliff, (11, 27, numbers(5), 3, 4, 30), (111, 50, mixed(7), 3, 8, 10)),
        *_made(
            "cliff-huge",
            explosion,
            (12, 50, numbers(6), 4, 4, 10),
            (112, 27, numbers(5), 3, 4, 30),
        ),
        *_made("failing", failing, (13, 27, mixed(6), 3, 4, 30), (113, 30, numbers(5), 3, 8, 30)),
        *_made(
            "conditional",
            mild,
            (14, 27, conditional(3), 6, 4, 30),
            (114, 50, conditional(5), 7, 8, 30),
            given={"space": conditional(4), "matter": 6},
        ),
        *_made(
            "few",
            mild,
            (15, 27, numbers(2), 2, 4, 10),
            (115, 50, numbers(2), 2, 1, 10),
            given={"space": numbers(2), "matter": 2},
        ),
        *_made(
            "fourteen",
            mild,
            (16, 27, mixed(14), 4, 4, 30),
            (116, 50, mixed(14), 5, 8, 30),
            given={"space": numbers(14)},
        ),
        *_made(
            "forty",
            mild,
            (17, 27, numbers(40), 4, 8, 30),
            (117, 27, mixed(40), 5, 4, 30),
            given={"space": mixed(40)},
        ),
        *_made(
            "short",
            mild,
            (18, 3, numbers(5), 3, 4, 30),
            (118, 5, mixed(6), 4, 4, 30),
            given={"steps": 4},
        ),
        *_made(
            "long",
            useless,
            (19, 300, numbers(5), 3, 4, 10),
            (119, 300, mixed(6), 4, 8, 10),
            given={"steps": 300},
        ),
        *_made(
            "alone",
            useless,
            (20, 27, mixed(6), 3, 1, 10),
            (120, 40, numbers(5), 3, 1, 30),
            given={"workers": 1},
        ),
        *_made(
            "crowd",
            mild,
            (21, 27, numbers(6), 4, 32, 30),
            (121, 50, mixed(6), 4, 32, 100),
            given={"workers": 32, "trainings": 30},
        ),
        *_made(
            "scarce",
            useless,
            (22, 27, numbers(4), 3, 4, 5),
            (122, 50, mixed(6), 3, 1, 5),
            given={"trainings": 5},
        ),
        *_made(
            "plenty",
            late,
            (23, 27, mixed(6), 4, 8, 100),
            (123, 50, numbers(7), 4, 8, 100),
            given={"trainings": 100},
        ),
        _recorded("digits", held_out=False, workers=4, trainings=10),
        _recorded("linear", held_out=False, workers=4, trainings=30),
        _recorded("wine", held_out=False, workers=8, trainings=30),
        _recorded("cancer", held_out=False, workers=4, trainings=30),
        _recorded("diabetes", held_out=False, workers=4, trainings=10),
        _recorded("warmup", held_out=False, workers=4, trainings=10),
        _recorded("mislabelled", held_out=False, workers=4, trainings=30),
        _recorded("patients", held_out=False, workers=4, trainings=30),
        _recorded("tumour_lines", held_out=False, workers=4, trainings=30),
        _recorded("wine_trees", held_out=False, workers=1, trainings=10),
    )
}
