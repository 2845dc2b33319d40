"""Fleets of agents on Google Cloud and Azure, against a server that takes what their published
interfaces take, with a real bucket.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.session import get_session

from regrow.flows.agents import engine as engine_of
from regrow.flows.agents import in_words
from regrow.infra.clusters.agents import AgentWork
from regrow.infra.clusters.clouds import azure_machine, fleet, fleet_machine, gcp_machine, rest
from regrow.infra.clusters.clouds.fleet_engine import FleetEngine
from regrow.infra.clusters.description import Cluster
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.tasks.errors import RegrowError, UserError
from tests.unit.cloud_service import TOKEN, Service, service

Json = dict[str, Any]
SECRET = 'it\'s "hush" $HOME `id` \\'
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3")
SHARED: Json = {
    "name": "sweep",
    "python": "/opt/venv/bin/python",
    "env": {"TOKEN": "$MY_TOKEN", **{name: f"${name}" for name in KEYS}},
    "prices": [{"type": "spotty", "spot": 0.4}],
}
ALL: dict[str, Json] = {
    "gcp": {
        "on": "gcp",
        "region": "us-central1",
        "project": "lab-1",
        "service_account": "sweep@lab-1.iam.gserviceaccount.com",
        "workers": [
            {"type": "g2-standard-8", "market": "spot", "most": 4, "zones": ["us-central1-a"]},
            {"type": "n2-standard-4", "most": 2},
        ],
    },
    "azure": {
        "on": "azure",
        "region": "westeurope",
        "resource_group": "lab",
        "identity": "/subscriptions/s-1/resourceGroups/lab/identities/sweep",
        "workers": [
            {"type": "Standard_NC4as_T4_v3", "market": "spot", "most": 4},
            {"type": "Standard_D4s_v5", "most": 2, "zones": ["1"]},
        ],
    },
}
SETS = "/subscriptions/s-1/resourceGroups/lab/providers/Microsoft.Compute"
GROUPS = {"gcp": "instanceGroupManagers", "azure": "virtualMachineScaleSets"}
MACHINES = {"gcp": gcp_machine, "azure": azure_machine}


@pytest.fixture(params=ALL)
def cloud(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clouds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """The clouds, and the commands by which one logs in."""
    monkeypatch.setenv("REGROW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MY_TOKEN", SECRET)
    monkeypatch.setattr(rest, "TICK", 0.0)
    monkeypatch.setattr(azure_machine, "_GONE_SECONDS", 0.0)
    (tmp_path / "bin").mkdir()
    with service() as found:
        az = f'case "$*" in *get-access-token*) echo {TOKEN};; *cloud*) echo {found.address}/;; *) echo s-1;; esac'
        for name, line in (
            ("gcloud", f"echo {TOKEN}"),
            ("az", az),
            ("shutdown", f"touch {tmp_path}/off"),
            ("journalctl", "printf 'first\\nlast\\n'"),
            ("sleep", "true"),
            ("aws", f'cp "$3" {tmp_path}/uploaded 2> /dev/null || cp "$5" {tmp_path}/uploaded'),
        ):
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        over = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
        monkeypatch.setenv(f"{over}COMPUTE", f"{found.address}/compute/v1/")
        monkeypatch.setenv(f"{over}SECRETMANAGER", f"{found.address}/")
        monkeypatch.setenv("GCE_METADATA_HOST", found.address.removeprefix("http://"))
        monkeypatch.setenv("REGROW_AZURE_METADATA_ENDPOINT", found.address)
        yield found
        assert found.wrong == []


@pytest.fixture
def work(tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch) -> AgentWork:
    keys = get_session().get_credentials()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys.secret_key)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "work.py").write_text("pass\n")
    words = ("join", "my sweep.yaml", "--state", s3, "--name", "digits")
    root = Places.at(s3).root
    return AgentWork(experiment="digits", state=root, project=tmp_path / "project", words=words)


def engine(cloud: str, **changed: Any) -> FleetEngine:
    found = engine_of(Cluster.parse({**SHARED, **ALL[cloud], **changed}))
    assert isinstance(found, FleetEngine)
    return found


def objects(work: AgentWork) -> list[str]:
    """The names of what the bucket has for the machines."""
    return [key.rpartition("/")[2] for key in Places.at(work.state).store("digits").list("agents/")]


def script_of(clouds: Service, cloud: str, place: int) -> str:
    """What a group's machine runs at its first start."""
    if cloud == "gcp":
        name = clouds.names("instanceTemplates")[place]
        (made,) = [one for path, one in clouds.there.items() if path.endswith(f"es/{name}")]
        items = {one["key"]: one["value"] for one in made["properties"]["metadata"]["items"]}
        return str(items["startup-script"])
    profile = clouds.sets[place]["properties"]["virtualMachineProfile"]
    (extension,) = profile["extensionProfile"]["extensions"]
    return base64.b64decode(extension["properties"]["protectedSettings"]["script"]).decode()


