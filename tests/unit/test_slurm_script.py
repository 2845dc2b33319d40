"""Slurm without a Slurm: cluster files, the file for sbatch, and where there is no sbatch."""

from __future__ import annotations

import dataclasses
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from regrow.apps.agent.request import Request
from regrow.apps.agent.take_part import take_part
from regrow.flows.agents import AgentRun, RunRequest, in_words
from regrow.infra.clusters.agents import Agent, AgentWork
from regrow.infra.clusters.description import Cluster, Slurm
from regrow.infra.clusters.slurm import SlurmEngine, job_ends, script
from regrow.infra.log.log import Log
from regrow.infra.log.reading import replay
from regrow.infra.state.experiments import resume_requested, retry_requested
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.events import Closed, encode
from regrow.search.spec import Spec
from regrow.tasks.errors import RegrowError, UserError
from tests.system.hosts import await_
from tests.unit.revived import failing, simulated

LEAST: dict[str, Any] = {"name": "lab", "on": "slurm", "agents": 4}


def parsed(**keys: Any) -> Slurm:
    found = Cluster.parse({**LEAST, **keys})
    assert isinstance(found, Slurm)
    return found


def written(cluster: Slurm) -> str:
    return script(
        cluster,
        ["join", "/home/me/my work/sweep.yaml", "--state", "/shared/state"],
        name="sweep",
        comment="regrow:lab:1",
        output=Path("/home/me/my work/50%a"),
        folder=Path("/home/me/my work"),
    )


def test_an_element_leaves_that_has_nothing_left_to_do() -> None:
    assert "--idle-timeout" not in written(parsed())
    assert "--state /shared/state --idle-timeout 300s &" in written(parsed(idle="5min"))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"agents": 0}, "agents: 0: "),
        ({"agent": 4}, "agent: 4: unknown key; did you mean 'agents'?"),
        (
            {"workers": []},
            "workers: []: is for clusters on aws or gcp or azure or kubernetes",
        ),
        ({"idle": -1}, "idle: -1: is not above 0"),
        ({"most": 5}, "most: 5: is more than the 4 agents; leave it out"),
        ({"time": "4 parsecs"}, 'time: "4 parsecs": is not a number; write seconds, or text'),
        ({"time": "30s"}, "time: "),
        ({"partition": "--wrap=x"}, 'partition: "--wrap=x": begins with what a command line'),
        ({"account": "a\n#SBATCH --uid=0"}, "account: .*: has a line end"),
        ({"options": {"mem": "4G"}}, "options.mem: .*: is set by regrow; write it at `memory`"),
        ({"options": {"no-requeue": True}}, "options.no-requeue: true: is set by regrow; leave it"),
        ({"options": {"-p": "x"}}, "options.-p"),
        ({"options": {"mail user": "x"}}, "options.mail user: .*: is no long option of sbatch"),
        ({"options": {"mail-user": "x\ny"}}, "options.mail-user: .*: has a line end"),
    ],
)
def test_a_mistake_in_the_file_is_told_with_its_key(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told.replace("[]", r"\[\]").replace("?", r"\?")):
        parsed(**keys)


def test_the_file_for_sbatch_has_all_options_and_no_value_of_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN", "secret-7")
    text = written(
        parsed(
            most=2,
            partition="gpu,long",
            account="lab",
            qos="low",
            time="90s",
            cpus=8,
            memory="8GiB",
            gres="gpu:2",
            constraint="a100|h100",
            options={"mail-user": "me@x.org", "exclusive": True, "nice": 100, "spread-job": False},
            env={"MODE": "a b", "TOKEN": "$TOKEN", "KEY": "$TOKEN"},
            setup=["module load cuda", "source venv/bin/activate"],
            prefix="apptainer exec image.sif",
        )
    )
    lines = text.splitlines()
    options = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}
    assert options == {
        "--job-name=sweep",
        "--comment=regrow:lab:1",
        "--array=1-4%2",
        "--partition=gpu,long",
        "--account=lab",
        "--qos=low",
        "--time=2",
        "--cpus-per-task=8",
        "--mem=8192M",
        "--gres=gpu:2",
        "--constraint='a100|h100'",
        "--mail-user=me@x.org",
        "--exclusive",
        "--nice=100",
        "--requeue",
        "--open-mode=append",
        "--signal=B:USR1@22",
        "--chdir='/home/me/my work'",
        "--output='/home/me/my work/50%%a/%x-%A_%a.out'",
    }
    begin = lines.index("export MODE='a b'")
    assert lines[begin : begin + 6] == [
        "export MODE='a b'",
        'export KEY="$TOKEN"',
        "set -e",
        "module load cuda",
        "source venv/bin/activate",
        "set +e",
    ]
    agent = "regrow join '/home/me/my work/sweep.yaml' --state /shared/state &"
    assert f"apptainer exec image.sif {agent}" in lines
    assert "secret-7" not in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_without_further_keys_this_installation_runs_and_slurm_tells_the_time_limit() -> None:
    text = written(parsed(python="/opt/venv/bin/python"))
    assert "\n/opt/venv/bin/python -m regrow join '/home/me/my work/sweep.yaml'" in text
    assert "--signal=B:USR1@120\n" in text
    assert job_ends({"SLURM_JOB_ID": "1", "SLURM_JOB_END_TIME": "1900000000"}) == 1900000000.0
    assert job_ends({}) is None
    assert job_ends({"SLURM_JOB_ID": "1", "PATH": "/nowhere"}) is None


