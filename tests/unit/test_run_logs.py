"""Which answers of Prefect's server mean that it may take the same lines later."""

from __future__ import annotations

import httpx
import pytest

from regrow.infra.prefect.run_logs import is_away


def refusal(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://127.0.0.1/api/logs")
    return httpx.HTTPStatusError(
        "refused", request=request, response=httpx.Response(status, request=request)
    )


@pytest.mark.parametrize(
    "error",
    [httpx.ConnectError("no"), httpx.ReadTimeout("slow"), refusal(500), refusal(503), refusal(429)],
)
def test_it_is_away(error: httpx.HTTPError) -> None:
    assert is_away(error)


@pytest.mark.parametrize("status", [401, 404, 422])
def test_it_refuses(status: int) -> None:
    assert not is_away(refusal(status))
