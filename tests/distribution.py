"""How tests are dealt out to the processes of pytest-xdist: a file at a time, as `--dist=loadfile` does
it, but a test that ends its process is not run again.

pytest-xdist 3.8 returns such a test to its queue with the rest of its file, so that one that hangs takes the
limit of a test (`timeout` in pyproject.toml) in each of eight processes, one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadFileScheduling | None:
    """Return the scheduler for `--dist=loadfile`, and None for the others: xdist then takes its own."""
    from xdist.scheduler import LoadFileScheduling

    class Once(LoadFileScheduling):
        """xdist's own, which counts a test that ended its process as run."""

        def remove_node(self, node: WorkerController) -> str | None:
            unfinished = [
                (unit, test)
                for unit in self.assigned_work[node].values()
                for test, done in unit.items()
                if not done
            ]
            if not unfinished:
                return super().remove_node(node)
            unit, crashed = unfinished[0]
            unit[crashed] = True
            super().remove_node(node)
            return crashed

    return Once(config, log) if config.getvalue("dist") == "loadfile" else None
