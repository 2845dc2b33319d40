"""Fleets of agents on AWS: what EC2 and the machines get, against EC2's own description, and what a
machine does at the end of its agent.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from botocore.loaders import create_loader
from botocore.validate import validate_parameters
from moto import mock_aws
from typer.testing import CliRunner, Result

from regrow.cli.app import app
from regrow.infra.clusters.agents import Submission
from regrow.infra.clusters.clouds import aws, aws_machine, fleet, fleet_machine
from regrow.infra.clusters.clouds.aws_account import AwsAccount
from regrow.infra.clusters.clouds.fleet import Order
from regrow.infra.clusters.clouds.fleet_engine import FleetEngine
from regrow.infra.clusters.description import Aws, Cluster
from regrow.infra.clusters.prices import Prices
from regrow.infra.state.places import Places
from regrow.search.errors import SpecError
from regrow.tasks.errors import UserError
from tests.unit.fresh import printed

Json = dict[str, Any]
Typed = Callable[..., Result]
SECRET = 'it\'s "hush" $HOME `id` \\'
ORDER = Order(
    experiment="digits",
    state="s3://bucket/runs",
    words=["join", "my sweep.yaml", "--state", "s3://bucket/runs", "--name", "digits"],
    user="ann",
    expires="2026-12-04T00:00:00+00:00",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def described(**changed: Any) -> Aws:
    found = Cluster.parse(
        {
            "name": "sweep",
            "on": "aws",
            "region": "us-west-2",
            "setup": ["sudo modprobe fuse"],
            "env": {"TOKEN": "$MY_TOKEN", "PLAIN": "x"},
            "workers": [
                {"type": "g5.xlarge", "market": "spot", "most": 30, "disk": 200},
                {"type": "g5.xlarge", "most": 2},
            ],
            **changed,
        }
    )
    assert isinstance(found, Aws)
    return found


def prices(folder: Path) -> Prices:
    file = folder / "prices.csv"
    file.write_text("InstanceType,Region,Price,SpotPrice\ng5.xlarge,us-west-2,1.006,0.40\n")
    return Prices(file)


def documents(cluster: Aws, order: Order, prices: Prices, place: int) -> tuple[Json, Json]:
    template = aws.launch_template(
        cluster, order, prices, place, image="ami-1", security_group="sg-1"
    )
    overrides = aws.allowed("SubnetId", ["subnet-b", "subnet-a"])
    return template, aws.create_fleet(cluster, order, place, overrides)


@pytest.mark.parametrize("place", [0, 1])
def test_ec2_s_own_description_takes_template_and_fleet(tmp_path: Path, place: int) -> None:
    template, asked = documents(described(), ORDER, prices(tmp_path), place)
    model = boto3.client("ec2", region_name="us-west-2").meta.service_model
    for operation, parameters in (("CreateLaunchTemplate", template), ("CreateFleet", asked)):
        validate_parameters(parameters, model.operation_model(operation).input_shape)

    data = template["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    # EC2 refuses a template with a market, and a fleet of type maintain with tags of instances.
    assert "InstanceMarketOptions" not in data
    assert [one["ResourceType"] for one in asked["TagSpecifications"]] == ["fleet"]
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert asked["Type"] == ("maintain", "instant")[place]
    # A spot machine comes from where EC2 finds it, one on demand from the first zone that has one.
    strategy = asked["OnDemandOptions" if place else "SpotOptions"]["AllocationStrategy"]
    assert strategy == ("price-capacity-optimized", "prioritized")[place]
    (one,) = asked["LaunchTemplateConfigs"]
    ranks = [override.get("Priority") for override in one["Overrides"]]
    assert ranks == ([None, None], [0.0, 1.0])[place]
    # EC2 refuses these for a fleet of type instant, whose machines end themselves.
    for key in ("ValidUntil", "TerminateInstancesWithExpiration", "ReplaceUnhealthyInstances"):
        assert (key in asked) == (place == 0)
    market = ("spot", "on-demand")[place]
    assert asked["TargetCapacitySpecification"] == {
        "TotalTargetCapacity": (30, 1)[place],
        "DefaultTargetCapacityType": market,
    }


def test_without_spot_machines_all_are_kept_from_the_start_and_nothing_comes_on_need(
    tmp_path: Path,
) -> None:
    cluster = described(workers=[{"type": "g5.xlarge", "most": 2}])
    _, asked = documents(cluster, ORDER, prices(tmp_path), 0)
    assert asked["TargetCapacitySpecification"]["TotalTargetCapacity"] == 2
    assert (asked["Type"], asked["ValidUntil"]) == ("maintain", ORDER.expires)
    assert "CreateFleet" not in json.dumps(aws.rights(cluster, ORDER.state))
    assert '"sizes"' not in aws.user_data(cluster, ORDER, prices(tmp_path), 0)


def test_user_data_are_a_script_that_fits_and_says_what_its_machine_costs(tmp_path: Path) -> None:
    longest = Order(
        experiment="e" * 63,
        state=f"s3://{'b' * 63}/{'p' * 170}",
        words=ORDER.words,
        user="ann",
        expires=ORDER.expires,
    )
    for place, said in (
        (
            0,
            "ray.io/market-type=spot,node.kubernetes.io/instance-type=g5.xlarge,regrow.io/price=0.4",
        ),
        (1, "ray.io/market-type=on-demand,"),
    ):
        text = aws.user_data(described(name="c" * 40), longest, prices(tmp_path), place)
        assert len(text.encode()) <= aws.MOST_USER_DATA
        subprocess.run(["bash", "-n"], input=text.encode(), check=True)
        (started,) = [line for line in text.splitlines() if line.startswith("ExecStart=/bin")]
        assert ("regrow-expiry.timer" in text) == (place == 1), "EC2 ends a fleet of type maintain"
        assert said in started
        assert started.endswith(" --spot") == (place == 0)


def test_no_value_of_a_variable_is_outside_of_the_bucket_s_private_object(tmp_path: Path) -> None:
    cluster, values = described(), {"TOKEN": SECRET, "PLAIN": "x"}
    template, asked = documents(cluster, ORDER, prices(tmp_path), 0)
    script = base64.b64decode(template["LaunchTemplateData"]["UserData"]).decode()
    packed = fleet.parcel(cluster, ORDER, b"project")
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        inside = {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]
    for text in (script, json.dumps([template, asked]), repr(inside)):
        assert "hush" not in text
        assert "TOKEN" not in text

    there = fleet.environment(values)
    printed = subprocess.run(
        ["bash", "-c", '. /dev/stdin; printf %s "$TOKEN"'],
        input=there,
        capture_output=True,
        check=True,
    )
    assert printed.stdout.decode() == SECRET


def test_an_agent_joins_in_the_project_with_its_variables_and_its_machine_s_arguments(
    home: Path,
) -> None:
    here = home / ".local/share/regrow/nodes/sweep"
    (here / "project").mkdir(parents=True)
    python = home / "python"
    python.write_text('#!/bin/sh\npwd\necho "$TOKEN"\nprintf "<%s>" "$@"\n')
    python.chmod(0o755)
    cluster = described(python=str(python))
    with tarfile.open(fileobj=io.BytesIO(fleet.parcel(cluster, ORDER, b"project"))) as tar:
        tar.extractall(here)  # our own; Python before 3.11.4 has no filters
    (here / "environment").write_bytes(fleet.environment({"TOKEN": SECRET}))
    words = ["bash", str(here / "agent.sh"), "--labels", "a=b", "--spot"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    joined = [*ORDER.words, "--labels", "a=b", "--spot"]
    assert said == f"{here / 'project'}\n{SECRET}\n<-m><regrow>" + "".join(f"<{w}>" for w in joined)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = aws.user_data(described(user="root"), ORDER, prices(tmp_path), 0)
    begin = text.index("cat > regrow-agent.service")
    part = text[begin : text.index("\n(\n", begin)]
    script = f'user=root there="{tmp_path}" python=/bin/true\ncd "$there"\n{part}\n'
    subprocess.run(["bash", "-c", script], check=True)
    unit = tmp_path / "regrow-agent.service"
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "RestartPreventExitStatus=2 3 4" in unit.read_text()
    assert "ended $EXIT_STATUS\n" in unit.read_text()


def test_the_machines_rights_end_at_their_state_and_their_fleets() -> None:
    spot = described(workers=[{"type": "g5.xlarge", "market": "spot", "most": 2}])
    statements = aws.rights(spot, "s3://bucket/runs")["Statement"]
    allowed = {action: one for one in statements for action in one["Action"]}
    assert {one.partition(":")[0] for one in allowed} == {"s3", "ec2"}
    assert {one for one in allowed if one.startswith("ec2:")} == {
        "ec2:DescribeFleets",
        "ec2:DeleteFleets",
    }
    assert allowed["s3:PutObject"]["Resource"] == ["arn:aws:s3:::bucket/runs/*"]
    assert allowed["s3:ListBucket"]["Condition"] == {
        "StringLikeIfExists": {"s3:prefix": ["runs/*"]}
    }
    assert allowed["ec2:DeleteFleets"]["Condition"] == {
        "StringEquals": {"aws:ResourceTag/regrow-agents": "sweep"}
    }
    whole = aws.rights(spot, "s3://bucket")["Statement"]
    assert whole[0]["Resource"] == ["arn:aws:s3:::bucket/*"]
    assert "Condition" not in whole[1]


def test_machines_start_others_by_templates_of_their_cluster_alone() -> None:
    more = aws.rights(described(), "s3://bucket/runs")["Statement"][4:]
    ours = {"StringEquals": {"aws:ResourceTag/regrow-agents": "sweep"}}
    for action, kind, condition in (
        ("ec2:RunInstances", "launch-template/*", ours),
        ("ec2:CreateFleet", "launch-template/*", ours),
        ("ec2:TerminateInstances", "instance/*", ours),
        (
            "ec2:RunInstances",
            "instance/*",
            {"ArnLike": {"ec2:LaunchTemplate": "arn:aws:ec2:us-west-2:*:launch-template/*"}},
        ),
        (
            "ec2:CreateTags",
            "*/*",
            {"StringEquals": {"ec2:CreateAction": ["CreateFleet", "RunInstances"]}},
        ),
    ):
        (found,) = [
            one
            for one in more
            if action in one["Action"] and f"arn:aws:ec2:us-west-2:*:{kind}" in one["Resource"]
        ]
        assert found["Condition"] == condition
    (passed,) = [one for one in more if one["Action"] == ["iam:PassRole"]]
    assert passed["Resource"] == ["arn:aws:iam::*:role/regrow-sweep.agents"]


@pytest.mark.parametrize("state", ["/shared/state", "s3://bucket/x?endpoint_url=http://minio:9000"])
def test_a_state_that_the_machines_role_cannot_read_is_refused(state: str) -> None:
    with pytest.raises(UserError, match="is in no bucket"):
        aws.bucket(state)


def test_a_type_that_is_none_is_told_with_its_place(tmp_path: Path) -> None:
    cluster = described(image="ami-1", workers=[{"type": "$(reboot)", "most": 1}])
    with pytest.raises(SpecError, match=r"workers\.0\.type"):
        aws.user_data(cluster, ORDER, prices(tmp_path), 0)


@pytest.mark.parametrize(
    ("instance", "found"),
    [
        ("m6i.large", "amd64"),
        ("m7g.xlarge", "arm64"),
        ("c6gn.large", "arm64"),
        ("a1.large", "arm64"),
        ("x2gd.large", "arm64"),
        ("g5.xlarge", "nvidia"),
        ("p5.48xlarge", "nvidia"),
        ("gr6.4xlarge", "nvidia"),
        ("g4dn.xlarge", "nvidia"),
        ("g4ad.xlarge", "amd64"),
        ("u7i-12tb.224xlarge", "amd64"),
        ("trn1.2xlarge", "amd64"),
    ],
)
def test_the_image_fits_the_type(instance: str, found: str) -> None:
    assert found in aws.image(instance, "workers.0.type")


# ---- as a user types it


@pytest.fixture
def typed(home: Path, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """`regrow cluster WORDS` with a cluster file, whose keys may be changed, and an experiment."""
    monkeypatch.setenv("MY_TOKEN", SECRET)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    (home / "project").mkdir()
    monkeypatch.chdir(home / "project")
    Path("work.py").write_text("def train(trial):\n    trial.report({'loss': 1})\n")
    spec: Json = {
        "name": "digits",
        "trainable": "work.py:train",
        "space": {"x": {"uniform": [0, 1]}},
    }
    spec |= {"metric": "loss", "mode": "min", "trials": 1, "max_steps": 1}
    Path("sweep.yaml").write_text(yaml.safe_dump(spec))

    def run(*words: str, **changed: Any) -> Result:
        Path("cluster.yaml").write_text(yaml.safe_dump(described(**changed).to_json()))
        return CliRunner().invoke(app, ["cluster", *words])

    return run


EXPORT = ("export", "cluster.yaml", "sweep.yaml", "-o", "out")


def test_the_files_for_the_aws_command_are_all_that_its_script_names(typed: Typed) -> None:
    done = typed(*EXPORT, "--state", ORDER.state, zones=["us-west-2b", "us-west-2a"])
    assert done.exit_code == 0, done.output
    script = Path("out/fleets.sh").read_text()
    subprocess.run(["bash", "-n", "out/fleets.sh"], check=True)
    named = {*re.findall(r"file://(\S+)", script), *re.findall(r"aws s3 cp (\S+)", script)}
    there = {one.name for one in Path("out").iterdir()}
    assert named == {one for one in there if one.endswith((".json", ".gz"))} | {"environment"}
    assert "# PLAIN, TOKEN\n" in script
    assert not [one for one in Path("out").iterdir() if b"hush" in one.read_bytes()]

    model = boto3.client("ec2", region_name="us-west-2").meta.service_model
    for file, operation in (
        ("launch-template-1.json", "CreateLaunchTemplate"),
        ("fleet-1.json", "CreateFleet"),
    ):
        parameters = json.loads(Path("out", file).read_text())
        validate_parameters(parameters, model.operation_model(operation).input_shape)
    (config,) = parameters["LaunchTemplateConfigs"]
    assert [one["AvailabilityZone"] for one in config["Overrides"]] == ["us-west-2b", "us-west-2a"]


@pytest.mark.parametrize(
    ("state", "changed", "said"),
    [
        ("/shared/runs", {"shared": ["/shared"]}, "is in no bucket"),
        (ORDER.state, {"env": {"TOKEN": "$NOT_SET"}}, "is not set here"),
        (f"s3://bucket/{'p' * 250}", {}, "has more than 256 characters"),
    ],
)
def test_a_mistake_is_told_before_an_account_is_asked(
    typed: Typed, state: str, changed: Json, said: str
) -> None:
    done = typed(*EXPORT, "--state", state, **changed)
    assert isinstance(done.exception, UserError | SpecError)
    assert said in str(done.exception)
    assert not Path("out").exists()


# ---- what a machine does at the end of its agent


@dataclass
class Machine:
    """A machine of the first group of two, with its fleets and objects in an account of moto's."""

    folder: Path
    described: Json
    ec2: Any
    s3: Any

    def ended(self, status: str) -> bool:
        """Whether the machine turns itself off after this end of its agent."""
        fleet_machine.ended(self.described, status, aws_machine)
        return (self.folder / "off").exists()

    def active(self) -> list[str]:
        """The groups whose fleets start machines, or which have machines that came on need."""
        keeping = (
            tag["Value"]
            for one in self.ec2.describe_fleets()["Fleets"]
            if one["FleetState"] == "active" and one["Type"] == "maintain"
            for tag in one["Tags"]
            if tag["Key"] == fleet.GROUP_TAG
        )
        on_need = (name for name, count in aws_machine.machines(self.described).items() if count)
        return sorted([*keeping, *on_need])

    def objects(self) -> list[str]:
        """What is in the folder of the bucket."""
        listed = self.s3.list_objects_v2(Bucket="bucket").get("Contents", [])
        folder = f"{self.described['folder']}/"
        return [one["Key"].removeprefix(folder) for one in listed]


