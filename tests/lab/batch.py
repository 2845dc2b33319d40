"""A real Slurm on the hosts of a lab: the first has the controller and is where users log in, the
others are its nodes.

Its files are below the lab's shared folder. Jobs of the partition `high` take the place of those of
the default partition, `low`, which are requeued, and of those of `spot`, which are cancelled. Needs the packages `slurmctld`, `slurmd`,
`slurm-client` and `munge` (`why_not`).
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab import hosts as lab
from tests.lab.hosts import Host, Hosts
from tests.system.hosts import await_

_MUNGE = "/run/munge/socket"
_CONF = """
ClusterName=lab
SlurmctldHost={controller.name}({controller.address})
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={munge},cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2,requeue_delay=2
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait={kill_wait}
MinJobAge=3600
SlurmdTimeout=20
DefMemPerCPU=2000
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace} MaxTime=60
PartitionName=spot Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime={grace} MaxTime=60
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=60
"""
_NODE = (
    "NodeName={host.name} NodeAddr={host.address} CPUs={cpus} Boards=1 SocketsPerBoard=1"
    " CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=16000"
)


def why_not() -> str:
    """Why a Slurm cannot be started on this machine; empty if it can."""
    for program, package in (
        ("slurmctld", "slurmctld"),
        ("slurmd", "slurmd"),
        ("sbatch", "slurm-client"),
        ("munged", "munge"),
    ):
        if lab._which(program) is None:
            return f"the command `{program}` ({package}) is missing"
    return lab.why_not()


@dataclass(slots=True)
class Slurm:
    """A Slurm that runs. `environment` is what its commands need."""

    hosts: Hosts
    folder: Path
    environment: dict[str, str]

    @property
    def login(self) -> Host:
        return self.hosts.all[0]

    @property
    def nodes(self) -> list[Host]:
        return self.hosts.all[1:]

    def run(
        self, *words: str, check: bool = True, environment: Mapping[str, str] | None = None
    ) -> str:
        """What a command prints that a user types at the login node, in the shared folder."""
        line = f'cd "{self.hosts.shared}" && exec "$@"'
        done = self.hosts.run(
            self.login,
            *("bash", "-c", line, "-", *words),
            environment={**self.environment, **(environment or {})},
            check=check,
        )
        return done.stdout + done.stderr

    def begin(self, *words: str, said: Path) -> subprocess.Popen[bytes]:
        """A command that a user starts there."""
        line = f'cd "{self.hosts.shared}" && exec "$@"'
        return self.hosts.begin(
            self.login,
            *("bash", "-c", line, "-", *words),
            said=said,
            environment=self.environment,
        )

    def jobs(self) -> dict[str, str]:
        """The states of all jobs that it knows, by their names for people: 7_2."""
        lines = self.run("squeue", "-h", "-r", "-t", "all", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def start_node(self, host: Host) -> None:
        """Starts the daemon of a node, with authentication."""
        self._authenticate(host)
        self.hosts.begin(
            host,
            *("slurmd", "-D", "-N", host.name),
            said=self.folder / f"{host.name}.log",
            environment=self.environment,
        )

    def start_controller(self) -> None:
        self._authenticate(self.login)
        self.hosts.begin(
            self.login,
            *("slurmctld", "-D"),
            said=self.folder / "controller.log",
            environment=self.environment,
        )

    def _authenticate(self, host: Host) -> None:
        line = (
            f"mkdir -p -m 755 /run/munge && cp {self.folder}/munge.key /run/munge/key"
            f" && chmod 600 /run/munge/key && exec munged --force --key-file=/run/munge/key"
            f" --socket={_MUNGE} --pid-file=/run/munge/pid --log-file=/run/munge/log"
            " --seed-file=/run/munge/seed"
        )
        self.hosts.run(host, "bash", "-c", line)


@contextmanager
def slurm(hosts: Hosts, *, cpus: int = 4, grace: int = 0, kill_wait: int = 30) -> Iterator[Slurm]:
    """A Slurm on a lab's hosts, whose nodes are idle.

    Args:
        hosts: those of a lab, two or more; they are stopped by the lab.
        cpus: CPUs of a node; they need not exist.
        grace: seconds from a preemption to the job's end.
        kill_wait: seconds from SIGTERM to SIGKILL.

    """
    folder = hosts.folder / "slurm"
    hosts.visible = [*hosts.visible, folder]
    folder.mkdir(mode=0o755, exist_ok=True)
    (folder / "state").mkdir(exist_ok=True)
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    controller, *nodes = hosts.start(3)
    # named, as it looks for the mounted control groups otherwise, which it does not use
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    conf = folder / "slurm.conf"
    conf.write_text(
        _CONF.format(
            controller=controller,
            munge=_MUNGE,
            folder=folder,
            grace=grace,
            kill_wait=kill_wait,
            nodes="\n".join(_NODE.format(host=host, cpus=cpus) for host in nodes),
        )
    )
    made = Slurm(hosts, folder, {"SLURM_CONF": str(conf)})
    made.start_controller()
    for host in nodes:
        (folder / host.name).mkdir(exist_ok=True)
        made.start_node(host)
    await_(
        lambda: (
            made.run("sinfo", "-h", "-p", "low", "-o", "%T %D", check=False).split()
            == ["idle", str(len(nodes))]
        ),
        "idle nodes",
    )
    yield made
