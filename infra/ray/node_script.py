"""Runs `ray start`, without the parts that an agent's node does not use; see `own_node.py`.

Slurm and systemd send SIGTERM to all processes of a job at once. Ray's would end at that, and with
them what the trials still have to save. So SIGTERM is blocked here and in Ray's processes: the
agent decides, and asks for the end in order by `LEAVE`. Workers take it as ever (setup_worker.py).
"""

from __future__ import annotations

import signal
import sys

from regrow.infra.ray import private

LEAVE = signal.SIGQUIT
"""Signal that drains the node and ends it: one that nobody sends to all processes of a job."""

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with (
        private.lean(),
        private.in_own_session((), plain=False),
        private.ended_by(LEAVE),
    ):
        private.start_node(sys.argv[1:])