GROUPS = ["w0-spot-g5-xlarge", "w1-on-demand-g5-xlarge"]


@pytest.fixture(scope="module", autouse=True)
def _models_are_read_once() -> Iterator[None]:
    """Moto gives each test a new session, which would read the description of EC2 again: a second and
    100 MB.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", functools.cache(create_loader))
        yield


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, line in (
        ("shutdown", f"touch {tmp_path}/off"),
        ("journalctl", "printf 'first\\nlast\\n'"),
    ):
        (bin_folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:{os.environ['PATH']}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setattr(fleet_machine, "HERE", tmp_path)
    cluster, known = described(), prices(tmp_path)
    with mock_aws():
        ec2, s3 = (boto3.client(name, region_name="us-west-2") for name in ("ec2", "s3"))
        s3.create_bucket(
            Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
        )
        for place in (0, 1):
            template, asked = documents(cluster, ORDER, known, place)
            ec2.create_launch_template(**template)
            ec2.create_fleet(
                **asked
                | {
                    "LaunchTemplateConfigs": [
                        {
                            "LaunchTemplateSpecification": {
                                "LaunchTemplateName": template["LaunchTemplateName"],
                                "Version": "1",
                            }
                        }
                    ]
                }
            )
        text = aws.user_data(cluster, ORDER, known, 0)
        begin = text.index("{")
        said = json.loads(text[begin : text.index("\nEND_OF_FILE", begin)])
        for name in (fleet_machine.PARCEL, fleet_machine.ENVIRONMENT):
            s3.put_object(Bucket="bucket", Key=f"{said['folder']}/{name}", Body=name.encode())
        yield Machine(tmp_path, said, ec2, s3)


def test_a_machine_gets_the_agent_s_files_for_their_owner_alone(machine: Machine) -> None:
    fleet_machine.fetch(machine.described, aws_machine)
    for name in (fleet_machine.PARCEL, fleet_machine.ENVIRONMENT):
        assert (machine.folder / name).read_text() == name
        assert (machine.folder / name).stat().st_mode & 0o077 == 0


def test_at_the_end_of_the_experiment_files_with_secrets_go_then_all_fleets_then_the_machine(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, left = aws_machine._client, list[list[str]]()

    def watched(described: Json, service: str) -> Any:
        made = client(described, service)
        made.meta.events.register(
            "before-call.ec2.DeleteFleets", lambda **_: left.append(machine.objects())
        )
        return made

    monkeypatch.setattr(aws_machine, "_client", watched)
    assert machine.active() == GROUPS
    assert machine.ended("0")
    assert left == [[]], "EC2 may end the machine as soon as its fleet is deleted"
    assert machine.active() == []


@pytest.mark.parametrize("status", ["0", "2"])
def test_a_late_machine_leaves_fleets_alone_that_were_submitted_after_its_own(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    tags = dict(machine.described["tags"])
    machine.described["tags"][fleet.EXPIRY_TAG] = "2026-12-03T00:00:00+00:00"
    assert tags != machine.described["tags"]
    monkeypatch.setattr(aws_machine, "MOST_UNABLE", 1)
    assert machine.ended(status)
    machine.described["tags"] = tags
    assert machine.active() == GROUPS


@pytest.mark.parametrize("failed", [True, False])
def test_exit_code_1_is_the_end_where_the_experiment_has_failed(
    machine: Machine, failed: bool
) -> None:
    said = json.dumps({"status": "failed" if failed else "running"})
    (machine.folder / "regrow.sh").write_text(f"echo '{said}'\n")
    assert machine.ended("1") == failed
    assert machine.active() == ([] if failed else GROUPS)


def test_a_machine_that_goes_away_leaves_the_fleets_to_replace_it(machine: Machine) -> None:
    assert machine.ended("3")
    assert machine.active() == GROUPS
    assert machine.objects() == ["environment", "parcel.tar.gz"]


def test_machines_that_cannot_take_part_end_their_group_s_fleet_and_no_other(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for count in range(1, aws_machine.MOST_UNABLE + 1):
        assert machine.active() == GROUPS
        monkeypatch.setattr("socket.gethostname", lambda count=count: f"ip-{count}")
        assert machine.ended("2")
    assert machine.active() == GROUPS[1:]
    last = machine.s3.get_object(
        Bucket="bucket", Key=f"{machine.described['folder']}/ended/{GROUPS[0]}-ip-1.json"
    )
    assert json.loads(last["Body"].read())["lines"] == ["first", "last"]


def test_who_follows_sees_running_missing_and_unable_machines(machine: Machine) -> None:
    engine = FleetEngine(described(), AwsAccount(described()))
    (found,) = engine.submissions()
    assert (found.experiment, found.state) == ("digits", ORDER.state)
    here = Submission(experiment="digits", state=str(machine.folder / "state"), t=found.t)
    unable = {"host": "ip-1", "group": GROUPS[0], "status": "2", "t": 1.0, "lines": ["a", "b", ""]}
    place = f"{fleet.objects('sweep', ORDER)}/{fleet_machine.ENDED}1.json"
    Places.at(here.state).store("digits").create(place, json.dumps(unable).encode())

    agents = engine.agents(here)
    running = sum(one["FulfilledCapacity"] for one in machine.ec2.describe_fleets()["Fleets"])
    assert len([one for one in agents if one.state == "running"]) == running
    assert len([one for one in agents if one.there]) == 31
    assert [one.node for one in agents if one.there][-1] == GROUPS[1]
    assert [(one.name, one.reason) for one in agents if one.failed] == [("ip-1", "b")]
    assert [one.lines for one in engine.outputs(here)] == [["a", "b", ""]]


def test_more_machines_on_need_come_like_the_first_and_none_of_a_group_that_cannot_take_part(
    machine: Machine,
) -> None:
    assert aws_machine.machines(machine.described) == {GROUPS[1]: 1}
    validate_parameters(
        machine.described["start"][GROUPS[1]],
        machine.ec2.meta.service_model.operation_model("CreateFleet").input_shape,
    )
    fleet_machine.start(machine.described, GROUPS[1], 2, aws_machine)
    assert aws_machine.machines(machine.described) == {GROUPS[1]: 3}
    there = [
        {tag["Key"]: tag["Value"] for tag in one["Tags"]}
        for found in machine.ec2.describe_instances()["Reservations"]
        for one in found["Instances"]
        if any(tag["Value"] == GROUPS[1] for tag in one["Tags"])
    ]
    ours = fleet.tags(described(), ORDER, 1)
    assert [{key: one[key] for key in ours} for one in there] == [ours] * 3

    for count in range(fleet_machine.MOST_UNABLE):
        key = f"{machine.described['folder']}/ended/{GROUPS[1]}-ip-{count}.json"
        machine.s3.put_object(Bucket="bucket", Key=key, Body=b"{}")
    with pytest.raises(OSError, match="5 machines of w1-on-demand-g5-xlarge could not take part"):
        fleet_machine.start(machine.described, GROUPS[1], 1, aws_machine)
    assert aws_machine.machines(machine.described) == {GROUPS[1]: 3}


def test_an_agent_that_crashes_is_started_again_until_its_machine_is_replaced(
    machine: Machine,
) -> None:
    ends = [machine.ended("KILL") for _ in range(fleet_machine.MOST_CRASHES)]
    assert ends == [False] * (fleet_machine.MOST_CRASHES - 1) + [True]
    assert machine.active() == GROUPS


def test_the_machine_s_program_needs_nothing_of_regrow(machine: Machine) -> None:
    alone = machine.folder / "machine.py"
    shutil.copy(Path(fleet_machine.__file__), alone)
    said = printed(
        "import runpy, sys; runpy.run_path(sys.argv[1]); print({*sys.modules} & {'regrow'})", alone
    )
    assert said == "set()\n"
