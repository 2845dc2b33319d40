"""What a forked child gets back, and what becomes of the processes that a worker has started. Each
in a process of its own.
"""

from __future__ import annotations

import os

import pytest

from tests.unit.fresh import printed

HEAD = """
import multiprocessing as mp, os, signal, sys, threading, time
from regrow.infra.ray.notices import NodeNotices
from regrow.flows.interrupts import catching_interrupts

def nothing(why, node):
    pass

def ends(number=signal.SIGTERM):
    child = mp.get_context("fork").Process(target=time.sleep, args=(100,))
    child.start()
    os.kill(child.pid, number)
    child.join(20)
    if child.exitcode is None:
        child.kill()
    return child.exitcode

def raises(number, frame):
    raise SystemExit("the handler before, as Ray's")

signal.signal(signal.SIGTERM, raises)
"""


def said_by(code: str) -> list[str]:
    return printed(HEAD + code, env={**os.environ, "REGROW_CLOUD": "none"}).splitlines()


def test_a_child_forked_within_a_trial_dies_of_sigterm_whichever_thread_has_forked_it_and_however_early_it_comes() -> (
    None
):
    said = said_by("""
with NodeNotices().listen(nothing):
    print(*(ends() for _ in range(50)))
    thread = threading.Thread(target=lambda: print(ends()))
    thread.start()
    thread.join()
    print(signal.getsignal(signal.SIGTERM) is raises)
print(signal.getsignal(signal.SIGTERM) is raises)
""")
    assert said == [" ".join(["-15"] * 50), "-15", "False", "True"]


def test_a_handler_that_the_trainable_has_set_itself_stays_in_its_children() -> None:
    said = said_by("""
def own(number, frame):
    os._exit(7)

with NodeNotices().listen(nothing):
    signal.signal(signal.SIGTERM, own)
    print(ends())
""")
    assert said == ["7"]


@pytest.mark.parametrize(("number", "end"), [("SIGTERM", -15), ("SIGINT", -2)])
def test_a_child_forked_while_an_experiment_runs_here_dies_of_them(number: str, end: int) -> None:
    said = said_by(f"""
with catching_interrupts() as asked:
    print(ends(signal.{number}), asked.begun)
""")
    assert said == [f"{end} None"]


def test_a_forked_child_ends_well_though_prefect_waits_for_its_threads_at_an_end() -> None:
    said = said_by("""
from prefect._internal.concurrency.services import QueueService

class Service(QueueService):
    async def _handle(self, item):
        pass

Service.instance().send(1)
child = mp.get_context("fork").Process(target=print, args=("child",))
child.start()
child.join()
print(child.exitcode)
""")
    assert said == ["child", "0"]


def test_all_that_a_process_has_started_is_ended_but_for_the_cleaner_of_shared_memory() -> None:
    said = said_by("""
import subprocess
from multiprocessing import resource_tracker
from regrow.infra.machine import descendants

before = signal.getsignal(signal.SIGCHLD)
descendants.adopt()
resource_tracker.ensure_running()
pool = mp.get_context("fork").Pool(2)
subprocess.run(["sh", "-c", "sleep 100 & setsid sleep 100 & (trap '' TERM; sleep 100; sleep 100) &"])
server = mp.get_context("forkserver")
sleeper = server.Process(target=time.sleep, args=(100,))
sleeper.start()
me = os.getpid()
print(len(descendants._below(me, descendants._processes())))
descendants.end_children()
print(descendants._below(me, descendants._processes()), signal.getsignal(signal.SIGCHLD) is before)
left = [process for process, one in descendants._processes().items() if one.parent == me and not one.dead]
print(left == [resource_tracker._resource_tracker._pid])
for method in ("fork", "forkserver"):
    with mp.get_context(method).Pool(1) as pool:
        print(pool.map(abs, [-1]))
descendants.end_children()
""")
    assert said == ["8", "[] True", "True", "[1]", "[1]"]


def test_what_a_killed_worker_left_is_found_by_the_next_one_and_nothing_else_is() -> None:
    # A raylet with two workers, of which one is killed; what is not theirs has the same variables
    # but for the raylet.
    said = said_by("""
import subprocess
from regrow.infra.machine import descendants

worker = '''
import multiprocessing as mp, os, subprocess, sys, time
mp.set_start_method("fork")
child = mp.Process(target=time.sleep, args=(100,))
child.start()
subprocess.Popen(["setsid", "sleep", "100"])
print(child.pid, flush=True)
time.sleep(100)
'''
marks = {**os.environ, "RAY_RAYLET_PID": str(os.getpid()), "REGROW_TRIAL": "1"}
another = 10**9 + os.getpid()

def start(env):
    process = subprocess.Popen([sys.executable, "-c", worker], env=env, stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())

def alive(number):
    one = descendants._processes().get(number)
    return one is not None and not one.dead

(killed, orphan), (works, its), (other, foreign) = start(marks), start(marks), start({**marks, "RAY_RAYLET_PID": str(another)})
killed.kill(), killed.wait(), other.kill(), other.wait()
look = "from regrow.infra.machine import descendants; print(len(descendants._orphans(int(__import__('os').environ['RAY_RAYLET_PID'])))); descendants.end_orphans()"
subprocess.run([sys.executable, "-c", look], env=marks, check=True)
print(alive(orphan), alive(its), alive(foreign), flush=True)
for process in descendants._orphans(another):
    os.kill(process, 9)
works.kill()
works.wait()
subprocess.run([sys.executable, "-c", look], env=marks, check=True)
""")
    assert said[1] == "False True True"
    assert (said[0], said[-1]) == ("2", "2")


def test_joblibs_pool_ends_with_an_attempt_and_the_next_attempt_has_its_own() -> None:
    said = said_by("""
from joblib import Parallel, delayed
from joblib.externals.loky import reusable_executor
from regrow.infra.machine import descendants
from regrow.tasks.attempt.training import end_process_pools

end_process_pools()
print(reusable_executor._executor)  # none is started for it
for _ in range(2):
    print(Parallel(n_jobs=2)(delayed(abs)(number) for number in (-1, 2, -3)))
    end_process_pools()
    descendants.end_children()
""")
    assert said == ["None", "[1, 2, 3]", "[1, 2, 3]"]
