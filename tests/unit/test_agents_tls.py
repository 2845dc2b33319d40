"""TLS between agents: a machine takes the leader's setting, and its own paths before the leader's."""

from __future__ import annotations

from pathlib import Path

import pytest

from regrow.apps.agent import tls
from regrow.tasks.errors import UserError

NAMES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")


def test_a_follower_has_the_leaders_setting_and_its_own_paths(tmp_path: Path) -> None:
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    theirs.touch()
    own.touch()
    leader = tls.of_this_machine({"RAY_USE_TLS": "1", **dict.fromkeys(NAMES, str(theirs))})
    assert tls.like_the_leader(leader, {}) == leader
    mixed = tls.like_the_leader(leader, {"RAY_TLS_SERVER_KEY": str(own)})
    assert mixed == {**leader, "RAY_TLS_SERVER_KEY": str(own)}
    off = tls.of_this_machine({"RAY_USE_TLS": "0"})
    assert tls.like_the_leader(off, {"RAY_USE_TLS": "1"}) == {"RAY_USE_TLS": "0"}


def test_a_certificate_that_is_not_here_is_named(tmp_path: Path) -> None:
    there = {"RAY_USE_TLS": "1", **dict.fromkeys(NAMES, str(tmp_path / "missing.pem"))}
    with pytest.raises(UserError, match=r"RAY_TLS_SERVER_CERT names no file here: .*missing\.pem"):
        tls.like_the_leader(there, {})
