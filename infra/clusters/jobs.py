"""Experiments as Ray Jobs on a cluster: submitted, followed and listed by a tunnel to the head."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.infra.clusters.provider import DASHBOARD_PORT, Provider
from regrow.infra.machine.confidential import confidential, excludes, told
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.process.variables import put, put_back

_OVERRIDING = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
"""Variables that Ray's client would use as the address in place of ours."""
_EXPERIMENT, _STATE = "regrow.experiment", "regrow.state"
_TOO_LARGE = r"status code 413|exceeds the maximum size"
"""Messages of Ray about a project that is too large: of its dashboard, or of its client."""
_NAMED = 3
"""How many of its files are named then."""
_OF_RAY = re.compile(
    r"^(?:\S+ \S+\tINFO job_manager\.py.*|Running entrypoint for job .*)\n", re.MULTILINE
)
"""Lines that Ray writes at the beginning of a job's output."""


def about(experiment: str, state: str) -> dict[str, str]:
    """Return the metadata of an experiment in Ray's list of jobs. `state`: its state root."""
    return {_EXPERIMENT: experiment, _STATE: state}


def under_way(port: int, token: str) -> bool:
    """Return whether a job or a driver has not ended, by the dashboard at a port of this machine.
    Raises OSError or ValueError if it does not answer.
    """
    import requests

    headers = {"Authorization": f"Bearer {token}"}
    answer = requests.get(f"http://127.0.0.1:{port}/api/jobs/", headers=headers, timeout=10)
    answer.raise_for_status()
    return any(job.get("status") in ("PENDING", "RUNNING") for job in answer.json())


def too_large(project: Path) -> str:
    """Return the message about a project that is too large for Ray."""
    files = [file for file in project.rglob("*") if file.is_file() and not file.is_symlink()]
    largest = sorted(
        ((file.stat().st_size, str(file.relative_to(project))) for file in files), reverse=True
    )[:_NAMED]
    told = ", ".join(f"{name} ({size / 1e6:,.0f} MB)" for size, name in largest)
    hint = (
        "name what is not needed in a .gitignore there, and have data come by a bucket, a shared"
        " folder or `mounts` of the cluster file"
    )
    return (
        f"the project {project} is more than the 100 MB that Ray takes, packed; its largest files:"
        f" {told}; {hint}"
    )


class Away(RegrowError):
    """The cluster's head does not answer. The second argument, if any: see `Jobs.follow`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job.

    Attributes:
        id: Ray's submission id.
        experiment: its experiment.
        status: Ray's status.
        state: the experiment's state root.
        exit_code: of its command; None: not known, or it has not ended.

    """

    id: str
    experiment: str
    status: str
    state: str = ""
    exit_code: int | None = None

    @property
    def ended(self) -> bool:
        """Whether its status is final."""
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")


class Jobs:
    """The experiments of one cluster. All methods raise Away if the head does not answer."""

    def __init__(self, provider: Provider, token: str) -> None:
        self._provider, self._token = provider, token

    def submit(
        self,
        experiment: str,
        entrypoint: str,
        project: Path,
        environment: Mapping[str, str],
        *,
        state: str,
        say: Callable[[str], None],
    ) -> str:
        """Start an experiment by the command `entrypoint`. Returns the job's id. Raises UserError
        if the project is too large.

        `project`: folder whose files it gets, except confidential ones, of which `say` tells.
        """
        left_out = confidential(project)
        if left_out:
            say(told(left_out))
        chosen = f"regrow-{experiment}-{uuid.uuid4().hex[:8]}"
        with self._client() as client:
            try:
                return str(
                    client.submit_job(
                        entrypoint=entrypoint,
                        submission_id=chosen,
                        metadata=about(experiment, state),
                        runtime_env={
                            "working_dir": str(project),
                            "env_vars": dict(environment),
                            "excludes": excludes(left_out),
                        },
                    )
                )
            except (RuntimeError, ValueError) as error:
                if not re.search(_TOO_LARGE, str(error)):
                    raise
                raise UserError(too_large(project)) from None

    def all(self) -> list[Job]:
        """Return the jobs submitted since the cluster was started, oldest first."""
        with self._client() as client:
            jobs = sorted(
                (one for one in client.list_jobs() if one.submission_id),
                key=lambda one: one.start_time or 0,
            )
            return [_job(one) for one in jobs]

    def running(self, experiment: str) -> Job | None:
        """Return the job that runs an experiment now; None if there is none."""
        return next(
            (job for job in self.all() if job.experiment == experiment and not job.ended), None
        )

    def stop(self, job: str) -> None:
        """Ask a job to end."""
        with self._client() as client:
            client.stop_job(job)

    def follow(self, job: str, show: Callable[[str], None], shown: int) -> tuple[Job, int]:
        """Show what the job prints until it ends, except the first `shown` characters.

        Returns the ended job, and the number of characters so far. Raises Away, whose second
        argument is that number.
        """
        seen = 0
        try:
            with self._client() as client:

                async def tail() -> None:
                    nonlocal seen
                    async for chunk in client.tail_job_logs(job):
                        if new := chunk[max(shown - seen, 0) :]:
                            show(_OF_RAY.sub("", new))
                        seen += len(chunk)

                asyncio.run(tail())
                return _job(client.get_job_info(job)), max(seen, shown)
        except Away as away:
            raise Away(away.args[0], max(seen, shown)) from away

    @contextmanager
    def _client(self) -> Iterator[Any]:
        from aiohttp import ClientError
        from ray.job_submission import JobSubmissionClient

        hidden = put(dict.fromkeys(_OVERRIDING, ""))
        put_back(dict.fromkeys(_OVERRIDING))
        logging.disable(logging.INFO)  # Ray logs each upload and each connection
        try:
            with self._provider.tunnel(DASHBOARD_PORT) as port:
                yield JobSubmissionClient(
                    f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {self._token}"}
                )
        except UserError:
            raise
        except (RuntimeError, OSError, ClientError, RegrowError) as error:
            raise Away(f"no cluster is up, or its head does not answer: {error}") from error
        finally:
            logging.disable(logging.NOTSET)
            put_back(hidden)


def _job(info: Any) -> Job:
    told = info.metadata or {}
    return Job(
        id=str(info.submission_id),
        status=str(info.status.value),
        exit_code=info.driver_exit_code,
        experiment=told.get(_EXPERIMENT, ""),
        state=told.get(_STATE, ""),
    )
