"""What is set for our own processes on a machine with a proxy, a long TMPDIR or few files, and what is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from regrow.infra.machine.surroundings import FILES, direct, short_tmp
from regrow.tasks.errors import UserError

PROXY = "http://proxy.example:3128"


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "all_proxy"])
def test_loopback_goes_to_no_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {name: PROXY, **direct({name: PROXY})}.items():
        monkeypatch.setenv(variable, value)
    assert all(urllib.request.proxy_bypass(host) for host in ("127.0.0.1", "127.0.0.2", "localhost"))
    assert not urllib.request.proxy_bypass("example.com"), "the user's proxy is for all else"


def test_the_users_own_exceptions_stay() -> None:
    found = direct({"http_proxy": PROXY, "no_proxy": "intern.example, 127.0.0.1"})
    assert found["no_proxy"] == found["NO_PROXY"] == "intern.example,127.0.0.1,127.0.0.2,localhost,::1"


def test_nothing_is_set_without_a_proxy_or_where_none_is_used_for_anything() -> None:
    assert direct({}) == direct({"http_proxy": ""}) == direct({"http_proxy": PROXY, "NO_PROXY": "*"}) == {}


def test_a_long_tmpdir_is_not_for_sockets() -> None:
    assert short_tmp({}) == short_tmp({"TMPDIR": "/tmp"}) == {}
    assert short_tmp({"TMPDIR": "/scratch/slurm/jobs/1234567/a-long-name-of-a-job"}) == {"RAY_TMPDIR": "/tmp"}


def test_a_ray_tmpdir_of_the_users_stays_and_is_refused_where_it_is_too_long() -> None:
    assert short_tmp({"TMPDIR": "/x" * 40, "RAY_TMPDIR": "/scratch"}) == {}
    with pytest.raises(UserError, match=r"RAY_TMPDIR is '/x.*at most \d+ bytes; name a shorter one"):
        short_tmp({"RAY_TMPDIR": "/x" * 40})


def test_as_many_files_as_the_system_allows() -> None:
    code = (
        "import resource as r; from regrow.infra.machine.surroundings import raise_file_limit as f;"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (256, hard)); f(); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    soft, hard = map(int, done.stdout.split())
    assert soft == min(hard, FILES)


def test_the_embedded_prefect_server_starts_where_few_files_may_be_open(tmp_path: Path) -> None:
    code = (
        "import fcntl, resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, (256, 256));"
        "user = open(sys.argv[1], 'w'); fcntl.flock(user, fcntl.LOCK_SH);"  # without a user, it may end before it has printed
        "from pathlib import Path; from regrow.infra.prefect.process import Tenancy; Tenancy(Path(sys.argv[1])); print('held')"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "users"], capture_output=True, text=True, check=False)
    assert done.stdout == "held\n", done.stderr