def started(clouds: Service, cloud: str, work: AgentWork) -> FleetEngine:
    found = engine(cloud)
    found.submit(work, lambda _: None)
    return found


def test_the_cloud_keeps_the_machines_of_each_group_and_down_leaves_nothing(
    clouds: Service, cloud: str, work: AgentWork
) -> None:
    said: list[str] = []
    there = engine(cloud)
    assert there.offer(work)[-2:] == [
        "  those on demand but one only as trials wait for them",
        "  until the experiment ends, at most for 168 h",
    ]
    there.submit(work, said.append)
    assert len(clouds.names(GROUPS[cloud])) == 2
    assert re.search(
        r"digits: made regrow-sweep-\w{8}-0, regrow-sweep-\w{8}-1 of at most 6", said[-1]
    )
    assert there.offer(work) == [], "it is there, and costs no more"
    (submitted,) = there.submissions()
    assert (submitted.experiment, submitted.state) == ("digits", work.state)
    assert in_words(there.agents()).startswith("2 running, 3 missing (w0-spot")
    assert objects(work) == ["parcel.tar.gz"]
    readable = json.dumps([one for one in clouds.there.values() if "addVersion" not in one])
    assert "hush" not in readable
    assert base64.b64encode(b"export TOKEN").decode()[:12] not in readable

    there.end(said.append)
    assert clouds.there == {}
    assert objects(work) == []
    assert said[-1].startswith("nothing of the cluster sweep is left in")


def test_spot_machines_are_deleted_and_nobody_reaches_one(
    clouds: Service, cloud: str, work: AgentWork
) -> None:
    started(clouds, cloud, work)
    if cloud == "gcp":
        spot, steady = (
            clouds.there[f"/compute/v1/projects/lab-1/global/instanceTemplates/{name}"][
                "properties"
            ]
            for name in clouds.names("instanceTemplates")
        )
        assert spot["scheduling"]["provisioningModel"] == "SPOT"
        assert spot["scheduling"]["instanceTerminationAction"] == "DELETE"
        assert "scheduling" not in steady
        allow, deny = (
            clouds.there[f"/compute/v1/projects/lab-1/global/firewalls/{name}"]
            for name in clouds.names("firewalls")
        )
        assert allow["sourceTags"] == allow["targetTags"] == spot["tags"]["items"]
        assert deny["sourceRanges"] == ["0.0.0.0/0"]
        assert allow["priority"] < deny["priority"] < 1000, "before the network's own rules"
        return
    spot, steady = (one["properties"]["virtualMachineProfile"] for one in clouds.sets)
    assert (spot["priority"], spot["evictionPolicy"]) == ("Spot", "Delete")
    assert (steady["priority"], "evictionPolicy" in steady) == ("Regular", False)
    (security,) = [one for path, one in clouds.there.items() if "networkSecurityGroups" in path]
    assert "securityRules" not in security["properties"], "Azure's own let nobody in"


