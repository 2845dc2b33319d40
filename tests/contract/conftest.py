"""A server whose users have different rights, and a harmful proxy before it."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator

import botocore.session
import pytest

from regrow.infra.local import s3_server
from tests.conftest import guarded_s3_server
from tests.contract.behind_proxy import READER
from tests.contract.s3_proxy import Proxy, proxied

# A store behind another proxy has a session of its own: each would read botocore's description of S3 anew.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.S3Server]:
    """A server of this module's own, which knows a second user who may only read."""
    folder = tmp_path_factory.mktemp("s3")
    s3_server._make_credentials(folder)
    file = folder / "identities.json"
    known = json.loads(file.read_text())
    keys = [{"accessKey": READER[0], "secretKey": READER[1]}]
    known["identities"].append({"name": "reader", "credentials": keys, "actions": ["Read", "List"]})
    file.write_text(json.dumps(known))
    with guarded_s3_server(folder) as started:
        yield started


@pytest.fixture
def environment(server: s3_server.S3Server, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(server.credentials))
    return monkeypatch


@pytest.fixture
def proxy(server: s3_server.S3Server, environment: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxied(server.port) as between:
        yield between
