"""Events of task runs that a server which is away cannot take: kept where there is a server, and
nobody else's affair.
"""

from __future__ import annotations

import pytest
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, temporary_settings

from regrow.infra.prefect.private import CHECKPOINT_SECONDS, events_kept

OURS = (
    PrefectEventsClient,
    (("reconnection_attempts", 1), ("checkpoint_interval", CHECKPOINT_SECONDS)),
)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:4200/api", OURS),
        # Prefect's engine starts a server for the flow: a client of ours would not know where
        (None, None),
        ("https://api.prefect.cloud/api", None),
    ],
)
def test_events_are_kept_for_a_server_whose_address_is_known(
    url: str | None, expected: object
) -> None:
    with temporary_settings({PREFECT_API_URL: url}), events_kept():
        assert EventsWorker._client_override == expected
    assert EventsWorker._client_override is None
