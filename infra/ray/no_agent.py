"""Stands in for the dashboard's agent, without which no raylet runs (Ray 2.60), in a cluster that has no dashboard.

It says that there is none and ends with the raylet. Ray's own spends 1 s of CPU on imports to do the same. Standard library only.
"""

import os
import sys
from pathlib import Path

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
"""Files in which the raylet waits to be told them."""


def main() -> None:
    """Write -1 for each port, then wait until the raylet has closed the pipe by which its agents know that it lives."""
    for port in PORTS:
        file = Path(sys.argv[1]) / f"{port}_{os.environ['RAY_NODE_ID']}"
        partial = file.with_name(f".{file.name}.partial")
        partial.write_text("-1")
        partial.replace(file)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
