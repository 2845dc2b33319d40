"""The launcher files of clusters on AWS, GCP and Azure, against what Ray and the clouds' own
interfaces take, without an account.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml

from regrow.flows.remote import engine
from regrow.infra.clusters import private
from regrow.infra.clusters.clouds import aws, azure, ending, gcp
from regrow.infra.clusters.clouds.aws import Account
from regrow.infra.clusters.description import Aws, Cluster
from regrow.infra.clusters.prices import Prices
from regrow.search.errors import SpecError

Json = dict[str, Any]
ALL: dict[str, Json] = {
    "aws": {
        "on": "aws",
        "region": "us-west-2",
        "zones": ["us-west-2b", "us-west-2a"],
        "head": {"type": "m6i.large", "disk": 50},
        "workers": [
            {"type": "g5.xlarge", "market": "spot", "most": 30, "disk": 200},
            {"type": "m7g.xlarge", "market": "spot", "most": 3},
            {"type": "g5.xlarge", "most": 8, "least": 1, "after": "10min"},
        ],
    },
    "gcp": {
        "on": "gcp",
        "region": "us-central1",
        "zones": ["us-central1-a"],
        "project": "lab-1",
        "head": {"type": "n2-standard-2"},
        "workers": [
            {"type": "g2-standard-8", "market": "spot", "most": 4},
            {"type": "n2-highmem-4", "most": 2},
            {"type": "g2-standard-8", "most": 2, "after": "10min"},
        ],
    },
    "azure": {
        "on": "azure",
        "region": "westeurope",
        "resource_group": "lab",
        "head": {"type": "Standard_D2s_v5"},
        "workers": [
            {"type": "Standard_NC4as_T4_v3", "market": "spot", "most": 4},
            {"type": "Standard_D8s_v5", "most": 2, "zones": ["1", "2"]},
        ],
    },
}
ACCOUNT = Account(
    subnets={"us-west-2a": ("subnet-a",), "us-west-2b": ("subnet-b1", "subnet-b2")},
    security_group="sg-1",
    user="ann",
    expires="2026-12-01T00:00:00+00:00",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def described(kind: str, **changed: Any) -> Any:
    return Cluster.parse({"name": "sweep", **ALL[kind], **changed})


def written(kind: str, **changed: Any) -> Json:
    found: Json = yaml.safe_load(engine(described(kind, **changed)).files()["launcher.yaml"])
    return found


def workers(file: Json) -> list[Json]:
    return [one for name, one in file["available_node_types"].items() if name != "head"]


@pytest.mark.parametrize("kind", ALL)
def test_what_is_written_passes_ray_s_own_look_and_is_the_same_each_time(kind: str) -> None:
    cluster = described(kind)
    engine(cluster).check()
    first, again = engine(cluster).files(), engine(described(kind)).files()
    assert first == again
    assert b"&id" not in first["launcher.yaml"]


@pytest.mark.parametrize("kind", ALL)
def test_earlier_groups_are_preferred_and_nothing_but_workers_takes_trials(kind: str) -> None:
    file, cluster = written(kind), described(kind)
    priorities = [one["priority"] for one in workers(file)]
    assert priorities == sorted(priorities, reverse=True)
    assert len(set(priorities)) == len(cluster.workers)
    head = file["available_node_types"]["head"]
    assert (head["resources"], head["max_workers"]) == ({"CPU": 0, "GPU": 0}, 0)
    assert [one["labels"]["ray.io/market-type"] for one in workers(file)] == [
        group.market for group in cluster.workers
    ]
    assert [one["labels"]["node.kubernetes.io/instance-type"] for one in workers(file)] == [
        group.type for group in cluster.workers
    ]
    assert [one["max_workers"] for one in workers(file)] == [
        group.most for group in cluster.workers
    ]
    assert file["max_workers"] == sum(group.most for group in cluster.workers)
    assert file["provider"]["cache_stopped_nodes"] is False
    assert "0.0.0.0/0" not in json.dumps(file)


def test_prices_are_labels_and_offers(tmp_path: Path) -> None:
    (tmp_path / "prices.csv").write_text(
        "InstanceType,Region,Price,SpotPrice\ng5.xlarge,us-west-2,1.006,0.4\nm6i.large,us-west-2,0.096,0.03\n"
    )
    cluster = described("aws", prices=str(tmp_path / "prices.csv"))
    assert [one.price for one in engine(cluster).plan()] == [0.096, 0.4, None, 1.006]
    types = written("aws", prices=str(tmp_path / "prices.csv"))["available_node_types"]
    assert [one["labels"].get("regrow.io/price") for one in types.values()] == [
        "0.096",
        "0.4",
        None,
        "1.006",
    ]


@pytest.mark.parametrize("account", [None, ACCOUNT])
def test_ec2_s_own_description_takes_each_machine(account: Account | None) -> None:
    from botocore.loaders import Loader
    from botocore.model import ServiceModel
    from botocore.validate import ParamValidator

    shape = (
        ServiceModel(Loader().load_service_model("ec2", "service-2"))
        .operation_model("RunInstances")
        .input_shape
    )
    for one in aws.site(described("aws"), Prices(None), "key", account).node_types.values():
        # Ray's own key, of which it makes one SubnetId
        subnets = one["node_config"].pop("SubnetIds", [])
        assert subnets == ([] if account is None else ["subnet-b1", "subnet-b2", "subnet-a"])
        report = ParamValidator().validate(
            {**one["node_config"], "MinCount": 1, "MaxCount": 1}, shape
        )
        assert not report.has_errors(), report.generate_report()
        assert one["node_config"]["InstanceInitiatedShutdownBehavior"] == "terminate"
        assert one["node_config"]["MetadataOptions"]["HttpTokens"] == "required"
        assert all(disk["Ebs"]["Encrypted"] for disk in one["node_config"]["BlockDeviceMappings"])


def test_only_the_head_has_a_role_of_ours_and_every_machine_one_of_the_user_s() -> None:
    head, *others = [one["node_config"] for one in written("aws")["available_node_types"].values()]
    assert head["IamInstanceProfile"] == {"Name": "regrow-sweep"}
    assert not [one for one in others if "IamInstanceProfile" in one]
    assert {
        one["node_config"]["IamInstanceProfile"]["Name"]
        for one in written("aws", role="mine")["available_node_types"].values()
    } == {"mine"}


def test_the_head_s_rights_end_at_its_own_cluster() -> None:
    statements = aws.rights("sweep", "us-west-2")["Statement"]
    everywhere = [one["Action"] for one in statements if "*" in one["Resource"]]
    assert everywhere == [["ec2:DescribeInstances"]]
    assert not [
        action
        for one in statements
        for action in one["Action"]
        if "*" in action or action.startswith("iam:")
    ]
    for one in statements:
        if one["Action"] in (["ec2:TerminateInstances"], ["ec2:CreateTags"]):
            assert "sweep" in json.dumps(one["Condition"])


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
    assert found in aws.image(instance, "head.type")


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("aws", {"head": {"type": "large"}}, 'head.type: "large": is no type of EC2\'s'),
        (
            "aws",
            {"workers": [{"type": "g5g.xlarge", "most": 1}]},
            'workers.0.type: "g5g.xlarge": has GPUs beside an Arm processor',
        ),
        ("gcp", {"zones": []}, "zones: []: is not one zone"),
        (
            "gcp",
            {"workers": [{"type": "n2-standard-2", "most": 1, "zones": ["us-central1-b"]}]},
            "workers.0.zones",
        ),
        ("gcp", {"head": {"type": "custom-2-4096"}}, 'head.type: "custom-2-4096": is no type'),
        ("azure", {"head": {"type": "D2"}}, 'head.type: "D2": is no size of Azure\'s'),
        (
            "azure",
            {"workers": [{"type": "Standard_ND8q", "most": 1}]},
            'workers.0.type: "Standard_ND8q": is a type of which it is not known how many GPUs',
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(kind: str, changed: Json, message: str) -> None:
    with pytest.raises(SpecError) as told:
        engine(described(kind, **changed)).check()
    assert message in str(told.value)
    assert "\n" not in str(told.value)


def test_a_zone_without_a_subnet_is_told_with_those_that_have_one() -> None:
    cluster: Aws = described("aws", zones=["us-west-2d"])
    with pytest.raises(SpecError, match="us-west-2a, us-west-2b"):
        aws.site(cluster, Prices(None), "key", ACCOUNT)


@pytest.mark.parametrize(
    ("instance", "found"),
    [
        ("n2-standard-4", {"CPU": 4, "memory": int(0.7 * (16 << 30))}),
        ("e2-highmem-2", {"CPU": 2, "memory": int(0.7 * (16 << 30))}),
        ("n1-standard-4", {"CPU": 4}),
        ("g2-standard-24", {"CPU": 24, "GPU": 2, "memory": int(0.7 * (96 << 30))}),
        ("a2-highgpu-2g", {"CPU": 24, "GPU": 2}),
        ("a3-megagpu-8g", {"CPU": 208, "GPU": 8}),
    ],
)
def test_what_a_type_of_gcp_has(instance: str, found: Json) -> None:
    assert gcp.resources(instance, "workers") == found


@pytest.mark.parametrize(
    ("instance", "found"),
    [
        ("Standard_D4s_v5", {"CPU": 4, "memory": int(0.7 * (16 << 30))}),
        ("Standard_E8-4s_v5", {"CPU": 4, "memory": int(0.7 * (64 << 30))}),
        ("Standard_D4ls_v5", {"CPU": 4}),
        ("Standard_NC64as_T4_v3", {"CPU": 64, "GPU": 4}),
        ("Standard_NC24ads_A100_v4", {"CPU": 24, "GPU": 1}),
        ("Standard_ND96asr_v4", {"CPU": 96, "GPU": 8}),
        ("Standard_M128s", {"CPU": 128}),
    ],
)
def test_what_a_size_of_azure_has(instance: str, found: Json) -> None:
    assert azure.resources(instance, "workers") == found


def test_azure_s_template_in_ray_takes_each_parameter() -> None:
    template = json.loads(
        (
            Path(ray.__file__).parent / "autoscaler/_private/_azure/azure-vm-template.json"
        ).read_text()
    )
    for one in written("azure")["available_node_types"].values():
        assert (
            one["node_config"]["azure_arm_parameters"].keys() - {"availability_zone"}
            <= template["parameters"].keys()
        )
    spot, on_demand = workers(written("azure"))
    assert (
        spot["node_config"]["azure_arm_parameters"].items()
        >= {"priority": "Spot", "evictionPolicy": "Delete"}.items()
    )
    assert "priority" not in on_demand["node_config"]["azure_arm_parameters"]
    assert on_demand["node_config"]["azure_arm_parameters"]["availability_zone"] == "1,2"


def test_spot_machines_of_gcp_are_deleted_and_no_other_key_lets_in() -> None:
    spot, plain, gpu = [one["node_config"] for one in workers(written("gcp"))]
    assert (
        spot["scheduling"].items()
        >= {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}.items()
    )
    assert "scheduling" not in plain
    assert gpu["scheduling"]["onHostMaintenance"] == "TERMINATE"
    assert {"key": "block-project-ssh-keys", "value": "true"} in spot["metadata"]["items"]
    head = written("gcp")["available_node_types"]["head"]["node_config"]
    assert head["serviceAccounts"][0]["scopes"] == ["https://www.googleapis.com/auth/compute"]
    assert not any("serviceAccounts" in one for one in (spot, plain, gpu))


class Answer:
    def __init__(self, content: Any) -> None:
        self.content = content

    @property
    def text(self) -> str:
        return str(self.content)

    def json(self) -> Any:
        return self.content

    def raise_for_status(self) -> None:
        """Nothing is refused."""


@pytest.mark.parametrize(
    ("cloud", "answers", "address"),
    [
        (
            ending.gcp,
            {
                "token": {"access_token": "t"},
                "zone": "projects/7/zones/us-central1-a",
                "name": "ray-1",
            },
            "https://compute.googleapis.com/compute/v1/projects/7/zones/us-central1-a/instances/ray-1",
        ),
        (
            ending.azure,
            {
                "token?api-version=2018-02-01&resource=https://management.azure.com/": {
                    "access_token": "t"
                },
                "compute?api-version=2021-02-01": {
                    "resourceId": "/subscriptions/s/resourceGroups/r/vm"
                },
            },
            "https://management.azure.com/subscriptions/s/resourceGroups/r/vm?api-version=2024-07-01",
        ),
    ],
)
def test_a_machine_deletes_itself_by_its_own_right(cloud: Any, answers: Json, address: str) -> None:
    deleted = []

    def get(url: str, **_: Any) -> Answer:
        return Answer(next(content for end, content in answers.items() if url.endswith(end)))

    def delete(url: str, headers: dict[str, str], **_: Any) -> Answer:
        deleted.append((url, headers))
        return Answer("")

    cloud(get, delete)
    assert deleted == [(address, {"Authorization": "Bearer t"})]


def test_ray_s_launcher_still_refuses_what_it_does_not_know_and_finds_machines_by_the_same_calls() -> (
    None
):
    from ray.autoscaler._private.providers import _get_node_provider
    from ray.autoscaler.node_provider import NodeProvider

    file = written("aws")
    with pytest.raises(SpecError, match="idle_minutes"):
        private.validate({**file, "idle_minutes": 3})
    assert list(inspect.signature(_get_node_provider).parameters) == [
        "provider_config",
        "cluster_name",
        "use_cache",
    ]
    assert all(
        hasattr(NodeProvider, name)
        for name in (
            "non_terminated_nodes",
            "node_tags",
            "external_ip",
            "internal_ip",
            "is_running",
        )
    )
