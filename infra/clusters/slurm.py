"""Slurm: the script of a job array of agents, and the commands sbatch, squeue and scancel.

A job array has no head and nothing to bring up: its elements are agents (`regrow join`), which
elect a leader in the experiment's state. Hence it is no `Provider`.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from regrow.infra.clusters.description import Slurm
from regrow.infra.clusters.folder import Folder
from regrow.infra.machine import private_files
from regrow.tasks.errors import RegrowError, UserError

SIGNAL_SECONDS = 120
"""Seconds before its time limit at which an element is asked to leave. Slurm itself may take 60 s
more.
"""
_SIGNAL_SHARE = 4
"""Of a short time limit, this part is the most that is left for that."""
_COMMAND_SECONDS = 60.0
_MOST_ARRAYS = 100
"""Arrays that are remembered, the newest ones."""
_FIELDS = ("%F", "%K", "%T", "%N", "%M", "%r", "%k")
_MARK = "\x1f"
_BODY = """
# An agent of the experiment. Near the end of its time, and when it is told to end, it leaves in
# order: its trials save.
{command} &
agent=$! told=
trap 'kill -USR1 "$agent" 2>/dev/null' USR1
trap 'told=1; kill -TERM "$agent" 2>/dev/null' TERM
wait "$agent"
while kill -0 "$agent" 2>/dev/null; do wait "$agent"; done
wait "$agent"
code=$?
case "$code" in
  # The experiment is over: elements that still wait have nothing to do.
  0 | 1) scancel --quiet --state=PENDING "$SLURM_ARRAY_JOB_ID" ;;
  # Its time ended: it comes back with new time. One that was told to end was cancelled, or is
  # requeued by Slurm. One element has the id of the whole array, so it is named by its index.
  3) [ -n "$told" ] || exec scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID" ;;
esac
exit "$code"
"""


class Array(msgspec.Struct, frozen=True, kw_only=True):
    """A job array that was submitted from here.

    Attributes:
        job: its job id.
        experiment: the experiment's name.
        state: the root of its state.
        comment: the comment of its jobs, of this array alone.
        output: folder of its elements' output.
        t: when it was submitted, seconds since the epoch.

    """

    job: str
    experiment: str
    state: str
    comment: str
    output: str
    t: float


class Element(msgspec.Struct, frozen=True, kw_only=True):
    """One element of an array that waits or runs, in Slurm's words.

    Attributes:
        name: as Slurm names it: 12_3.
        experiment: the experiment's name.
        state: such as PENDING or RUNNING.
        node: where it runs; empty if it does not.
        ran: since when it runs: 1:02:03.
        reason: why it waits, such as Resources; empty if it runs.

    """

    name: str
    experiment: str
    state: str
    node: str
    ran: str
    reason: str


def script(
    cluster: Slurm,
    words: Sequence[str],
    *,
    name: str,
    comment: str | None,
    output: Path,
    folder: Path,
) -> str:
    """Return the file for sbatch. It holds no value of a variable of this process.

    Args:
        cluster: which options it has.
        words: arguments of `regrow` with which an agent joins the experiment.
        name: name of the job.
        comment: comment of the job; None: none.
        output: folder of the elements' output.
        folder: where they run.

    """
    size = f"1-{cluster.agents}" + (f"%{cluster.most}" if cluster.most else "")
    given: dict[str, str | int | bool | None] = {
        "job-name": name,
        "comment": comment,
        "array": size,
        "partition": cluster.partition,
        "account": cluster.account,
        "qos": cluster.qos,
        "time": None if cluster.time is None else math.ceil(cluster.time / 60),
        "cpus-per-task": cluster.cpus,
        "mem": None if cluster.memory is None else f"{math.ceil(cluster.memory / (1 << 20))}M",
        "gres": cluster.gres,
        "constraint": cluster.constraint,
        **cluster.options,
        "requeue": True,
        "open-mode": "append",
        "signal": f"B:USR1@{_signal_seconds(cluster)}",
        "chdir": str(folder),
        "output": str(output / "%x-%A_%a.out"),
    }
    lines = ["#!/bin/bash"]
    for key, value in given.items():
        if value is True:
            lines.append(f"#SBATCH --{key}")
        elif value is not None and value is not False:
            lines.append(f"#SBATCH --{key}={shlex.quote(str(value))}")
    lines.append("")
    lines += [line for key, value in cluster.env.items() for line in _export(key, value)]
    if cluster.setup:
        lines += ["set -e", *cluster.setup, "set +e"]
    return "\n".join(lines) + _BODY.format(command=_command(cluster, words))


def _signal_seconds(cluster: Slurm) -> int:
    if cluster.time is None:
        return SIGNAL_SECONDS
    return min(SIGNAL_SECONDS, int(cluster.time / _SIGNAL_SHARE))


def _export(name: str, value: str) -> list[str]:
    """Return the line for a variable of the cluster file. A reference gets its value there, from
    the environment that sbatch passes on.
    """
    variable = value.removeprefix("$")
    if variable == value:
        return [f"export {name}={shlex.quote(value)}"]
    return [] if variable == name else [f'export {name}="${variable}"']


def _command(cluster: Slurm, words: Sequence[str]) -> str:
    """Return the shell command of an agent."""
    if cluster.prefix is None:
        program = [cluster.python or sys.executable, "-m", "regrow"]
        return shlex.join([*program, *words])
    # Slurm's commands are not in a container, so the agent cannot ask for the time limit.
    walltime = [] if cluster.time is None else [f"--walltime={cluster.time:g}s"]
    program = [cluster.python, "-m", "regrow"] if cluster.python else ["regrow"]
    return f"{cluster.prefix} {shlex.join([*program, *words, *walltime])}"


def outputs(array: Array) -> list[Path]:
    """Return the files with the output of an array's elements."""
    return sorted(Path(array.output).glob(f"{array.experiment}-{array.job}_*.out"))


