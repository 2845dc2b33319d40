"""The task runner of regrow's flow, for any Prefect flow: the bodies of tasks run on Ray."""

from __future__ import annotations

from regrow.infra.prefect.task_runner import OffloadTaskRunner, remote_options

__all__ = ["OffloadTaskRunner", "remote_options"]