def test_a_machine_without_slurm_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    slurm = SlurmEngine(parsed())
    run = AgentRun(cluster=parsed(), engine=slurm, file=Path("slurm.yaml"), say=print)
    spec = Spec.parse(
        {"name": "a", "trainable": "m:f", "metric": "x", "mode": "max", "space": {}, "trials": 1}
    )
    places = Places.at(str(tmp_path / "state"))
    order = RunRequest(spec=spec, file=tmp_path / "a.yaml", places=places)
    with pytest.raises(UserError, match=r"no command sbatch here; .* login node; `regrow cluster"):
        run.submit(order)
    assert slurm.submissions() == []
    typed = "regrow run a.yaml --on slurm.yaml"
    assert run.again("a.yaml", Places.at(None)) == typed
    assert run.again("a.yaml", places) == f"{typed} --state {places.root}"


def heeds(pid: int) -> bool:
    """Whether a process has a handler for SIGTERM."""
    caught = re.search(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def with_a_queue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for sbatch, which lets elements run at once, and squeue, which forgets none."""
    queue = f"cat {folder}/queue"
    for name, does in {
        "squeue": queue,
        "sbatch": f"""id=$(($({queue} | wc -l) + 1))
            grep '^#SBATCH --comment' "$3" | sed "s/.*=/$id\x1f1\x1fRUNNING\x1fn1\x1f1\x1f\x1f/" \
                >> {folder}/queue
            echo $id""",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    (folder / "queue").touch()
    monkeypatch.setenv("REGROW_HOME", str(folder / "home"))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.chdir(folder)


def test_what_wrappers_of_slurm_print_is_no_element_and_no_number_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_queue(tmp_path, monkeypatch)
    slurm = SlurmEngine(parsed())
    work = AgentWork(experiment="a", state="/s", project=tmp_path, words=("join", "a"))
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'quota: 12;'; echo '12;lab'\n")
    assert slurm.submit(work, print).job == "12"
    (tmp_path / "queue").write_text("a notice of the site\n\n")
    assert slurm.agents() == []
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho maintenance\n")
    with pytest.raises(RegrowError, match=r"printed no number of a job, but 'maintenance'"):
        slurm.submit(work, print)
    assert len(slurm.submissions()) == 1


def test_elements_that_leave_as_the_experiment_has_ended_do_not_keep_the_next_array_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_queue(tmp_path, monkeypatch)
    slurm = SlurmEngine(parsed())
    work = AgentWork(experiment="a", state="/s", project=tmp_path, words=("join", "a"))
    first = slurm.submit(work, print)
    assert slurm.submit(work, print) == first
    ended = dataclasses.replace(work, ended=first.t + 0.001)
    second = slurm.submit(ended, print)
    assert (first.job, second.job) == ("1", "2")
    assert slurm.submit(ended, print) == second, "typed again before an agent has begun"


def test_failed_trials_are_tried_again_by_agents_unless_some_run_the_experiment_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_queue(tmp_path, monkeypatch)
    run = AgentRun(
        cluster=parsed(), engine=SlurmEngine(parsed()), file=Path("slurm.yaml"), say=print
    )
    broken = failing(simulated(schedule="fifo", trials=2), (0, 2), (1, 2))
    places = Places.at(str(tmp_path / "state"))
    store, name = places.store("simulated"), "simulated"
    end = next(place for place, one in enumerate(broken.events) if isinstance(one, Closed))
    log = Log.open(store)
    log.claim([encode(one) for one in broken.events[:end]])
    order = RunRequest(spec=broken.spec, file=tmp_path / "a.yaml", places=places)
    again = dataclasses.replace(order, retry_failed=True)
    run.submit(order)
    with pytest.raises(UserError, match=r"agents run simulated now; .*`regrow stop simulated"):
        run.submit(again)
    assert not retry_requested(store, name)
    log.claim([encode(one) for one in broken.events[end:]])
    assert run.over(order, run.end_of(order))
    assert not run.over(again, run.end_of(order))
    left = Closed(t=1.0, status="interrupted")
    assert run.work(order, left).ended is None, "the next leader continues"
    assert "--retry-failed" not in run.work(again).words, "no element would ever do anything else"
    run.submit(again, run.end_of(order))
    assert retry_requested(store, name)


def test_what_was_stopped_is_continued_once_and_not_by_each_later_start_of_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_queue(tmp_path, monkeypatch)
    run = AgentRun(
        cluster=parsed(), engine=SlurmEngine(parsed()), file=Path("slurm.yaml"), say=print
    )
    begun = failing(simulated(schedule="fifo", trials=2), (0, 2)).events[:2]
    places = Places.at(str(tmp_path / "state"))
    store, name = places.store("simulated"), "simulated"
    log, stopped = Log.open(store), Closed(t=1.0, status="stopped")
    log.claim([encode(one) for one in (*begun, stopped)])
    spec = replay(store, name).spec
    order = RunRequest(spec=spec, file=tmp_path / "a.yaml", places=places)
    agent = Request(name=name, places=places, spec=None, trials=None, command=())
    assert take_part(agent, print).status == "stopped"
    run.submit(order, run.end_of(order))
    assert resume_requested(store, name)
    assert "--resume" not in run.work(order, stopped).words
    log.claim([encode(one) for one in (begun[1], stopped)])
    assert not resume_requested(store, name)
    assert take_part(agent, print).status == "stopped", "a machine that was off meanwhile"


@pytest.mark.parametrize(
    ("number", "asked"), [(signal.SIGUSR1, "requeue 7_2\n"), (signal.SIGTERM, "")]
)
def test_an_element_whose_container_ends_by_the_signal_comes_back_unless_it_was_told_to_end(
    number: int, asked: str, tmp_path: Path
) -> None:
    for name, does in {
        "box": f"touch {tmp_path}/begun; exec sleep 60",
        "scontrol": f'echo "$*" >> {tmp_path}/asked',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "asked").touch()
    given = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_END_TIME": "1"}
    path = f"{tmp_path}:/usr/bin:/bin"
    element = subprocess.Popen(
        ["bash", "-c", written(parsed(prefix="box"))], env={**given, "PATH": path}
    )
    await_((tmp_path / "begun").exists, "its container")
    await_(lambda: heeds(element.pid), "the trap for SIGTERM, the last one that is set")
    element.send_signal(number)
    element.wait(60)
    assert (tmp_path / "asked").read_text() == asked


@pytest.mark.parametrize(
    ("told", "found"), [("2026-11-27T22:00:00", "1795816800"), ("N/A", "")], ids=["limit", "none"]
)
def test_an_agent_in_a_container_finds_the_time_limit_that_slurm_tells_the_script(
    told: str, found: str, tmp_path: Path
) -> None:
    """Also one of less than two minutes, and one that Slurm set below that of the file."""
    (tmp_path / "squeue").write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\necho {told}\n')
    (tmp_path / "squeue").chmod(0o755)
    text = written(parsed(prefix="env --unset=PATH", python="/bin/echo", time="90s"))
    shown = text.replace("/bin/echo", "/bin/sh -c 'echo $SLURM_JOB_END_TIME'")
    given = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "TZ": "UTC"}
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-c", shown],
        env={**given, "PATH": path},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.stdout.splitlines() == [found], done.stderr
    assert "--job=7_2" in (tmp_path / "asked").read_text()


def test_the_states_of_elements_are_told_with_the_reasons_for_which_they_wait() -> None:
    def element(state: str, node: str, reason: str) -> Agent:
        return Agent(name="1_1", experiment="a", state=state, node=node, reason=reason)

    there = [
        element("RUNNING", "n1", ""),
        element("RUNNING", "n2", ""),
        element("PENDING", "", "QOSMaxJobsPerUserLimit"),
        element("PENDING", "", "Resources"),
        element("PENDING", "", "Resources"),
    ]
    told = "2 running, 1 pending (QOSMaxJobsPerUserLimit), 2 pending (Resources)"
    assert in_words(there) == told
