"""Cluster files, what is made of them, and what machines say: all that needs no machine."""

from __future__ import annotations

import os
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from regrow.cli.cluster import order
from regrow.flows.agents import RunRequest, check_state
from regrow.infra.clusters import shipping
from regrow.infra.clusters.clouds.fleet_engine import described
from regrow.infra.clusters.cluster_file import read_cluster, schema
from regrow.infra.clusters.description import Aws, Cluster, Ssh, Workers
from regrow.infra.clusters.folder import variables
from regrow.infra.clusters.prices import Prices
from regrow.infra.clusters.ssh import Remote
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.search.spec import Spec
from regrow.tasks.errors import UserError
from tests.unit.fresh import printed

AWS: dict[str, Any] = {
    "name": "sweep",
    "on": "aws",
    "region": "us-west-2",
    "workers": [
        {"type": "g5.xlarge", "market": "spot", "most": 30},
        {"type": "g5.xlarge", "most": 8},
    ],
}
SSH: dict[str, Any] = {
    "name": "lab",
    "on": "ssh",
    "user": "me",
    "machines": ["10.0.0.1", "10.0.0.2"],
}
KUBERNETES: dict[str, Any] = {
    "name": "pods",
    "on": "kubernetes",
    "image": "x",
    "workers": [{"name": "w", "cpu": 1, "memory": "1GiB", "most": 1}],
}


def changed(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**base, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            changed(AWS, on=...),
            "on: is missing; add `on:` with one of aws, gcp, azure, ssh, kubernetes",
        ),
        (changed(AWS, on="awss"), "on: \"awss\": is no place for a cluster; did you mean 'aws'?"),
        (changed(AWS, region=...), "region: is missing; add `region:`"),
        (
            changed(AWS, namespace="x"),
            'namespace: "x": is for clusters on kubernetes; leave it out',
        ),
        (changed(AWS, worker=[]), "worker: []: unknown key; did you mean 'workers'?"),
        (changed(AWS, workers=[]), "workers: []: is empty; write at least one"),
        (
            changed(AWS, workers=[{"type": "a", "mst": 3}]),
            "workers.0.mst: 3: unknown key; did you mean 'most'?",
        ),
        (
            changed(AWS, workers=[{"type": "a", "most": 3, "market": "spo"}]),
            "workers.0.market: \"spo\": is not 'spot' or 'on-demand'",
        ),
        (
            changed(AWS, expires="5 parsecs"),
            'expires: "5 parsecs": is not a number; write seconds, or text such as "10min"',
        ),
        (
            changed(AWS, name="A_b"),
            'name: "A_b": is no name of a cluster; write at most 40 lower-case letters',
        ),
        (changed(AWS, env={"A B": "secret"}), 'env.A B: "***": is no name of a variable'),
        (changed(SSH, expires="5min"), 'expires: "5min": is for clusters on aws or gcp'),
        (changed(SSH, ports="20000"), 'ports: "20000": is no range of 40 ports'),
        (changed(SSH, ports="20000-20010"), 'ports: "20000-20010": is no range of 40 ports'),
        (changed(SSH, ports="20100-90000"), 'ports: "20100-90000": is no range of 40 ports'),
        (
            changed(SSH, user="-oProxyCommand=touch x"),
            'user: "-oProxyCommand=touch x": is no name of a user',
        ),
        (changed(AWS, user="a b"), 'user: "a b": is no name of a user'),
        (
            changed(SSH, machines=["-oProxyCommand=touch x"]),
            'machines.0: "-oProxyCommand=touch x": is no address of a machine',
        ),
        (changed(SSH, machines=["x", "-Fx"]), 'machines.1: "-Fx": is no address of a machine'),
        (
            changed(SSH, machines=["x; touch y"]),
            'machines.0: "x; touch y": is no address of a machine',
        ),
        (changed(SSH, machines=["x\n-oa"]), 'machines.0: "x\\n-oa": is no address of a machine'),
        (
            changed(SSH, python="-c"),
            'python: "-c": begins with what a command line could take for something else',
        ),
        (changed(SSH, shared=["--x"]), 'shared.0: "--x": begins with'),
        (changed(AWS, region="--profile=x"), 'region: "--profile=x": begins with'),
        (
            changed(AWS, zones=["a\x1b]0;x"]),
            'zones.0: "a\\u001b]0;x": has a line end or another control character',
        ),
        (changed(KUBERNETES, context="--as=root"), 'context: "--as=root": begins with'),
        (changed(KUBERNETES, namespace="-n"), 'namespace: "-n": is no name'),
        (changed(SSH, cpus=10**6), "cpus: 1000000: is above 10000"),
        (changed(SSH, machines=["a", "a"]), 'machines.1: "a": is named twice'),
        (changed(SSH, python="/x", lock="y"), 'lock: "y": stands beside python'),
    ],
)
def test_a_mistake_is_told_with_its_key_and_what_to_write(data: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError) as wrong:
        Cluster.parse(data)
    assert str(wrong.value).startswith(told)


