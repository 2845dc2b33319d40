"""Mistakes in a cluster on Kubernetes that can be found without contacting it."""

from __future__ import annotations

import re

from regrow.infra.clusters.description import Kubernetes
from regrow.infra.clusters.kubernetes import manifests
from regrow.search.errors import SpecError
from regrow.search.options import nearest

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_TOLERATION = frozenset({"key", "operator", "value", "effect", "tolerationSeconds"})
_TAKEN = ("/dev/shm", manifests.PROJECT_FOLDER)  # noqa: S108 - regrow mounts there


def check(cluster: Kubernetes) -> None:
    """Raise SpecError for the first mistake in a cluster file."""
    if cluster.setup:
        problem = "is for machines, and pods are made of an image"
        raise SpecError("setup", cluster.setup, problem, "put it into the image")
    if " " in cluster.image.strip() or cluster.image != cluster.image.strip():
        raise SpecError("image", cluster.image, "is no name of an image", "write registry/name:tag")
    _check_names(cluster)
    _check_volumes(cluster)
    _check_nodes(cluster)


def _check_names(cluster: Kubernetes) -> None:
    written = {
        "service_account": cluster.service_account,
        **{f"pull_secrets.{place}": name for place, name in enumerate(cluster.pull_secrets)},
        **{f"secrets.{place}": name for place, name in enumerate(cluster.secrets)},
        **{f"volumes.{path}": claim for path, claim in cluster.volumes.items()},
    }
    for key, name in written.items():
        if name is not None and not _NAME.fullmatch(name):
            hint = "write lower-case letters, digits, '-' and '.'"
            raise SpecError(key, name, "is no name of an object", hint)
    seen: set[str] = set()
    for place, group in enumerate(cluster.workers):
        if group.name in seen:
            problem = "is the name of a group before it"
            raise SpecError(f"workers.{place}.name", group.name, problem, "write another one")
        seen.add(group.name)


def _check_volumes(cluster: Kubernetes) -> None:
    for path in cluster.volumes:
        if not path.startswith("/") or path.rstrip("/") in ("", *_TAKEN):
            hint = "write an absolute path, such as /data"
            raise SpecError(f"volumes.{path}", path, "is no place for a volume", hint)
    mounted = [f"{path.rstrip('/')}/" for path in cluster.volumes]
    for place, folder in enumerate(cluster.shared):
        if not f"{folder.rstrip('/')}/".startswith(tuple(mounted)):
            hint = "pods share nothing else"
            raise SpecError(f"shared.{place}", folder, "is in none of `volumes`", hint)


def _check_nodes(cluster: Kubernetes) -> None:
    for place, group in enumerate(cluster.workers):
        key, selector = f"workers.{place}", group.node_selector
        for label, value in selector.items():
            if not _LABEL_KEY.fullmatch(label) or not _LABEL_VALUE.fullmatch(value):
                hint = "see kubectl get nodes --show-labels"
                wrong = {label: value}
                raise SpecError(f"{key}.node_selector", wrong, "is no label of a node", hint)
        spot = next(
            (label for label in selector if manifests.SPOT_LABELS.get(label) == selector[label]),
            None,
        )
        for number, one in enumerate(group.tolerations):
            for word in sorted(one.keys() - _TOLERATION):
                path = f"{key}.tolerations.{number}.{word}"
                raise SpecError(path, one[word], "is not known", nearest(word, _TOLERATION))
        if group.market == "spot" and not selector:
            hint = "write the label of your spot nodes"
            raise SpecError(f"{key}.node_selector", None, "is missing", hint)
        if group.market != "spot" and spot is not None:
            problem = "leads to spot nodes, and this is a group that is not `market: spot`"
            raise SpecError(f"{key}.node_selector.{spot}", selector[spot], problem, "leave it out")
