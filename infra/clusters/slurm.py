"""Slurm: the script of a job array of agents, the commands sbatch, squeue and scancel, and when the
job ends that an agent belongs to.

A job array has no head and nothing to bring up: its elements are agents (`regrow join`), which
elect a leader in the experiment's state. Hence it is no `Provider`, but an `AgentEngine`.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from regrow.infra.clusters.agents import Agent, AgentWork, Output, Submission, Submissions
from regrow.infra.clusters.description import Slurm
from regrow.infra.clusters.folder import Folder, variables
from regrow.infra.machine import private_files
from regrow.infra.machine.commands import run
from regrow.infra.machine.supervised import last_lines, until
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.output.traces import one_line

SIGNAL_SECONDS = 120
"""Seconds before its time limit at which an element is asked to leave. Slurm itself may take 60 s
more.
"""
_COMMAND_SECONDS = 60.0
END_SECONDS = 180.0
"""Seconds that cancelled elements may take to end: their trials save."""
_FIELDS = ("%F", "%K", "%T", "%N", "%M", "%r", "%k")
_MARK = "\x1f"
_END_TIME = """
# Slurm's commands are not in a container, so the agent finds its time limit in this variable, which
# newer releases of Slurm set.
[ -n "$SLURM_JOB_END_TIME" ] || export SLURM_JOB_END_TIME=$(
  date +%s --date="$(SLURM_TIME_FORMAT=standard squeue --noheader --format=%e \\
    --job="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID")" 2>/dev/null
)
"""
_BODY = """
# An agent of the experiment. Near the end of its time, and when it is terminated, it leaves in
# order: its trials save.
{command} &
agent=$! ends= told=
trap 'ends=1; kill -USR1 "$agent" 2>/dev/null' USR1
trap 'told=1; kill -TERM "$agent" 2>/dev/null' TERM
wait "$agent"
while kill -0 "$agent" 2>/dev/null; do wait "$agent"; done
wait "$agent"
code=$?
case "$code" in
  # The experiment is over, or needs fewer machines: elements that still wait have nothing to do.
  0 | 1) scancel --quiet --state=PENDING "$SLURM_ARRAY_JOB_ID" ;;
  # This machine cannot take part.
  2) ;;
  # Its time ended: it comes back with new time. One that was terminated was cancelled, or is
  # requeued by Slurm. One element has the id of the whole array, so it is named by its index. Some
  # container tools end by the signal, in place of the agent's code.
  *) if [ -z "$told" ] && {{ [ "$code" = 3 ] || [ -n "$ends" ]; }}; then
       exec scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
     fi ;;
