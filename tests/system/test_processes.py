"""Trials that start processes of their own, in all the ways that Python and its libraries have:
they work as in any script, and are gone when the trial is.
"""

from __future__ import annotations

import re

import pytest

from tests.system.conftest import Desk, await_no_process

pytestmark = pytest.mark.usefixtures("shared_prefect")

EVERY_WAY = """
import logging, multiprocessing as mp, os, signal, subprocess, sys, threading, time
from concurrent.futures import ProcessPoolExecutor


class Squares:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return float(index * index)


def square(x):
    return x * x


def say(text):
    print(text)
    print(text + " to stderr", file=sys.stderr)
    logging.warning("%s as a warning", text)


def report_there(trial, queue):
    try:
        trial.report({"score": 1.0})
    except Exception as error:
        queue.put(str(error))


def ways(trial):
    yield "subprocess", subprocess.run(["sh", "-c", "echo from a shell; exit 3"]).returncode == 3
    for method in ("fork", "spawn", "forkserver"):
        if trial.number == 1 and method == "spawn":
            continue  # has no server that an earlier trial could have started
        context = mp.get_context(method)
        with context.Pool(1 + (method == "fork")) as pool:
            yield f"pool by {method}", pool.map(square, range(4)) == [0, 1, 4, 9]
        sleeper = context.Process(target=time.sleep, args=(1000,))
        sleeper.start()
        sleeper.terminate()
        sleeper.join(60)
        yield f"terminate by {method}", sleeper.exitcode == -15
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            yield f"executor by {method}", list(executor.map(square, range(4))) == [0, 1, 4, 9]
    # By a thread, while others print all the time: what they hold at the moment of the fork is held for good in the child.
    done = threading.Event()
    threads = [threading.Thread(target=lambda: [sys.stdout.flush() or logging.debug("noise") or time.sleep(0.001) for _ in iter(done.is_set, True)])]
    threads[0].start()
    for turn in range(20):
        child = mp.get_context("fork").Process(target=say, args=(f"child {turn}",))
        child.start()
        child.join(60)
        if child.exitcode != 0:
            yield f"printing in a fork ({child.exitcode})", False
    done.set()
    threads[0].join()
    queue = mp.get_context("fork").SimpleQueue()
    child = mp.get_context("fork").Process(target=report_there, args=(trial, queue))
    child.start()
    yield "a report in a fork: " + queue.get(), True
    child.join()
    import joblib

    yield "loky", joblib.Parallel(n_jobs=2)(joblib.delayed(square)(x) for x in range(4)) == [0, 1, 4, 9]
    import torch

    loader = torch.utils.data.DataLoader(Squares(), batch_size=2, num_workers=2, persistent_workers=True)
    yield "loader", all(float(sum(batch.sum() for batch in loader)) == 140.0 for _ in range(2))


KEPT = []


def left_behind():
    # By their command and what started them, which a fork has from its parent.
    lines = subprocess.run(["ps", "-eo", "pid=,ppid=,stat=,args="], capture_output=True, text=True).stdout.splitlines()
    mark = f"REGROW_TEST_MARK={os.environ['REGROW_TEST_MARK']}".encode()
    for line in lines:
        number, parent, state, command = line.split(None, 3)
        try:
            ours = mark in open(f"/proc/{number}/environ", "rb").read().split(b"\\0")
        except OSError:
            continue
        if ours and state[0] not in "ZX" and "resource_tracker" not in command and not command.startswith("ps "):
            if int(parent) == os.getpid() or "sleep 100" in command or "square" in command:
                yield line


def leave():
    # A pool that nobody closes, a loader in use, a daemon of a shell, one in a session of its own, one that will not hear.
    import torch

    KEPT.append(mp.get_context("fork").Pool(2, setproctitle, ("square",)))
    KEPT.append(iter(torch.utils.data.DataLoader(Squares(), num_workers=1, persistent_workers=True)))
    subprocess.run(["sh", "-c", "sleep 1001 & setsid sleep 1002 & (trap '' TERM; sleep 1003; sleep 1004) &"])
    while len(list(left_behind())) < 7:
        time.sleep(0.05)


def setproctitle(title):
    import ray

    ray._raylet.setproctitle(title)


def train(trial):
    print("LEFT", list(left_behind()))
    if trial.number == 2:
        if trial.attempt == 1:
            leave()
            os.kill(os.getpid(), signal.SIGKILL)
        return [trial.report({"score": 1.0}) for _ in trial.steps()]
    for way, works in ways(trial):
        print(f"WAY {way}: {works}")
    if (child := os.fork()) == 0:
        return
    print(f"WAY a fork that comes back: {os.waitpid(child, 0)[1] == 0}")
    if trial.number == 0:
        leave()
    print(f"WORKER {os.getpid()}")
    for step in trial.steps():
        trial.report({"score": 1.0})
"""


def test_all_ways_to_start_processes_work_in_a_trial_and_in_the_next_one_of_the_same_worker(
    desk: Desk,
) -> None:
    file = desk.write(
        "ways", train=EVERY_WAY, trials=3, concurrency=1, max_steps=1, resources={"cpu": 2}
    )
    desk.run("run", file)
    workers = set()
    for trial in (0, 1):
        said = desk.look("logs", "ways", trial)
        ways = dict(re.findall(r"WAY (.*): (True|False)$", said, re.MULTILINE))
        assert set(ways.values()) == {"True"}, said
        assert len(ways) == (14, 11)[trial], said
        for turn in range(20):  # once each
            assert len(re.findall(rf" child {turn}$", said, re.MULTILINE)) == 1, said
            assert len(re.findall(rf" child {turn} to stderr$", said, re.MULTILINE)) == 1, said
            assert len(re.findall(rf"child {turn} as a warning$", said, re.MULTILINE)) == 1, said
        assert "hand what it found back" in said
        workers |= set(re.findall(r"WORKER (\d+)", said))
        assert re.findall(r"LEFT (.*)", said) == ["[]"], said
    assert len(workers) == 1
    # A worker that was killed: what it left is ended before the next attempt begins.
    assert re.findall(r"LEFT (.*)", desk.look("logs", "ways", 2, "--attempt", 2)) == ["[]"]
    assert [a["outcome"] for a in desk.show("ways")["trials"][2]["attempts"]] == ["lost", "done"]
    assert await_no_process(desk.folder) == []
