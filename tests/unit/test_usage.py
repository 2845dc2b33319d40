"""What attempts use of their machine: how it is measured, and what is said of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from regrow.infra.mlflow.trial_runs import TrialRuns
from regrow.infra.state.places import Places
from regrow.search.events import AnyEvent, Began, Ended, Started, decode, encode
from regrow.search.measured import Usage
from regrow.search.planning.verify import verify
from regrow.show.live import text
from regrow.show.report import report
from regrow.show.views import machine_use, summaries
from regrow.tasks.process import usage as measuring
from regrow.tasks.process.gpus import GpuReading, Gpus
from regrow.tasks.process.usage import Reading, family, parse_io, parse_stat
from regrow.tasks.trial import reporter, usage_meter
from regrow.tasks.trial.reporter import Reporter
from regrow.tasks.trial.trial import Trial
from regrow.tasks.trial.usage_meter import UsageTally, combined
from tests.unit.attempting import Attempting, steadily
from tests.unit.exported import regrow
from tests.unit.figured import begun, folded
from tests.unit.office import MakeOffice
from tests.unit.paged import logged, reader
from tests.unit.test_report import Page
from tests.unit.told import rows_of

MEGABYTES = 200
CHILD = f"""
import sys, time
held = bytearray({MEGABYTES} << 20)
held[::4096] = b"x" * len(held[::4096])
while time.process_time() < 1.0:
    pass
