"""A run on a machine as many are: a proxy for everything, a long TMPDIR, few open files, a script
that parses its arguments.
"""

from __future__ import annotations

import subprocess
import sys

from tests.system.conftest import Desk, await_no_process

SCRIPT = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--scale", type=float, default=2.0)
at_import = parser.parse_args()

def train(trial):
    for step in trial.steps():
        trial.report({"score": trial.config["x"] * at_import.scale * parser.parse_args().scale})
    sys.exit(0)
"""
FEW_FILES = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)); os.execv(sys.argv[1], sys.argv[1:])"


def test_a_proxy_a_long_tmpdir_few_files_and_a_script_that_parses_arguments_and_exits(
    desk: Desk,
) -> None:
    scratch = desk.folder / ("a-long-name-of-a-job-" * 5)
    scratch.mkdir()
    proxy = "http://192.0.2.1:3128"  # of the block for documentation: nothing answers
    command = [sys.executable, "-m", "regrow", "run", desk.write("plain", train=SCRIPT)]
    done = subprocess.run(
        [sys.executable, "-c", FEW_FILES, *map(str, command)],
        cwd=desk.folder,
        check=False,
        timeout=240,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**desk.environment, "http_proxy": proxy, "https_proxy": proxy, "TMPDIR": str(scratch)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plain finished: 4 of 4 trials (4 done)" in done.stdout
    assert {event["outcome"] for event in desk.events("plain") if event["event"] == "ended"} == {
        "done"
    }
    assert await_no_process(desk.folder) == []
