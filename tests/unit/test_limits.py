"""What a job may use of a machine that it shares: the smallest of what affinity, control groups and
the batch system leave it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regrow.infra.clusters.node import _of_this_machine
from regrow.infra.machine import capacity
from regrow.tasks.process import cgroup

V1 = "30 1 0:30 / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}"
V2 = "41 1 0:38 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw"
GIB = 1 << 30


class Machine:
    """A machine's files as a process of a group sees them."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, groups: str, mounts: str, files: dict[str, str]) -> Path:
        for name, text in {
            "proc/self/cgroup": groups,
            "proc/self/mountinfo": mounts,
            **files,
        }.items():
            file = self.root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return self.root


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may run on 64 CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


def cpus(root: Path, **environment: str) -> int:
    return capacity.cpus(environment, root)


def test_version_2_counts_each_group_above_the_own_one(machine: Machine) -> None:
    root = machine(
        "0::/job/step\n",
        V2,
        {
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/job/cpu.max": "300000 100000\n",
            "sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
            "sys/fs/cgroup/job/memory.max": f"{2 * GIB}\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/step/memory.events": "low 0\noom 3\noom_kill 2\n",
        },
    )
    assert cpus(root) == 3
    assert cgroup.memory(root) == cgroup.Limit(bytes=2 * GIB, group=root / "sys/fs/cgroup/job")
    assert capacity.memory({}, root) == 2 * GIB
    assert cgroup.kills(root) == 2


def test_version_1_has_a_tree_for_each_controller(machine: Machine) -> None:
    mounts = "\n".join(V1.format(name=name) for name in ("cpu,cpuacct", "memory"))
    root = machine(
        "5:cpu,cpuacct:/a/b\n4:memory:/m/n\n0::/\n",
        mounts,
        {
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "250000",
            "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/m/memory.limit_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/m/n/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/m/n/memory.stat": f"cache 1\nhierarchical_memory_limit {GIB}\ntotal_inactive_file 5\n",
            "sys/fs/cgroup/memory/m/n/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        },
    )
    assert cpus(root) == 3, "a part of a CPU counts as one"
    assert cgroup.memory(root) == cgroup.Limit(bytes=GIB, group=root / "sys/fs/cgroup/memory/m")
    assert cgroup.kills(root) == 4


@pytest.mark.parametrize(
    ("group", "top"),
    [("/docker/1f", "/docker/1f"), ("/", "/"), ("/../../x", "/"), ("/gone", "/docker/1f")],
)
def test_a_container_sees_its_own_group_under_whatever_name(
    machine: Machine, group: str, top: str
) -> None:
    mount = f"41 1 0:38 {top} /sys/fs/cgroup\\040x rw - cgroup2 cgroup2 rw"
    root = machine(f"0::{group}\n", mount, {"sys/fs/cgroup x/cpu.max": "50000 100000"})
    assert cpus(root) == 1
    assert next(iter(cgroup.groups("cpu", root))) == root / "sys/fs/cgroup x"


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"sys/fs/cgroup/j/cpu.max": "max 100000"},
        {"sys/fs/cgroup/j/cpu.max": ""},
        {"sys/fs/cgroup/j/cpu.max": "x y"},
        {"sys/fs/cgroup/j/cpu.max": "0 0", "sys/fs/cgroup/j/memory.max": "max"},
    ],
)
def test_what_sets_no_limit_sets_none(machine: Machine, files: dict[str, str]) -> None:
    root = machine("0::/j\n", V2, files)
    assert cpus(root) == 64
    assert cgroup.memory(root) is None
    assert capacity.of_ray({}, root) == {"num_cpus": 64}
    assert cpus(root / "nothing") == 64, "without /proc"


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "16"}, 4),
        ({"SLURM_CPUS_ON_NODE": "16"}, 16),
        ({"SLURM_CPUS_PER_TASK": "200"}, 64),
        ({"SLURM_CPUS_PER_TASK": "-1"}, 64),
        ({"SLURM_CPUS_PER_TASK": "²"}, 64),
        ({"PBS_JOBID": "7", "NCPUS": "8"}, 8),
        ({"PBS_JOBID": "7", "PBS_NUM_PPN": "2"}, 2),
        ({"NCPUS": "8"}, 64),
        ({"LSB_DJOB_NUMPROC": "6"}, 6),
        ({"SGE_TASK_ID": "undefined", "NSLOTS": "5"}, 5),
        ({"NSLOTS": "5"}, 64),
    ],
)
def test_a_batch_system_says_what_a_job_has(
    machine: Machine, environment: dict[str, str], count: int
) -> None:
    assert cpus(machine("", "", {}), **environment) == count


@pytest.mark.parametrize(
    ("environment", "megabytes"),
    [
        ({"SLURM_MEM_PER_NODE": "900"}, 900),
        ({"SLURM_MEM_PER_CPU": "100", "SLURM_CPUS_ON_NODE": "3"}, 300),
    ],
)
def test_slurm_says_how_much_memory_a_job_has(
    machine: Machine, environment: dict[str, str], megabytes: int
) -> None:
    root = machine("", "", {})
    assert capacity.memory(environment, root) == megabytes << 20
    told = capacity.of_ray(environment, root)
    assert told["memory"] + told["object_store_memory"] <= max(megabytes << 20, 200_000_000)
    assert (
        capacity.memory({**environment, "SLURM_MEM_PER_NODE": "0", "SLURM_MEM_PER_CPU": "0"}, root)
        > 1 << 30
    ), "all of it"


def test_a_kill_as_memory_ran_out_is_told_with_the_limit_for_a_while(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after(kills: int) -> Path:
        events = {
            "sys/fs/cgroup/j/memory.events": f"oom_kill {kills}\n",
            "sys/fs/cgroup/j/memory.max": str(2 * GIB),
        }
        return machine("0::/j\n", V2, events)

    killed = cgroup.Killed(after(3))
    assert killed.lately() == "", "those of before are not this one's"
    assert killed.lately() == ""
    root = after(4)
    told = f"out of memory (limit of the cgroup {root}/sys/fs/cgroup/j, 2.1 GB)"
    assert [killed.lately(), killed.lately()] == [told, told], (
        "two that died of it are both told of"
    )
    monkeypatch.setattr(cgroup, "LATELY_SECONDS", -1.0)
    assert killed.lately() == ""


def test_ray_is_told_what_is_left_of_a_groups_memory(machine: Machine) -> None:
    root = machine(
        "0::/j\n",
        V2,
        {
            "sys/fs/cgroup/j/memory.max": str(2 * GIB),
            "sys/fs/cgroup/j/memory.current": str(GIB),
            "sys/fs/cgroup/j/memory.stat": f"inactive_file {GIB // 2}\n",
        },
    )
    told = capacity.of_ray({}, root)
    assert told["memory"] + told["object_store_memory"] == 3 * GIB // 2


def test_a_node_of_a_cluster_has_what_its_supervisor_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert next(_of_this_machine(["--address=x"])) == "--num-cpus=1"
    assert not any("cpus" in option for option in _of_this_machine(["--num-cpus=0"])), (
        "the cluster file's"
    )