esac
exit "$code"
"""


class Array(Submission, frozen=True, kw_only=True):
    """A job array that was submitted from here.

    Attributes:
        job: its job id.
        comment: the comment of its jobs, of this array alone.
        output: folder of its elements' output.

    """

    job: str
    comment: str
    output: str


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
        "output": f"{str(output).replace('%', '%%')}/%x-%A_%a.out",
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
    ends = "" if cluster.prefix is None else _END_TIME
    if cluster.idle is not None:
        words = [*words, "--idle-timeout", f"{cluster.idle:g}s"]
    return "\n".join(lines) + ends + _BODY.format(command=_command(cluster, words))


def _signal_seconds(cluster: Slurm) -> int:
    if cluster.time is None:
        return SIGNAL_SECONDS
    # of a short time limit, no more than a quarter
    return min(SIGNAL_SECONDS, int(cluster.time / 4))


def _export(name: str, value: str) -> list[str]:
    """Return the line for a variable of the cluster file. A reference gets its value there, from
    the environment that sbatch passes on.
    """
    variable = value.removeprefix("$")
    if variable == value:
        return [f"export {name}={shlex.quote(value)}"]
    return [] if variable == name else [f'export {name}="${variable}"']


def _command(cluster: Slurm, words: Sequence[str]) -> str:
    if cluster.prefix is None:
        program = [cluster.python or sys.executable, "-m", "regrow"]
        return shlex.join([*program, *words])
    program = [cluster.python, "-m", "regrow"] if cluster.python else ["regrow"]
    return f"{cluster.prefix} {shlex.join([*program, *words])}"


class SlurmEngine:
    """The arrays of one cluster file in Slurm's queue; see AgentEngine."""

    place = "Slurm"
    sends = False
    reads = True
    no_output = (
        "where the nodes share no folder with this machine, name one that they do at `output` in"
        " the cluster file"
    )

    def __init__(self, cluster: Slurm) -> None:
        self.cluster = cluster
        self._folder = Folder(cluster.name)
        self._arrays = Submissions(self._folder, Array)

    def check(self) -> None:
        variables(self.cluster, os.environ)

    def offer(self, work: AgentWork) -> list[str]:
        return []

    def files(self, work: AgentWork, say: Callable[[str], None]) -> dict[str, bytes]:
        return {f"{work.experiment}.sbatch": self._script(work, comment=None).encode()}

    def submissions(self) -> list[Array]:
        return self._arrays.all()

    def submit(self, work: AgentWork, say: Callable[[str], None]) -> Array:
        """Submit an array of agents, unless one of the experiment is in the queue. Raises UserError
        with the words of sbatch if it refuses.
        """
        if (queued := self._queued(work)) is not None:
            say(f"{work.experiment} has agents in the queue already: job array {queued.job}")
            return queued
        comment = f"regrow:{self.cluster.name}:{secrets.token_hex(6)}"
        text = self._script(work, comment=comment)
        self._output.mkdir(parents=True, exist_ok=True)
        file = self._folder.make().engine / f"{work.experiment}.sbatch"
        private_files.replace(file, text)
        output = _run("sbatch", "--parsable", "--export=ALL", str(file))
        jobs = re.findall(r"^(\d+)(?:;.*)?$", output, re.MULTILINE)
        if not jobs:
            raise RegrowError(
                f"sbatch printed no number of a job, but {one_line(output)[:200]!r}; squeue shows"
                " whether one was submitted"
            )
        made = Array(
            job=jobs[-1],
            experiment=work.experiment,
            state=work.state,
            comment=comment,
            output=str(self._output),
            t=time.time(),
        )
        self._arrays.add(made)
        say(
            f"{work.experiment}: submitted job array {made.job} of {self.cluster.agents} agents;"
            f" their output is in {made.output}"
        )
        return made

    def agents(self, *of: Array) -> list[Agent]:
        """Return the elements of these arrays that wait or run.

        A job of the same id that does not have the array's comment is another one.
        """
        arrays = {(one.job, one.comment): one for one in of or self._arrays.all()}
        if not arrays:
            return []
        names = ",".join({one.experiment for one in arrays.values()})
        output = _run(
            *("squeue", "--noheader", "--array", f"--user={os.getuid()}", f"--name={names}"),
            f"--format={_MARK.join(_FIELDS)}",
        )
        found = []
        for line in output.splitlines():
            fields = line.split(_MARK, len(_FIELDS) - 1)
            if len(fields) < len(_FIELDS):
                continue  # a notice, as sites print them
            job, index, state, node, ran, reason, comment = fields
            if (array := arrays.get((job, comment))) is not None:
                element = Agent(
                    name=f"{job}_{index}",
                    experiment=array.experiment,
                    state=state,
                    node=node,
                    ran=ran if node else "",
                    reason="" if reason == "None" else reason,
                )
                found.append((int(index), element))
        return [element for _, element in sorted(found, key=lambda one: one[0])]

    def outputs(self, of: Array) -> list[Output]:
        files = sorted(Path(of.output).glob(f"{of.experiment}-{of.job}_*.out"))
        return [
            Output(
                title=str(file),
                lines=last_lines(file)[-20:],
                t=file.stat().st_mtime,
            )
            for file in files
        ]

    def done(self, of: Array, say: Callable[[str], None]) -> None:
        """Do nothing: agents that still wait are cancelled by those that end."""

    def end(self, say: Callable[[str], None]) -> None:
        """Cancel all elements in the queue, and wait for their end. Raises RegrowError, naming
        them, if some are left.
        """
        queued = self.agents()
        jobs = {_job(one) for one in queued}
        for array in self._arrays.all():
            if array.job in jobs:
                _run(
                    *("scancel", "--quiet", f"--user={os.getuid()}"),
                    *(f"--name={array.experiment}", array.job),
                )
        if not until(lambda: not self.agents(), seconds=END_SECONDS, tick=1.0):
            names = ", ".join(f"{one.name} ({one.state})" for one in self.agents())
            raise RegrowError(f"still in the queue: {names}; squeue shows them")
        say(
            f"nothing of {self.cluster.name} is in the queue any more; {len(queued)} agents were"
            " cancelled"
        )

    @property
    def _output(self) -> Path:
        return Path(self.cluster.output or Path.cwd() / "slurm")

    def _queued(self, work: AgentWork) -> Array | None:
        """Return the array of an experiment that is in the queue; None if there is none, or only
        one whose elements leave as the experiment has ended.
        """
        ours = [
            one
            for one in self._arrays.all()
            if (one.experiment, one.state) == (work.experiment, work.state)
            and one.t > (work.ended or 0.0)
        ]
        queued = {_job(element) for element in self.agents(*ours)} if ours else set()
        return next((one for one in reversed(ours) if one.job in queued), None)

    def _script(self, work: AgentWork, *, comment: str | None) -> str:
        self.check()
        return script(
            self.cluster,
            work.words,
            name=work.experiment,
            comment=comment,
            output=self._output,
            folder=Path.cwd(),
        )


def job_ends(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return when this process's Slurm job reaches its time limit, seconds since the epoch; None:
    there is no job, no limit, or Slurm does not tell.

    Newer releases of Slurm set a variable. For the others squeue is asked, which is in few
    containers.
    """
    with suppress(ValueError):
        if given := environment.get("SLURM_JOB_END_TIME"):
            return float(given)
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        return None
    if array := environment.get("SLURM_ARRAY_JOB_ID"):
        # One element has the id of the whole array.
        job = f"{array}_{environment.get('SLURM_ARRAY_TASK_ID')}"
    with suppress(RegrowError, OSError, ValueError):
        ask = ("squeue", "--noheader", f"--job={job}", "--format=%e")
        standard = {**environment, "SLURM_TIME_FORMAT": "standard"}
        return datetime.fromisoformat(
            run(ask, seconds=20.0, env=standard).stdout.strip()
        ).timestamp()
    return None


def _job(element: Agent) -> str:
    return element.name.partition("_")[0]


def _run(*words: str) -> str:
    """Run a command of Slurm's and return what it prints. Raises UserError, with its words."""
    hint = (
        "type this where jobs of your Slurm cluster are submitted, such as its login node; `regrow"
        " cluster export` writes the file for sbatch anywhere"
    )
    plain = {**os.environ, "LC_ALL": "C.UTF-8"}
    done = run(words, seconds=_COMMAND_SECONDS, hint=hint, env=plain)
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UserError(f"Slurm refuses {words[0]}: {message}")
    return done.stdout
