"""What Kubernetes is told: valid, the same each time, and safe where the defaults are not."""

from __future__ import annotations

import base64
import copy
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from regrow.infra.clusters.description import Kubernetes
from regrow.infra.clusters.kubernetes import checks, manifests
from regrow.search.errors import SpecError
from tests.unit.kubernetes_clusters import FULL, LEAST, SPOT, described

WORDS = ("regrow", "run", "my sweep.yaml", "--state", "s3://bucket/prefix")


def cluster_of(cluster: Kubernetes) -> dict[str, Any]:
    return manifests.ray_cluster(cluster, user="ada", ray="2.60.0")


def job_of(cluster: Kubernetes) -> dict[str, Any]:
    return manifests.ray_job(
        cluster, WORDS, user="ada", ray="2.60.0", environment={"SLOTS": "3 4", "A": "=b"}
    )


def specs(cluster: Kubernetes) -> Iterator[dict[str, Any]]:
    """The RayCluster's part of both kinds."""
    yield cluster_of(cluster)["spec"]
    yield job_of(cluster)["spec"]["rayClusterSpec"]


def templates(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the head, then of the groups."""
    return [
        spec["headGroupSpec"]["template"]["spec"],
        *(group["template"]["spec"] for group in spec["workerGroupSpecs"]),
    ]


@pytest.mark.parametrize("data", [FULL, LEAST])
def test_the_operator_takes_them(data: dict[str, Any]) -> None:
    cluster = described(data)
    assert [*checks.refused(cluster_of(cluster)), *checks.refused(job_of(cluster))] == []
    checks.check(cluster)


def test_the_operator_would_not_take_a_key_that_it_does_not_know() -> None:
    made = cluster_of(described(FULL))
    made["spec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    (error,) = checks.refused(made)
    assert (
        str(error)
        == "spec.workerGroupSpecs.0.maxReplica: 3: is not known; did you mean 'maxReplicas'?"
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {
                "workers": [
                    {**FULL["workers"][0], "tolerations": [{"key": "spot", "efect": "NoSchedule"}]}
                ]
            },
            "workers.0.tolerations.0.efect: \"NoSchedule\": is not known; did you mean 'effect'?",
        ),
        (
            {"head": {"tolerations": [{"key": 3}]}},
            "head.tolerations.0.key: 3: is refused by KubeRay: 3 is not of type 'string'",
        ),
        (
            {"head": {"node_selector": SPOT}},
            (
                'head.node_selector.karpenter.sh/capacity-type: "spot": leads to spot nodes, and this is the head\'s pod, which is never on '
                "spot; leave it out"
            ),
        ),
        (
            {"workers": [{**FULL["workers"][1], "node_selector": SPOT}]},
            (
                'workers.0.node_selector.karpenter.sh/capacity-type: "spot": leads to spot nodes, and this is a group that is not '
                "`market: spot`; leave it out"
            ),
        ),
        (
            {"workers": [{**FULL["workers"][0], "node_selector": {}}]},
            "workers.0.node_selector: is missing; write the label of your spot nodes",
        ),
        (
            {"workers": [FULL["workers"][1], FULL["workers"][1]]},
            'workers.1.name: "steady": is the name of a group before it; write another one',
        ),
        (
            {"workers": [{**FULL["workers"][1], "least": 9}]},
            "workers.0.least: 9: is more than `most`, 8; write less",
        ),
        (
            {"setup": ["apt update"]},
            'setup: ["apt update"]: is for machines, and pods are made of an image; put it into the image',
        ),
        (
            {"secrets": ["My Secret"]},
            "secrets.0: \"My Secret\": is no name of an object; write lower-case letters, digits, '-' and '.'",
        ),
        (
            {"volumes": {"data": "sets"}, "shared": []},
            'volumes.data: "data": is no place for a volume; write an absolute path, such as /data',
        ),
        (
            {"shared": ["/database"]},
            'shared.0: "/database": is in none of `volumes`; pods share nothing else',
        ),
        ({"image": "a b"}, 'image: "a b": is no name of an image; write registry/name:tag'),
    ],
)
def test_a_mistake_is_one_line_that_names_the_key(change: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError) as caught:
        checks.check(described(FULL, **change))
    assert str(caught.value) == line


def test_they_are_the_same_bytes_each_time_in_whatever_order_a_mapping_was_written() -> None:
    written = {**copy.deepcopy(FULL), "volumes": {"/data": "sets", "/cache": "models"}}
    written["head"]["node_selector"] = {"pool": "base", "arch": "amd64"}
    turned = copy.deepcopy(written)
    for part in (turned["volumes"], turned["env"], turned["head"]["node_selector"]):
        there = list(reversed(part.items()))
        part.clear()
        part.update(there)
    first, second = (
        manifests.written([cluster_of(described(one)), job_of(described(one))])
        for one in (written, turned)
    )
    assert first == second
    assert b"&id" not in first


def test_what_is_written_is_read_the_same() -> None:
    made = [manifests.network_policy(described(FULL)), cluster_of(described(FULL))]
    assert list(yaml.safe_load_all(manifests.written(made, "two\nlines"))) == made


@pytest.mark.parametrize("data", [FULL, LEAST])
def test_nobody_gives_the_cluster_work_without_a_token_and_no_trial_is_on_the_head(
    data: dict[str, Any],
) -> None:
    for spec in specs(described(data)):
        assert spec["authOptions"] == {"mode": "token", "secretName": f"{data['name']}-token"}
        assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


@pytest.mark.parametrize("data", [FULL, LEAST])
def test_the_head_and_groups_on_demand_stay_off_nodes_that_are_known_to_be_spot(
    data: dict[str, Any],
) -> None:
    for spec in specs(described(data)):
        markets = [
            "on-demand",
            *(group["labels"][manifests.MARKET] for group in spec["workerGroupSpecs"]),
        ]
        for market, pod in zip(markets, templates(spec), strict=True):
            if market == "spot":
                assert "affinity" not in pod
                continue
            (term,) = pod["affinity"]["nodeAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"
            ]["nodeSelectorTerms"]
            kept_off = {
                rule["key"]: rule["values"]
                for rule in term["matchExpressions"]
                if rule["operator"] == "NotIn"
            }
            assert kept_off == {key: [value] for key, value in manifests.SPOT_LABELS.items()}


def test_the_groups_are_asked_in_the_order_of_the_file_and_say_what_they_are() -> None:
    for spec in specs(described(FULL)):
        groups = spec["workerGroupSpecs"]
        assert [
            (one["groupName"], one["priority"], one["minReplicas"], one["maxReplicas"])
            for one in groups
        ] == [
            ("spot", 2, 0, 30),
            ("steady", 1, 1, 8),
        ]
        assert groups[0]["labels"] == {
            "ray.io/market-type": "spot",
            "regrow.io/instance-type": "spot",
        }
        assert all("replicas" not in one for one in groups)  # the autoscaler's own
        assert spec["autoscalerOptions"]["version"] == "v2"
        assert spec["autoscalerOptions"]["idleTimeoutSeconds"] == 300


def test_a_pod_has_what_it_asks_for_and_offers_no_cpu_that_is_not_there() -> None:
    for spec in specs(described(FULL)):
        group = spec["workerGroupSpecs"][0]
        resources = group["template"]["spec"]["containers"][0]["resources"]
        assert resources["limits"] == {
            "cpu": "3500m",
            "memory": str(16 << 30),
            "nvidia.com/gpu": "1",
        }
        assert resources["requests"] == resources["limits"]
        assert group["rayStartParams"] == {"num-cpus": "3"}


@pytest.mark.parametrize("data", [FULL, LEAST])
def test_a_pod_that_is_to_end_has_time_and_is_drained(data: dict[str, Any]) -> None:
    cluster = described(data)
    for spec in specs(cluster):
        for pod in templates(spec):
            ray = pod["containers"][0]
            environment = {one["name"]: one["value"] for one in ray["env"]}
            assert pod["terminationGracePeriodSeconds"] == 120
            assert float(environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"]) < 120
            hook = ray["lifecycle"]["preStop"]["exec"]["command"]
            assert hook[1:3] == ["-m", "regrow.infra.clusters.kubernetes.leave"]
            assert float(hook[3]) < 120


def test_no_container_gains_rights_and_workers_have_no_account_at_the_api_server() -> None:
    for spec in specs(described(FULL)):
        for pod in templates(spec):
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in (*pod["containers"], *pod.get("initContainers", ())):
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                }
        assert all(pod["automountServiceAccountToken"] is False for pod in templates(spec)[1:])


def test_values_of_variables_are_in_the_secret_alone() -> None:
    cluster = described(FULL)
    kept = manifests.secret(cluster, "env", {"MODE": b"offline-4711", "HF_TOKEN": b"hf-secret"})
    assert {key: base64.b64decode(value) for key, value in kept["data"].items()} == {
        "MODE": b"offline-4711",
        "HF_TOKEN": b"hf-secret",
    }
    others = manifests.written(
        [manifests.network_policy(cluster), cluster_of(cluster), job_of(cluster)]
    )
    assert b"offline-4711" not in others
    for spec in specs(cluster):
        for pod in templates(spec):
            assert [one["secretRef"]["name"] for one in pod["containers"][0]["envFrom"]] == [
                "aws",
                "sweep-env",
            ]


def test_a_lost_head_is_a_new_cluster_with_the_same_command() -> None:
    spec = job_of(described(FULL))["spec"]
    assert (spec["backoffLimit"], spec["submissionMode"], spec["suspend"]) == (
        100,
        "SidecarMode",
        False,
    )
    words = shlex.split(spec["entrypoint"])
    assert words == [
        "/opt/venv/bin/python",
        "-m",
        "regrow.infra.clusters.kubernetes.job",
        "--in",
        "/project",
        "--set",
        "A==b",
        "--set",
        "SLOTS=3 4",
        "--",
        *WORDS,
    ]
    head = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    lost = {
        one["key"]: one["tolerationSeconds"]
        for one in head["tolerations"]
        if "tolerationSeconds" in one
    }
    assert lost == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}


def test_nothing_stays_up_for_ever() -> None:
    job, head = (
        job_of(described(FULL))["spec"],
        cluster_of(described(FULL))["spec"]["headGroupSpec"]["template"]["spec"],
    )
    assert job["shutdownAfterJobFinishes"] is True
    assert (job["ttlSecondsAfterFinished"], job["activeDeadlineSeconds"]) == (300, 2 * 86400)
    idle = next(one for one in head["containers"] if one["name"] == "idle")
    assert idle["command"][-6:] == ["--cluster", "sweep", "--namespace", "ml", "--seconds", "300"]


def test_only_own_pods_and_the_operator_reach_a_pod() -> None:
    spec = manifests.network_policy(described(FULL))["spec"]
    own = {"matchLabels": {"regrow.io/cluster": "sweep"}}
    assert spec["podSelector"] == own
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"][0] == {"from": [{"podSelector": own}]}
    assert spec["ingress"][1]["ports"] == [{"protocol": "TCP", "port": 8265}]
    for one in specs(described(FULL)):
        labelled = [
            one["headGroupSpec"]["template"],
            *(group["template"] for group in one["workerGroupSpecs"]),
        ]
        assert all(
            template["metadata"]["labels"]["regrow.io/cluster"] == "sweep" for template in labelled
        )


@pytest.mark.parametrize("data", [FULL, LEAST])
def test_agents_are_jobs_that_need_no_operator(data: dict[str, Any]) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    ).validate
    cluster = described(data)
    jobs = manifests.agents(cluster, ("join", "sweep.yaml", "--state", "s3://b/x"), user="me")
    for job, group in zip(jobs, cluster.workers, strict=True):
        validate(job, "1.30", strict=True)
        assert job["metadata"]["labels"]["regrow.io/cluster"] == cluster.name, "`down` finds it"
        assert job["metadata"]["name"] == f"{cluster.name}-{group.name}"
        assert job["spec"]["parallelism"] == job["spec"]["completions"] == group.most
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["command"][1:5] == ["-m", "regrow", "join", "sweep.yaml"]
        assert (container["command"][-1] == "--spot") == (group.market == "spot")
        assert "lifecycle" not in container, "an agent leaves by itself"
        assert container["workingDir"] == pod["initContainers"][0]["volumeMounts"][0]["mountPath"]
        own = job["spec"]["template"]["metadata"]["labels"]["regrow.io/cluster"]
        assert own == cluster.name, "its network policy is for them"


@pytest.mark.parametrize("data", [FULL, LEAST])
def test_the_api_server_takes_the_core_objects(data: dict[str, Any]) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    ).validate
    cluster = described(data)
    validate(manifests.network_policy(cluster), "1.30", strict=True)
    validate(manifests.secret(cluster, "env", {"A": b"1"}), "1.30", strict=True)
    for spec in specs(cluster):
        for pod in templates(spec):
            validate(
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": pod},
                "1.30",
                strict=True,
            )