print("ready", flush=True)
sys.stdin.read()
"""
STAT = (
    "41 ({name}) D 7 41 41 0 -1 4194304 900 5000 3 4 150 50 25 75 20 0 3 0 8000 220000000 1000"
    " 18446744073709551615 1 1 0 0 0 0 0 16781312 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0"
)


@pytest.mark.parametrize("name", ["python", "a) (b", "a) R 1 (b", "", ") S 0 0 0"])
def test_a_processs_name_may_contain_anything(name: str) -> None:
    found = parse_stat(STAT.format(name=name))
    assert found.state == "D"
    assert found.cpu_s == 300 / os.sysconf("SC_CLK_TCK"), "its own, and its ended children's"
    assert found.memory == 1000 * os.sysconf("SC_PAGE_SIZE")


def test_files_of_another_form_are_refused() -> None:
    assert parse_io("rchar: 1\nread_bytes: 4096\nwrite_bytes: 8192\n") == (4096, 8192)
    for parse, told in ((parse_stat, "41 (python) D 7"), (parse_io, "read_bytes: 4096\n")):
        with pytest.raises(ValueError, match="/proc/PID/"):
            parse(told)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is measured")
def test_cpu_and_memory_of_a_child_process_are_in_the_attempts_end(
    make_office: MakeOffice, attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "FLUSH_SECONDS", 0.05)
    office = make_office()

    def train(trial: Trial) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", CHILD], **pipes) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            assert child.pid in set(family())
            # the reporter's thread takes the sample
            assert isinstance(trial._reporter, Reporter)
            tally, until = trial._reporter._usage.tally, time.monotonic() + 60
            while tally is None or tally.most_memory < MEGABYTES << 20:
                assert time.monotonic() < until
                time.sleep(0.05)
            child.communicate()
        trial.report({"score": 1.0})

    attempt(office, train)
    (ended,) = [event for event in office.events if isinstance(event, Ended)]
    used = ended.usage
    assert used is not None
    assert used.cpus * used.seconds > 0.9, "the child's second counts after its end, too"
    assert MEGABYTES << 20 < used.most_memory < used.memory_limit
    assert used.memory <= used.most_memory
    assert used.processes >= 2
    (trial,) = office.history.trials
    assert trial.attempts[0].usage == used
    view = summaries.trial_view(office.history, trial)
    assert view["attempts"][0]["usage"]["most_memory"] == used.most_memory


def test_where_there_is_no_proc_nothing_is_measured(
    make_office: MakeOffice,
    attempt: Attempting,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    monkeypatch.setattr(measuring, "PROC", str(tmp_path))
    monkeypatch.setattr(usage_meter, "SHORTEST_SECONDS", 0.0)
    finished = attempt(make_office(), lambda trial: trial.report({"score": 1.0}))
    assert (finished.ended.outcome, finished.ended.usage) == ("done", None)


def reading(t: float, cpu_s: float = 0.0, **other: Any) -> Reading:
    return Reading(
        t=t,
        cpu_s=cpu_s,
        **{"memory": 10, "read": 0, "written": 0, "processes": 1, "waiting": False, **other},
    )


def test_means_are_over_time_and_totals_never_fall() -> None:
    tally = UsageTally(reading(100.0, 5.0, read=7))
    tally.add(reading(101.0, 7.0, memory=40, read=9, processes=3), GpuReading(0.9, 30, 40))
    tally.add(reading(104.0, 6.0, memory=20, waiting=True), GpuReading(0.1, 20, 40))
    found = tally.summary()
    assert (found.seconds, found.samples, found.processes) == (4.0, 2, 3)
    assert (found.cpus, found.most_cpus) == (0.5, 2.0)
    assert (found.memory, found.most_memory) == (25, 40)
    assert (found.read, found.written) == (2, 0)
    assert found.disk_wait == 0.75
    assert (found.gpu, found.most_gpu) == (0.3, 0.9)
    assert (found.most_gpu_memory, found.gpu_memory) == (30, 40)


def test_a_process_that_waits_for_a_disk_beside_one_that_works_delays_nothing() -> None:
    tally = UsageTally(reading(0.0))
    tally.add(reading(1.0, 0.9, waiting=True))
    assert tally.summary().disk_wait == 0.0


def test_workers_of_a_group_are_summed_but_for_shares() -> None:
    one = Usage(seconds=9.0, samples=4, cpus=1.0, most_memory=100, disk_wait=0.2, gpu=0.5)
    other = Usage(seconds=8.0, samples=5, cpus=0.5, most_memory=50, disk_wait=0.4)
    found = combined((one, other))
    assert (found.workers, found.seconds, found.cpus, found.most_memory) == (2, 9.0, 1.5, 150)
    assert (found.disk_wait, found.gpu) == (0.3, 0.5)


NVML = SimpleNamespace(
    NVMLError=RuntimeError,
    nvmlInit=lambda: None,
    nvmlDeviceGetCount=lambda: 2,
    nvmlDeviceGetHandleByIndex=range(2).__getitem__,
    nvmlDeviceGetHandleByUUID={"GPU-a": 0, "GPU-b": 1}.__getitem__,
    nvmlDeviceGetUtilizationRates=lambda device: SimpleNamespace(gpu=(20, 60)[device]),
    nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(used=(5, 30)[device], total=40),
)
"""NVIDIA's library as its package offers it, on a machine of two GPUs."""


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, GpuReading(0.4, 30, 40)),
        ("0", GpuReading(0.2, 5, 40)),
        ("1, GPU-a", GpuReading(0.4, 30, 40)),
        ("", None),
        ("7", None),
    ],
)
def test_the_gpus_of_a_process_are_those_that_it_sees(
    visible: str | None, found: GpuReading | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setitem(sys.modules, "pynvml", NVML)
    assert Gpus().read() == found
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Gpus().read() is None, "without the package"


HOUR = Usage(seconds=3600.0, samples=1800, cpus=0.9, most_cpus=1.0, memory=10**9, most_memory=10**9)


def ended(used: Usage | None, outcome: Any = "done", **spec: Any) -> list[AnyEvent]:
    """A trial that ran for an hour."""
    cause: Any = "infrastructure" if outcome == "lost" else ""
    end = Ended(t=3702.0, trial=0, attempt=1, outcome=outcome, cause=cause, usage=used)
    return [*begun(1, **spec), end]


def used(**changes: Any) -> Usage:
    return msgspec.structs.replace(HOUR, **changes)


@pytest.mark.parametrize(
    ("usage", "resources", "told"),
    [
        (used(), {}, None),
        (used(seconds=9.0, disk_wait=0.9), {}, None),
        (
            used(disk_wait=0.6),
            {},
            "trials waited for the disk 60% of the time: read ahead in other processes, or keep the data on a faster disk",
        ),
        (
            used(gpu=0.2, most_gpu_memory=10, gpu_memory=40),
            {"gpu": 1},
            "GPU 20% used: pack 3 a GPU: resources: {gpu: 0.33}",
        ),
        (
            used(gpu=0.2, most_gpu_memory=16, gpu_memory=40),
            {"gpu": 1},
            "GPU 20% used: pack 2 a GPU: resources: {gpu: 0.5}",
        ),
        (used(gpu=0.2, most_gpu_memory=19, gpu_memory=40), {"gpu": 1}, None),
        (
            used(gpu=0.2, most_gpu_memory=12, gpu_memory=40),
            {"gpu": 0.5},
            "GPU 20% used: pack 6 a GPU: resources: {gpu: 0.16}",
        ),
        (
            used(gpu=0.1, most_gpu_memory=20, gpu_memory=40),
            {"gpu": 4},
            "GPUs 10% used: fewer for each trial may do: resources: {gpu: 1}",
        ),
        (
            used(cpus=1.1, most_cpus=1.9),
            {"cpu": 4},
            "trials used 1.1 of their 4 CPUs, at most 1.9: more run at a time with resources: {cpu: 2}",
        ),
        (used(cpus=1.1, most_cpus=3.9), {"cpu": 4}, None),
        (
            used(cpus=3.5, most_cpus=4.0),
            {},
            "trials used 3.5 CPUs and asked for 1: resources: {cpu: 4}, or fewer threads",
        ),
        (used(cpus=3.5), {"children": {"cpu": 4}}, None),
        (
            used(most_memory=11 * 10**9),
            {"memory": "12GB"},
            "peak memory 11 of 12 GB (trial 0)",
        ),
        (
            used(most_memory=900_000_000, memory_limit=10**9),
            {},
            "peak memory 900 MB of 1.0 GB (trial 0)",
        ),
        (used(most_memory=2 * 10**9, memory_limit=10**9, processes=5), {}, None),
    ],
)
def test_a_sentence_says_what_to_change_where_it_matters(
    usage: Usage, resources: dict[str, Any], told: str | None
) -> None:
    history = folded(ended(usage, resources=resources))
    found = list(machine_use.sentences(history))
    assert found == ([] if told is None else [told])
    for lines in (
        text.ending(history, Places(root="/state")),
        text.summary(history, Places(root="/state"), alive=False, now=history.t_last),
    ):
        assert list(lines).count(str(told)) == len(found)


def test_what_was_not_measured_is_said_with_the_reason() -> None:
    def told(events: Sequence[AnyEvent]) -> str:
        return machine_use.of_attempt(folded(list(events)).trials[0].attempts[0])

    assert told(ended(None, "lost")) == "not measured: the attempt was killed"
    assert told(ended(None)) == "not measured"
    assert told(begun(1)) == "measured when it ends"
    last = ended(None)[-1]
    quick = msgspec.structs.replace(last, t=102.1)
    assert told([*begun(1), quick]) == "not measured: it was too short"
    assert told(
        ended(used(gpu=0.25, most_gpu=0.5, most_gpu_memory=10**9, gpu_memory=2 * 10**9))
    ) == (
        "0.90 CPUs (at most 1.00); memory 1.0 GB (at most 1.0 GB); disk: read 0 bytes, wrote 0"
        " bytes; GPU 25% (at most 50%); GPU memory at most 1.0 of 2.0 GB"
    )


def test_terminal_page_and_report_show_it_with_the_sentence(tmp_path: Path) -> None:
    lost = ended(None, "lost")
    lease: dict[str, Any] = {"t": 3703.0, "trial": 0, "attempt": 2}
    last = msgspec.structs.replace(ended(used(disk_wait=0.6))[-1], t=7400.0, attempt=2)
    events = [*lost, Started(**lease), Began(**lease, node="n2"), last]
    logged(tmp_path, "figures", events)
    shown = [
        regrow("trial", "figures", 0, "--state", tmp_path).stdout,
        Page(reader(tmp_path).get("/e/figures/t/0").text).text,
    ]
    written = report.html(
        rows_of(folded(events)), Places(root="/state"), alive=False, now=events[-1].t
    )
    (trial,) = Page(written).data["trials"]
    told = [*(f"attempt {one['number']}: {one['use']}" for one in trial["attempts"])]
    shown.append("\n".join([*told, Page(written).text]))
    for found in shown:
        assert "attempt 1: not measured: the attempt was killed" in found
        assert "attempt 2: 0.90 CPUs (at most 1.00); memory 1.0 GB" in found
        assert found.count("trials waited for the disk 60% of the time") == 1


def test_an_event_of_before_this_field_is_read_and_written_as_it_was() -> None:
    line = b'{"event":"ended","t":3.0,"trial":0,"attempt":1,"outcome":"done","step":2}'
    event = decode(line)
    assert isinstance(event, Ended)
    assert event.usage is None
    assert encode(event) == line


def test_no_decision_depends_on_it(make_office: MakeOffice, attempt: Attempting) -> None:
    """What follows from a log is the same with other measurements in it."""
    office = make_office(trials=4, search="tpe", schedule="asha")
    for _ in range(4):
        attempt(office, steadily)
    found = [
        msgspec.structs.replace(event, usage=HOUR) if isinstance(event, Ended) else event
        for event in office.events
    ]
    assert sum(isinstance(event, Ended) for event in found) == 4
    assert verify(found).difference is None


def test_mlflow_has_it_as_metrics() -> None:
    runs = TrialRuns(lambda _: iter(()))
    for event in ended(used(disk_wait=0.25, gpu=0.5, most_gpu_memory=3 * 10**9)):
        runs.apply(event)
    (trial,) = [run for run in runs.drain() if run.name == "trial-0000"]
    assert {
        name: value for name, value, *_ in trial.metrics if name.startswith("system/regrow.")
    } == {
        "system/regrow.cpus": 0.9,
        "system/regrow.peak_memory_gb": 1.0,
        "system/regrow.disk_wait": 0.25,
        "system/regrow.gpu": 0.5,
        "system/regrow.peak_gpu_memory_gb": 3.0,
    }