def test_a_machine_s_script_is_one_that_knows_its_price_and_its_end(
    clouds: Service, cloud: str, work: AgentWork, tmp_path: Path
) -> None:
    prices = [{"type": one["type"], "spot": 0.4} for one in ALL[cloud]["workers"]]
    engine(cloud, prices=prices).submit(work, lambda _: None)
    for place, labels in ((0, "regrow.io/price=0.4 --spot"), (1, "ray.io/market-type=on-demand,")):
        text = script_of(clouds, cloud, place)
        subprocess.run(["bash", "-n"], input=text.encode(), check=True)
        (line,) = [line for line in text.splitlines() if line.startswith("ExecStart=/bin/bash")]
        assert labels in line
    if shutil.which("systemd-analyze") is None:
        return
    begin = text.index("cat > regrow-expiry.service")
    part = text[begin : text.index("systemctl enable", begin)]
    script = f'there="{tmp_path}" python=/bin/true\ncd "$there"\n{part}\n'
    subprocess.run(["bash", "-c", script], check=True)
    units = [str(tmp_path / f"regrow-expiry.{kind}") for kind in ("service", "timer")]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_the_cloud_refuses_is_told_and_nothing_that_costs_is_left(
    clouds: Service, cloud: str, work: AgentWork
) -> None:
    clouds.refused = ("-1" if cloud == "azure" else "Managers", "the quota is used up")
    name = "Google Cloud" if cloud == "gcp" else "Azure"
    with pytest.raises(RegrowError, match=f"^{name}: the quota is used up$"):
        started(clouds, cloud, work)
    clouds.refused = None
    assert clouds.names(GROUPS[cloud]) == clouds.names("secrets") == []
    assert objects(work) == []


def test_what_was_made_although_the_answer_was_lost_is_not_left(
    clouds: Service, cloud: str, work: AgentWork
) -> None:
    clouds.lost = f"PUT {SETS}" if cloud == "azure" else "POST /compute/v1/projects/lab-1/regions"
    with pytest.raises(RegrowError, match=r": 502 Bad Gateway$"):
        started(clouds, cloud, work)
    assert clouds.names(GROUPS[cloud]) == clouds.names("secrets") == []


def test_a_persons_own_machines_are_left_alone(
    clouds: Service, cloud: str, work: AgentWork
) -> None:
    if cloud == "gcp":
        place = "/compute/v1/projects/lab-1/regions/us-central1/instanceGroupManagers"
        clouds.there[f"{place}/regrow-sweep-mine"] = {
            "name": "regrow-sweep-mine",
            "description": "not a map",
        }
    assert engine(cloud).offer(work) != []


def test_mistakes_are_told_before_the_cloud_is_asked(
    clouds: Service, cloud: str, work: AgentWork, tmp_path: Path
) -> None:
    for changed, told in (
        ({"env": {}}, r"env: \[\]: lacks what the machines read"),
        ({"workers": [{"type": "t2.large", "most": 1}]}, r"workers\.0\.type"),
        ({"env": {**SHARED["env"], "A": "$NOT_SET"}}, "is not set here"),
    ):
        with pytest.raises(SpecError, match=told):
            engine(cloud, **changed).offer(work)
    elsewhere = AgentWork(experiment="a", state=str(tmp_path), project=work.project, words=())
    with pytest.raises(UserError, match="is in no bucket"):
        engine(cloud).offer(elsewhere)
    assert clouds.asked == []


