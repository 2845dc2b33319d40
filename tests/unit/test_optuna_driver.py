"""The process that drives the session of a study in a thread."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tests.unit.test_processes import runs

SCRIPT = """
import json, os, subprocess, sys, time

spec = {"name": "a", "trainable": "a:b", "space": {"x": {"uniform": [0, 1]}}, "metric": "m", "mode": "max", "trials": 1}
request = {"name": "a", "spec": spec, "root": "nowhere", "code": "", "hold": ""}
program = "\\n".join((
    "import time, regrow.experiment",
    "regrow.experiment.run_session = lambda **_: print('driving', flush=True) or time.sleep(600)",
    "from regrow.integrations.optuna.driver import main",
    "main()",
))
driver = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
driver.stdin.write(json.dumps([request]).encode() + b"\\n")
driver.stdin.flush()
driver.stdout.readline()
if (child := os.fork()) == 0:  # as a data loader does; it holds the driver's pipe
    time.sleep(60)
    os._exit(0)
print(driver.pid, child, flush=True)
time.sleep(100)
"""


def test_it_ends_with_its_script_also_where_a_child_of_the_script_lives() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        driver, child = (int(word) for word in script.stdout.readline().split())
        script.kill()
        while runs(driver) and runs(child):
            time.sleep(0.02)
        assert runs(child)
        os.kill(child, signal.SIGKILL)
