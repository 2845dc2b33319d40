"""The task runner of regrow's flow, usable in any Prefect flow: the engine runs in the flow's
process, the bodies of tasks run on Ray.
"""

from __future__ import annotations

from regrow.infra.prefect.task_runner import OffloadTaskRunner, remote_options

__all__ = ["OffloadTaskRunner", "remote_options"]