@pytest.mark.parametrize(
    "address",
    ["node-1.lab.example.org", "10.0.0.7", "fe80::1%eth0", "2001:db8::7", "_gpu", "[::1]"],
)
def test_names_and_addresses_of_every_kind_are_taken(address: str) -> None:
    for user in ("me", "svc_train", "first.last", "a@realm", "m-1", "machine$"):
        assert Cluster.parse(
            changed(SSH, user=user, machines=[address], setup=["-x"], env={"A": "-b\n"})
        )


def test_no_option_of_ssh_comes_after_the_name_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ssh").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    remote = Remote(
        address="-oProxyCommand=x", user="-Fx", key=tmp_path / "k%", known_hosts=tmp_path / "a b%"
    )
    words = remote.run("true").stdout.decode().splitlines()
    assert words[words.index("--") + 1 :] == ["-Fx@-oProxyCommand=x", "bash -lc true"]
    assert f'UserKnownHostsFile="{tmp_path}/a b%%"' in words
    assert f'IdentityFile="{tmp_path}/k%%"' in words


@pytest.mark.parametrize("data", [AWS, SSH])
def test_it_says_the_same_when_it_is_written_and_read_again_and_the_schema_takes_it(
    data: dict[str, Any],
) -> None:
    cluster = Cluster.parse(data)
    assert Cluster.parse(cluster.to_json()) == cluster
    jsonschema.validate(data, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**data, "worker": []}, schema())


def test_a_file_has_its_line_and_other_files_lie_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("name: lab\non: ssh\nuser: me\nmachines: [a, b]\n\nlock: lock.txt\n")
    with pytest.raises(SpecError, match=r"cluster\.yaml:6: lock: .*there is no file"):
        read_cluster(file)
    (tmp_path / "lock.txt").write_text("numpy==2.0\n")
    read = read_cluster(file)
    assert isinstance(read, Ssh)
    assert read.lock == str(tmp_path / "lock.txt")
    (tmp_path / "loop").symlink_to("loop")
    file.write_text(file.read_text().replace("lock.txt", "loop"))
    with pytest.raises(SpecError, match=r"cluster\.yaml:6: lock: .*there is no file"):
        read_cluster(file)
    file.write_text(file.read_text().replace("loop", "~nobody-of-this-name/x"))
    with pytest.raises(UserError, match="write the whole path"):
        read_cluster(file)


def test_variables_come_from_here_and_one_that_is_not_set_is_told() -> None:
    cluster = Cluster.parse(changed(SSH, env={"A": "plain", "B": "$THERE", "C": "$NOT"}))
    with pytest.raises(SpecError, match=r'env\.C: "\$NOT": is not set here; export NOT'):
        variables(cluster, {"THERE": "secret"})
    assert variables(cluster, {"THERE": "secret", "NOT": "x"}) == {
        "A": "plain",
        "B": "secret",
        "C": "x",
    }
    for value in ("two\nlines", "two\udcff"):
        with pytest.raises(SpecError, match="put it into a file") as wrong:
            variables(cluster, {"THERE": value, "NOT": "x"})
        assert "two" not in str(wrong.value)


