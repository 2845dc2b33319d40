"""The task runner of regrow's own flow, for any Prefect flow: the engine runs in the flow's process, bodies of tasks on Ray."""

from __future__ import annotations

from regrow.infra.prefect.task_runner import OffloadTaskRunner, remote_options

__all__ = ["OffloadTaskRunner", "remote_options"]
