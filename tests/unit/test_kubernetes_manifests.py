"""What Kubernetes is told: valid, the same each time, and safe where the defaults are not."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest
import yaml

from regrow.infra.clusters.description import Kubernetes
from regrow.infra.clusters.kubernetes import checks, manifests
from regrow.search.errors import SpecError
from tests.unit.kubernetes_clusters import FULL, LEAST, SPOT, described

WORDS = ("join", "my sweep.yaml", "--state", "s3://bucket/prefix")


def jobs_of(cluster: Kubernetes) -> list[dict[str, Any]]:
    return manifests.agents(cluster, WORDS, user="ada")


def pods_of(cluster: Kubernetes) -> list[dict[str, Any]]:
    return [job["spec"]["template"]["spec"] for job in jobs_of(cluster)]


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
    turned = copy.deepcopy(written)
    for part in (turned["volumes"], turned["env"]):
        there = list(reversed(part.items()))
        part.clear()
        part.update(there)
    first, second = (manifests.written(jobs_of(described(one))) for one in (written, turned))
    assert first == second
    assert b"&id" not in first


def test_what_is_written_is_read_the_same() -> None:
    made = [manifests.network_policy(described(FULL)), *jobs_of(described(FULL))]
    assert list(yaml.safe_load_all(manifests.written(made, "two\nlines"))) == made


@pytest.mark.parametrize("data", [FULL, LEAST])
def test_groups_on_demand_stay_off_nodes_that_are_known_to_be_spot(data: dict[str, Any]) -> None:
    cluster = described(data)
    for group, pod in zip(cluster.workers, pods_of(cluster), strict=True):
        if group.market == "spot":
            assert "affinity" not in pod
            continue
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        kept_off = {
            rule["key"]: rule["values"]
            for rule in term["matchExpressions"]
            if rule["operator"] == "NotIn"
        }
        assert kept_off == {key: [value] for key, value in manifests.SPOT_LABELS.items()}


def test_a_pod_has_what_it_asks_for() -> None:
    (container,) = pods_of(described(FULL))[0]["containers"]
    amounts = {"cpu": "3500m", "memory": str(16 << 30), "nvidia.com/gpu": "1"}
    assert container["resources"] == {"limits": amounts, "requests": amounts}


def test_no_container_gains_rights_and_no_pod_has_an_account_at_the_api_server() -> None:
    for pod in pods_of(described(FULL)):
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod["containers"], *pod["initContainers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
        assert pod["automountServiceAccountToken"] is False


def test_values_of_variables_are_in_the_secret_alone() -> None:
    cluster = described(FULL)
    kept = manifests.secret(cluster, "env", {"MODE": b"offline-4711", "HF_TOKEN": b"hf-secret"})
    assert {key: base64.b64decode(value) for key, value in kept["data"].items()} == {
        "MODE": b"offline-4711",
        "HF_TOKEN": b"hf-secret",
    }
    others = manifests.written([manifests.network_policy(cluster), *jobs_of(cluster)])
    assert b"offline-4711" not in others
    for pod in pods_of(cluster):
        sources = [one["secretRef"]["name"] for one in pod["containers"][0]["envFrom"]]
        assert sources == ["aws", "sweep-env"]


def test_no_job_stays_for_ever_and_only_what_another_pod_would_change_starts_one() -> None:
    for job in jobs_of(described(FULL)):
        assert job["spec"]["activeDeadlineSeconds"] == 2 * 86400
        assert job["spec"]["ttlSecondsAfterFinished"] == manifests.KEPT_SECONDS
        last = job["spec"]["podFailurePolicy"]["rules"][-1]
        assert (last["action"], last["onExitCodes"]["values"]) == ("FailJob", [2, 4])


def test_only_own_pods_reach_a_pod() -> None:
    spec = manifests.network_policy(described(FULL))["spec"]
    own = {"matchLabels": {"regrow.io/cluster": "sweep"}}
    assert spec["podSelector"] == own
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"from": [{"podSelector": own}]}]


@pytest.mark.parametrize("data", [FULL, LEAST])
def test_the_api_server_takes_them(data: dict[str, Any]) -> None:
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed"
    ).validate
    cluster = described(data)
    validate(manifests.network_policy(cluster), "1.30", strict=True)
    validate(manifests.secret(cluster, "env", {"A": b"1"}), "1.30", strict=True)
    for job, group in zip(jobs_of(cluster), cluster.workers, strict=True):
        validate(job, "1.30", strict=True)
        assert job["metadata"]["labels"]["regrow.io/cluster"] == cluster.name, "`down` finds it"
        assert job["metadata"]["name"] == f"{cluster.name}-{group.name}"
        assert job["spec"]["parallelism"] == job["spec"]["completions"] == group.most
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["command"][1:5] == ["-m", "regrow", "join", "my sweep.yaml"]
        assert (container["command"][-1] == "--spot") == (group.market == "spot")
        assert container["workingDir"] == pod["initContainers"][0]["volumeMounts"][0]["mountPath"]
        assert "/dev/shm" in [one["mountPath"] for one in container["volumeMounts"]]
        own = job["spec"]["template"]["metadata"]["labels"]["regrow.io/cluster"]
        assert own == cluster.name, "its network policy is for them"