class Queue:
    """The arrays of one cluster file in Slurm's queue."""

    def __init__(self, cluster: Slurm) -> None:
        self._folder = Folder(cluster.name)
        self._file = self._folder.path / "arrays"

    def known(self) -> list[Array]:
        """Return the arrays that were submitted from here, the newest last."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[Array])
        except (OSError, msgspec.MsgspecError):
            return []

    def submit(
        self, text: str, *, experiment: str, state: str, comment: str, output: Path
    ) -> Array:
        """Submit a script. Raises UserError with the words of sbatch if it refuses."""
        output.mkdir(parents=True, exist_ok=True)
        self._folder.make()
        file = self._folder.engine / f"{experiment}.sbatch"
        private_files.replace(file, text)
        said = _run("sbatch", "--parsable", "--export=ALL", str(file))
        made = Array(
            job=said.strip().partition(";")[0],
            experiment=experiment,
            state=state,
            comment=comment,
            output=str(output),
            t=time.time(),
        )
        kept = [*self.known(), made][-_MOST_ARRAYS:]
        private_files.replace(self._file, msgspec.json.encode(kept))
        return made

    def elements(self, *arrays: Array) -> list[Element]:
        """Return the elements of these arrays that wait or run. Raises RegrowError if Slurm does
        not answer.

        A job of the same id that does not have the array's comment is another one.
        """
        of = {(one.job, one.comment): one for one in arrays}
        if not of:
            return []
        names = ",".join({one.experiment for one in arrays})
        said = _run(
            *("squeue", "--noheader", "--array", f"--user={os.getuid()}", f"--name={names}"),
            f"--format={_MARK.join(_FIELDS)}",
        )
        found = []
        for line in said.splitlines():
            job, index, state, node, ran, reason, comment = line.split(_MARK, len(_FIELDS) - 1)
            if (array := of.get((job, comment))) is not None:
                element = Element(
                    name=f"{job}_{index}",
                    experiment=array.experiment,
                    state=state,
                    node=node,
                    ran=ran if node else "",
                    reason="" if reason == "None" else reason,
                )
                found.append((int(index), element))
        return [element for _, element in sorted(found, key=lambda one: one[0])]

    def cancel(self, *arrays: Array) -> None:
        """Cancel all elements of these arrays, of this user's jobs alone."""
        for one in arrays:
            _run(
                *("scancel", "--quiet", f"--user={os.getuid()}"),
                *(f"--name={one.experiment}", one.job),
            )


def _run(program: str, *words: str) -> str:
    """Run a command of Slurm's and return what it prints. Raises UserError, with its words."""
    try:
        done = subprocess.run(
            [program, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_SECONDS,
            check=False,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except FileNotFoundError:
        raise UserError(
            f"there is no command {program} here: type this where jobs of your Slurm cluster are"
            " submitted, such as its login node; `regrow cluster export` writes the file for sbatch"
            " anywhere"
        ) from None
    except subprocess.TimeoutExpired:
        raise RegrowError(f"{program} did not answer in {_COMMAND_SECONDS:.0f} s") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UserError(f"Slurm refuses {program}: {said}")
    return done.stdout