def test_the_wheel_has_the_whole_package_and_can_be_imported_from(tmp_path: Path) -> None:
    archive = zipfile.ZipFile(BytesIO(shipping.wheel()))
    names = archive.namelist()
    assert {
        "regrow/search/spec/spec.py",
        "regrow/infra/clusters/unit.py",
        "regrow/cli/app.py",
        "regrow/py.typed",
    } <= {*names}
    assert not [name for name in names if "__pycache__" in name]
    archive.extractall(tmp_path)
    code = "import regrow.search.spec as s; print(s.__file__)"
    said = printed(code, env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    assert said.startswith(str(tmp_path))


def test_what_was_installed_from_a_folder_cannot_be_had_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listed = shipping.requirements(None).decode().splitlines()
    assert any(line.startswith("ray==") for line in listed)
    assert not any(line.startswith("regrow") for line in listed)

    class Local:
        metadata = {"Name": "My_Own"}  # noqa: RUF012
        version = "1"

        def read_text(self, _: str) -> str:
            return '{"url": "file:///home/me/own"}'

    monkeypatch.setattr("importlib.metadata.distributions", lambda: [Local()])
    with pytest.raises(UserError, match="my-own was installed from file:///home/me/own"):
        shipping.requirements(None)


def test_prices_are_read_and_a_wrong_one_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(
        "InstanceType,Region,Price,SpotPrice\ng5.xlarge,us-west-2,1.006,0.40\ng5.xlarge,us-west-2,1.006,0.35\nm6i.large,us-west-2,0.096,\n"
    )
    prices = Prices(file)
    assert prices.of("g5.xlarge", "us-west-2", "spot") == 0.35
    assert prices.of("m6i.large", "us-west-2", "spot") is None
    assert Prices(None).of("m6i.large", "us-west-2", "on-demand") is None
    file.write_text("InstanceType,Region,Price,SpotPrice\na,b,cheap,\n")
    with pytest.raises(UserError, match=r"prices\.csv:2: Price: 'cheap' is not a number"):
        Prices(file)
    file.write_text("type,price\n")
    with pytest.raises(UserError, match="has no column InstanceType"):
        Prices(file)


def test_prices_in_the_cluster_file_hold_in_every_region() -> None:
    cluster = Cluster.parse(
        {
            "name": "sweep",
            "on": "aws",
            "region": "us-west-2",
            "workers": [{"type": "g5.xlarge", "market": "spot", "most": 2}],
            "prices": [{"type": "g5.xlarge", "on_demand": 1.006, "spot": 0.4}],
        }
    )
    assert isinstance(cluster, Aws)
    prices = Prices.of_cluster(cluster)
    assert prices.of("g5.xlarge", "us-west-2", "spot") == 0.4
    assert prices.of("g5.xlarge", "eu-west-1", "on-demand") == 1.006
    assert prices.of("m6i.large", "us-west-2", "on-demand") is None
    assert Cluster.parse(cluster.to_json()) == cluster
    with pytest.raises(SpecError, match=r"prices\.0\.spot: -1: is below 0"):
        Cluster.parse({**cluster.to_json(), "prices": [{"type": "g5.xlarge", "spot": -1}]})


def test_what_it_costs_at_most_is_shown_before_anything_starts() -> None:
    steady = Workers(type="m6i.large", most=1)
    spot = Workers(type="g5.xlarge", market="spot", most=30)
    assert described([steady, spot], [0.096, 0.35]) == [
        "  m6i.large, on-demand, 0.10 USD an hour",
        "  up to 30 x g5.xlarge, spot, 10.50 USD an hour",
        "  at most 10.60 USD an hour",
    ]
    assert described([steady, spot], [0.0, 0.0])[1:] == ["  up to 30 x g5.xlarge, spot"]
    unknown = described([steady, spot], [0.096, None])[-1]
    assert unknown.startswith("  what g5.xlarge costs is not known")


def test_a_state_that_the_cluster_does_not_see_is_refused(tmp_path: Path) -> None:
    cluster = Cluster.parse(changed(SSH, shared=[str(tmp_path)]))
    check_state(Places.at(str(tmp_path / "state")), cluster, "state")
    check_state(Places.at("s3://bucket/x"), cluster, "state")
    with pytest.raises(
        SpecError, match="is on this machine, where the cluster does not see it; give --state s3://"
    ):
        check_state(Places.at("/elsewhere"), cluster, "--state")


def test_the_project_holds_the_code_and_the_specification(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    data = {
        "name": "a",
        "trainable": "work.py:train",
        "space": {"x": {"uniform": [0, 1]}},
        "metric": "m",
        "mode": "min",
        "trials": 1,
    }
    spec = Spec.parse({**data, "working_dir": str(tmp_path)})
    what = RunRequest(
        spec=spec,
        file=tmp_path / "sweeps" / "a b.yaml",
        places=Places.at("s3://bucket/x"),
        name="b",
        trials=3,
    )
    assert what.project == tmp_path


@pytest.mark.parametrize(
    ("own", "writes"), [("", 0.005), ("store_prices: {per_1000_writes: 1}", 1)]
)
def test_prices_of_the_store_are_the_clusters_unless_the_experiment_has_some(
    tmp_path: Path, own: str, writes: float
) -> None:
    (tmp_path / "train.py").write_text("def train(trial): pass")
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "{name: a, trainable: train.py:train, metric: loss, mode: min, space: {x: {uniform: [0, 1]}},"
        f" trials: 2, {own}}}"
    )
    cluster = Cluster.parse(changed(SSH, store_prices={"per_1000_writes": 0.005}))
    made = order(cluster, file, name=None, trials=None, state="s3://bucket/x")
    assert made.spec.store_prices is not None
    assert made.spec.store_prices.per_1000_writes == writes
    # What is not in the file goes to the agents, which read the file themselves.
    assert [one.partition("=")[0] for one in made.changes] == ([] if own else ["store_prices"])
