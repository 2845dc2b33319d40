"""How many trials an experiment will have, as far as its setting tells."""

from __future__ import annotations

from regrow.search.space.setting import Setting

EARLY = 4
"""Trials that take the steps of a full training, where a schedule ends the worse ones early: 3 to 5
with "hyperband" under the guard and 52 steps.
"""


def expected_trials(setting: Setting, *, early: bool = False) -> int | None:
    """Return the number of trials to be expected, None if nothing limits it. `early`: trials of a
    budget are ended early, so that there are EARLY times as many as it has trainings.
    """
    if setting.trainings is None:
        return setting.trials
    found = max(1, int(setting.trainings * (EARLY if early else 1)))
    return found if setting.trials is None else min(setting.trials, found)
