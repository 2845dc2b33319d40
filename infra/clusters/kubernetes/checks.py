"""Mistakes in a cluster on Kubernetes that can be found without contacting it.

The rules for KubeRay's types come from its CRDs, as JSON schemas that refuse unknown keys:
`kuberay_schemas.json.xz`, made from github.com/ray-project/kuberay
(helm-chart/kuberay-operator/crds, Apache License 2.0). The API server's additional rules in CEL are
not covered.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from regrow.infra.clusters.description import HeadPod, Kubernetes, Pods
from regrow.infra.clusters.kubernetes import manifests
from regrow.search.errors import SpecError
from regrow.search.options import nearest

_SCHEMAS = Path(__file__).with_name("kuberay_schemas.json.xz")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_TAKEN = ("/dev/shm", "/tmp/ray", manifests.PROJECT_FOLDER)  # noqa: S108 - KubeRay and regrow mount there


def check(cluster: Kubernetes) -> None:
    """Raise SpecError for the first mistake in a cluster file."""
    for error in _mistakes(cluster):
        raise error
    for made in (
        manifests.ray_cluster(cluster, user="", ray="2.60.0"),
        manifests.ray_job(cluster, ("regrow", "run", "sweep.yaml"), user="", ray="2.60.0"),
    ):
        for error in refused(made):
            raise error


def refused(made: Mapping[str, Any]) -> Iterator[SpecError]:
    """Yield what KubeRay's CRD does not accept in an object."""
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships none

    schema = _schemas()[f"{made['apiVersion']} {made['kind']}"]
    for error in Draft202012Validator(schema).iter_errors(made):
        path = [str(step) for step in error.absolute_path]
        if error.validator == "additionalProperties":
            known = error.schema["properties"]
            for name in sorted(error.instance.keys() - known):
                key, hint = _key([*path, name]), nearest(name, known)
                yield SpecError(key, error.instance[name], "is not known", hint)
        else:
            yield SpecError(_key(path), error.instance, f"is refused by KubeRay: {error.message}")


def _key(path: Sequence[str]) -> str:
    """Return the key in the cluster file that the value comes from; else its path in the object."""
    found = re.fullmatch(
        r"spec\.(?:rayClusterSpec\.)?(?:headGroupSpec|workerGroupSpecs\.(\d+))\.template\.spec\.(tolerations\..*)",
        ".".join(path),
    )
    if found is None:
        return ".".join(path)
    return f"head.{found[2]}" if found[1] is None else f"workers.{found[1]}.{found[2]}"


@cache
def _schemas() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress(_SCHEMAS.read_bytes()))
    return found


def _mistakes(cluster: Kubernetes) -> Iterator[SpecError]:
    for key in ("setup", "lock"):
        if written := getattr(cluster, key):
            problem = "is for machines, and pods are made of an image"
            yield SpecError(key, written, problem, "put it into the image")
    if " " in cluster.image.strip() or cluster.image != cluster.image.strip():
        yield SpecError("image", cluster.image, "is no name of an image", "write registry/name:tag")
    yield from _names(cluster)
    yield from _volumes(cluster)
    yield from _nodes(cluster)


def _names(cluster: Kubernetes) -> Iterator[SpecError]:
    written = {
        "service_account": cluster.service_account,
        **{f"pull_secrets.{place}": name for place, name in enumerate(cluster.pull_secrets)},
        **{f"secrets.{place}": name for place, name in enumerate(cluster.secrets)},
        **{f"volumes.{path}": claim for path, claim in cluster.volumes.items()},
    }
    for key, name in written.items():
        if name is not None and not _NAME.fullmatch(name):
            hint = "write lower-case letters, digits, '-' and '.'"
            yield SpecError(key, name, "is no name of an object", hint)
    seen: set[str] = set()
    for place, group in enumerate(cluster.workers):
        if group.name in seen:
            problem = "is the name of a group before it"
            yield SpecError(f"workers.{place}.name", group.name, problem, "write another one")
        if group.least > group.most:
            problem = f"is more than `most`, {group.most}"
            yield SpecError(f"workers.{place}.least", group.least, problem, "write less")
        seen.add(group.name)


def _volumes(cluster: Kubernetes) -> Iterator[SpecError]:
    for path in cluster.volumes:
        if not path.startswith("/") or path.rstrip("/") in ("", *_TAKEN):
            hint = "write an absolute path, such as /data"
            yield SpecError(f"volumes.{path}", path, "is no place for a volume", hint)
    mounted = [f"{path.rstrip('/')}/" for path in cluster.volumes]
    for place, folder in enumerate(cluster.shared):
        if not f"{folder.rstrip('/')}/".startswith(tuple(mounted)):
            hint = "pods share nothing else"
            yield SpecError(f"shared.{place}", folder, "is in none of `volumes`", hint)


def _nodes(cluster: Kubernetes) -> Iterator[SpecError]:
    asked: list[tuple[str, HeadPod | Pods, str]] = [("head", cluster.head, "on-demand")]
    asked += [
        (f"workers.{place}", group, group.market) for place, group in enumerate(cluster.workers)
    ]
    for key, one, market in asked:
        selector = one.node_selector
        for label, value in selector.items():
            if not _LABEL_KEY.fullmatch(label) or not _LABEL_VALUE.fullmatch(value):
                hint = "see kubectl get nodes --show-labels"
                wrong = {label: value}
                yield SpecError(f"{key}.node_selector", wrong, "is no label of a node", hint)
        spot = next(
            (label for label in selector if manifests.SPOT_LABELS.get(label) == selector[label]),
            None,
        )
        if market == "spot" and not selector:
            hint = "write the label of your spot nodes"
            yield SpecError(f"{key}.node_selector", None, "is missing", hint)
        if market != "spot" and spot is not None:
            there = "a group that is not `market: spot`"
            if key == "head":
                there = "the head's pod, which is never on spot"
            problem = f"leads to spot nodes, and this is {there}"
            yield SpecError(f"{key}.node_selector.{spot}", selector[spot], problem, "leave it out")
