"""What follows the loss of a session's cluster: the wait for another one, on which Prefect retries
the flow run.
"""

from __future__ import annotations

import os

from prefect import get_client
from prefect.client.schemas.objects import FlowRunPolicy

from regrow.flows.interrupts import Interrupts
from regrow.flows.session import Session
from regrow.infra.ray import cluster
from regrow.tasks.errors import UserError

HEAD_SECONDS = 600.0
"""Seconds to wait for the user's cluster to answer again after it was lost."""


def await_another_cluster(session: Session, error: Exception, asked: Interrupts) -> None:
    """Let Prefect retry the flow run on the next cluster. Raises UserError if none comes."""
    if os.environ.get("RAY_ADDRESS"):
        session.say(
            f"{error}; waiting up to {HEAD_SECONDS / 60:.0f} minutes for a cluster at RAY_ADDRESS"
        )
        if (
            not cluster.await_head(HEAD_SECONDS, lambda: asked.begun is not None)
            and asked.begun is None
        ):
            raise UserError(
                "no Ray cluster came back at RAY_ADDRESS; start one, then `regrow resume` continues"
            ) from error
    if asked.begun is None:
        session.say(f"{error}; the experiment continues from its log")
    if session.running is None:
        return
    with get_client(sync_client=True) as client:
        # Retries are granted here one by one: `@flow(retries=)` would also retry a user's mistake,
        # and would be used up after some resumptions, which count as retries.
        count = client.read_flow_run(session.running).run_count
        client.update_flow_run(
            session.running, empirical_policy=FlowRunPolicy(retries=count, retry_delay=0)
        )
