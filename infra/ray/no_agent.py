"""Stand-in for the dashboard agent, without which no raylet runs (Ray 2.60), in a cluster without a
dashboard.

It announces that there is no agent, and ends with the raylet. Ray's agent spends 1 s of CPU on
imports to do the same. Standard library only.
"""

import os
import sys
from pathlib import Path

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
"""Files in which the raylet expects the agent's ports."""


def main() -> None:
    """Write -1 for each port, then wait until the raylet closes the pipe that it keeps open for its
    agents.
    """
    for port in PORTS:
        file = Path(sys.argv[1]) / f"{port}_{os.environ['RAY_NODE_ID']}"
        partial = file.with_name(f".{file.name}.partial")
        partial.write_text("-1")
        partial.replace(file)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
