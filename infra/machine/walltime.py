"""When the batch job ends that this process belongs to."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime


def ends(environment: Mapping[str, str] = os.environ) -> float | None:
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
    ask = ["squeue", "--noheader", f"--job={job}", "--format=%e"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        answer = subprocess.run(
            ask,
            env={**environment, "SLURM_TIME_FORMAT": "standard"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20.0,
            check=True,
        )
        return datetime.fromisoformat(answer.stdout.strip()).timestamp()
    return None
