"""How tests are dealt out to the processes of pytest-xdist: a file at a time, as `--dist=loadfile` does
it, but long files come first, and a test that ends its process is not run again.

In the order of their names, the last files would be dealt to one process while the others have nothing
left to do.

pytest-xdist 3.8 returns a test that ended its process to its queue with the rest of its file, so that one
that hangs takes the limit of a test (`timeout` in pyproject.toml) in each of eight processes, one after
the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

LONG = (
    "test_station.py",
    "test_agents.py",
    "test_mlflow_run.py",
    "test_docs.py",
    "test_s3.py",
    "test_slurm.py",
    "test_notices.py",
    "test_services_lost.py",
    "test_signals.py",
    "test_pages.py",
    "test_ssh_cluster.py",
    "test_schedules.py",
    "test_retry_failed.py",
    "test_serve_on_ray.py",
    "test_groups.py",
    "test_cluster.py",
    "test_rllib.py",
    "test_triggers.py",
    "test_bad_input.py",
    "test_page.py",
    "test_strangers.py",
    "test_mlflow_in_trial.py",
    "test_prefect_server.py",
    "test_optuna.py",
    "test_frameworks.py",
    "test_task_runner.py",
    "test_report_page.py",
    "test_watch.py",
    "test_nested.py",
    "test_exports.py",
    "test_partition.py",
    "test_serve.py",
    "test_sweeps.py",
    "test_notebook.py",
    "test_old_states.py",
    "test_trial_orders.py",
    "test_mlflow_sink.py",
    "test_notify.py",
    "test_prefect_story.py",
    "test_processes.py",
    "test_main_job.py",
)
"""Files of tests/system that took one of three processes three quarters of a minute or more, the longest
first.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files of tests/system before the others there; what else there is stays in its place."""
    places = [place for place, item in enumerate(items) if item.path.parent.name == "system"]
    ranks = {name: rank for rank, name in enumerate(LONG)}
    ordered = sorted(
        (items[place] for place in places),
        key=lambda item: ranks.get(item.path.name, len(LONG)),
    )
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


@pytest.hookimpl(optionalhook=True)
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