def test_a_cluster_of_another_user_is_left_alone(
    clouds: Service, cloud: str, work: AgentWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    started(clouds, cloud, work)
    monkeypatch.setenv("LOGNAME", "bob")
    other = AgentWork(experiment="b", state=work.state, project=work.project, words=work.words)
    with pytest.raises(SpecError, match=r'name: "sweep": is a cluster of ann\'s'):
        engine(cloud).submit(other, lambda _: None)


def test_the_exported_script_starts_the_same(
    clouds: Service, cloud: str, work: AgentWork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name, content in engine(cloud).files(work, lambda _: None).items():
        (out / name).write_bytes(content)
        assert b"hush" not in content
    (out / "environment").write_bytes(fleet.environment({"TOKEN": SECRET}))
    subprocess.run(["bash", "fleets.sh"], cwd=out, check=True, capture_output=True)
    assert len(clouds.names(GROUPS[cloud])) == 2
    assert (tmp_path / "uploaded").read_bytes() == (out / "parcel.tar.gz").read_bytes()
    assert in_words(engine(cloud).agents()).startswith("2 running")
    subprocess.run(["bash", "-n"], input=script_of(clouds, cloud, 0).encode(), check=True)


# ---- what a machine does


@pytest.fixture
def machine(
    clouds: Service, cloud: str, work: AgentWork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Json:
    """`fleet.json` of a machine of the first group, with what its script has written."""
    monkeypatch.setattr(fleet_machine, "HERE", tmp_path)
    started(clouds, cloud, work)
    text = script_of(clouds, cloud, 0)
    begin = text.index("{\n")
    found: Json = json.loads(text[begin : text.index("\nEND_OF_FILE", begin)])
    if written := re.search(r"^\(umask 077; .*> environment\)$", text, re.MULTILINE):
        subprocess.run(["bash", "-c", written[0]], cwd=tmp_path, check=True)
    for name in KEYS[:2]:
        monkeypatch.setenv(name, "of the agent alone")
    return found


def test_it_gets_its_files_with_the_keys_of_its_variables(
    machine: Json, cloud: str, tmp_path: Path
) -> None:
    fleet_machine.fetch(machine, MACHINES[cloud])
    assert (tmp_path / "parcel.tar.gz").stat().st_size > 100
    environment = tmp_path / "environment"
    assert environment.stat().st_mode & 0o077 == 0
    words = ["bash", "-c", '. ./environment; printf %s "$TOKEN"']
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == SECRET


def test_at_the_end_all_groups_go_and_what_is_secret_first(
    machine: Json, cloud: str, clouds: Service, work: AgentWork, tmp_path: Path
) -> None:
    fleet_machine.fetch(machine, MACHINES[cloud])
    clouds.asked.clear()
    fleet_machine.ended(machine, "0", MACHINES[cloud])
    assert clouds.names(GROUPS[cloud]) == clouds.names("secrets") == []
    deleted = [one for one in clouds.asked if one.startswith("DELETE")]
    assert ("secrets" in deleted[0]) == (cloud == "gcp")
    assert deleted[-1].endswith("-0"), "its own group last"
    assert objects(work) == []
    assert (tmp_path / "off").exists()
    # one that was late finds nothing, and ends, too
    fleet_machine.ended(machine, "0", MACHINES[cloud])


def test_one_that_cannot_take_part_leaves_its_group_with_its_last_words(
    machine: Json, cloud: str, clouds: Service, work: AgentWork
) -> None:
    fleet_machine.fetch(machine, MACHINES[cloud])
    clouds.asked.clear()
    fleet_machine.ended(machine, "2", MACHINES[cloud])
    asked = "deleteInstances" if cloud == "gcp" else "DELETE /subscriptions/s/vm"
    assert asked in clouds.asked[-1]
    assert len(clouds.names(GROUPS[cloud])) == 2
    there = engine(cloud)
    (submitted,) = there.submissions()
    assert [one.lines for one in there.outputs(submitted)] == [["first", "last"]]


def test_one_that_goes_away_is_made_anew_by_the_cloud(
    machine: Json, cloud: str, clouds: Service, tmp_path: Path
) -> None:
    clouds.asked.clear()
    fleet_machine.ended(machine, "3", MACHINES[cloud])
    assert [one for one in clouds.asked if "reimage" in one] == (
        ["POST /subscriptions/s/vm/reimage"] if cloud == "azure" else []
    )
    assert len(clouds.names(GROUPS[cloud])) == 2
    assert (tmp_path / "off").exists()


@pytest.fixture
def on_need(machine: Json, clouds: Service, cloud: str) -> Json:
    """`fleet.json` of a machine of the second group, whose machines come on need."""
    text = script_of(clouds, cloud, 1)
    begin = text.index("{\n")
    found: Json = json.loads(text[begin : text.index("\nEND_OF_FILE", begin)])
    assert (machine["on_need"], found["on_need"]) == (False, True)
    return found


def test_more_machines_on_need_are_started_and_one_that_leaves_is_not_made_anew(
    on_need: Json, cloud: str, clouds: Service, tmp_path: Path
) -> None:
    fleet_machine.fetch(on_need, MACHINES[cloud])
    (name,) = on_need["start"]
    assert MACHINES[cloud].machines(on_need) == {name: 1}
    fleet_machine.start(on_need, name, 2, MACHINES[cloud])
    assert MACHINES[cloud].machines(on_need) == {name: 3}
    clouds.asked.clear()
    fleet_machine.ended(on_need, "3", MACHINES[cloud])
    (left,) = clouds.asked
    out = "deleteInstances" if cloud == "gcp" else "DELETE /subscriptions/s/vm"
    assert out in left
    assert (tmp_path / "off").exists()
    assert len(clouds.names(GROUPS[cloud])) == 2


def test_one_that_starts_too_late_ends_all_before_anything_is_installed(
    machine: Json, cloud: str, clouds: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    monkeypatch.setitem(sys.modules, "botocore.config", None)
    fleet_machine.ended(machine, "0", MACHINES[cloud])
    assert clouds.names(GROUPS[cloud]) == clouds.names("secrets") == []
