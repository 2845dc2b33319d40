"""What a cluster file says: which machines, where, and what they are to have. Nothing is looked up or started here."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WithJsonSchema, model_validator

from regrow.search.durations import Span, seconds
from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.search.spec.errors import explain
from regrow.search.spec.parts import Count, Memory, Number, Part, in_bytes

Market = Literal["spot", "on-demand"]
Text = Annotated[str, Field(min_length=1)]
Texts = dict[Text, str]
Time = Annotated[Number, BeforeValidator(seconds, json_schema_input_type=Span), Field(gt=0)]
Bytes = Annotated[Count, BeforeValidator(in_bytes, json_schema_input_type=Memory), Field(gt=0)]
_LABEL = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"
"""What all of the clouds take as part of a name."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPAN, _SIZE = 'write seconds, or text such as "10min" or "2h"', 'write a number of bytes, or text such as "8GiB"'
_FORMS = {
    "idle": _SPAN, "expires": _SPAN, "env": "write NAME: value, one a line", "setup": "write a list of commands",
    "head.memory": _SIZE,
    **{f"workers.{place}.{key}": form for place in range(9) for key, form in (("after", _SPAN), ("memory", _SIZE))},
}
"""What to write where a value of more than one form may stand."""


def _label(value: str) -> str:
    if not re.fullmatch(_LABEL, value):
        raise ValueError("is no name of a cluster; write at most 40 lower-case letters, digits and '-', beginning with a letter")
    return value


Label = Annotated[str, AfterValidator(_label), WithJsonSchema({"type": "string", "pattern": f"^{_LABEL}$"})]


class Group(Part):
    """What is the same of all kinds of workers."""

    market: Market = "on-demand"
    """`spot`: cheaper, and may be taken away at any time."""
    most: Annotated[Count, Field(ge=1)]
    """How many there may be at a time."""
    least: Annotated[Count, Field(ge=0)] = 0
    """How many there are as long as the cluster is up."""
    after: Time | None = None
    """Asked for only by trials that have waited so long for those before: seconds, or "10min". None: at once."""


class Head(Part):
    """The machine that holds the cluster together: Ray's head, the coordinator and the driver. On-demand, without trials."""

    type: Text
    """Its instance type."""
    disk: Annotated[Count, Field(ge=10)] = 100
    """GB of its disk."""


class Workers(Group):
    """Machines of one type, as many as are needed up to `most`."""

    type: Text
    """The instance type."""
    zones: tuple[Text, ...] = ()
    """Availability zones, tried in this order. Empty: those of the cluster."""
    disk: Annotated[Count, Field(ge=10)] = 100
    """GB of the disk."""


class Pods(Group):
    """Pods of one kind, as many as are needed up to `most`. Which nodes are spot `node_selector` says."""

    name: Label
    """Of the group, in its pods' names."""
    cpu: Annotated[Number, Field(gt=0)]
    """CPUs of a pod."""
    memory: Bytes
    """Bytes, or text such as "8GiB"."""
    gpu: Annotated[Count, Field(ge=0)] = 0
    """GPUs of a pod."""
    node_selector: Texts = Field(default_factory=dict)
    """Labels of the nodes on which they may be."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """Of taints of these nodes, as in a pod."""


class HeadPod(Part):
    """The pod of Ray's head, the coordinator and the driver. It takes no trials."""

    cpu: Annotated[Number, Field(gt=0)] = 2
    """CPUs."""
    memory: Bytes = 8 << 30
    """Bytes, or text such as "8GiB"."""
    node_selector: Texts = Field(default_factory=dict)
    """Labels of the nodes on which it may be; not one of spot nodes."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """Of taints of these nodes, as in a pod."""


class Cluster(Part):
    """What is the same on every kind of cluster."""

    name: Label
    """Of the cluster: at most 40 lower-case letters, digits and '-'. Two clusters of one user have two names."""
    on: str
    """Where the machines are."""
    idle: Time = 600.0
    """Seconds, or "10min". A worker without a trial goes after so long, the whole cluster after so long without an experiment."""
    expires: Time = 7 * 86400.0
    """After so long its machines' tags say that it is forgotten: seconds, or "2d"."""
    prices: Text | None = None
    """A CSV file of prices per hour, InstanceType,Region,Price,SpotPrice, relative to this one. None: costs are not known."""
    python: Text | None = None
    """The interpreter of an environment with regrow in it that all machines, or the image, have. None: one is made."""
    lock: Text | None = None
    """Of which the environment is made: a file of requirements, relative to this one. None: what is installed here."""
    setup: tuple[Text, ...] = ()
    """Commands that each machine runs before anything else, such as the installation of a driver."""
    env: Texts = Field(default_factory=dict)
    """Environment variables of head, workers and trials. `$NAME` as the whole value: that of this variable here."""
    shared: tuple[Text, ...] = ()
    """Folders that all machines share, in which the state of an experiment may be. Without them it has to be in a bucket."""

    @model_validator(mode="after")
    def _environment(self) -> Self:
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                raise SpecError(f"env.{name}", "***", "is no name of a variable", "write letters, digits and '_'")
        if self.python is not None and self.lock is not None:
            raise SpecError("lock", self.lock, "stands beside python, which has its packages already", "keep one of them")
        return self

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Cluster:
        """The cluster that plain data describe. Raises SpecError."""
        if "on" not in data:
            raise SpecError("on", None, "is missing", f"add `on:` with one of {', '.join(KINDS)}")
        kind = KINDS.get(data["on"]) if isinstance(data["on"], str) else None
        if kind is None:
            raise SpecError("on", data["on"], "is no place for a cluster", nearest(data["on"], KINDS))
        for key in data.keys() - kind.model_fields.keys():
            if there := [name for name, other in KINDS.items() if key in other.model_fields]:
                raise SpecError(str(key), data[key], f"is for clusters on {' or '.join(there)}", "leave it out")
        try:
            return kind.model_validate(data)
        except ValidationError as error:
            raise explain(error, data, kind, _PARTS[kind], _FORMS) from None

    def groups(self) -> tuple[Group, ...]:
        """The groups of workers that come and go; empty where the machines are there."""
        return tuple(one for one in getattr(self, "workers", ()) if isinstance(one, Group))

    def market(self) -> dict[str, Any] | None:
        """What the specification's key `market` is to be: which kind of machine is asked for first, and how long; None: any."""
        groups = self.groups()
        other = next((one for one in groups if one.market != groups[0].market), None)
        return None if other is None or other.after is None else {"first": groups[0].market, "after": other.after}

    def to_json(self) -> dict[str, Any]:
        """Plain data that `parse` turns into an equal one."""
        return self.model_dump(mode="json", exclude_defaults=True)


class OnVms(Cluster):
    """What is the same on AWS, GCP and Azure."""

    region: Text
    """Where its machines are."""
    zones: tuple[Text, ...] = ()
    """Availability zones, tried in this order. Empty: all of the region."""
    head: Head
    """The head's machine."""
    workers: Annotated[tuple[Workers, ...], Field(min_length=1)]
    """The groups of workers, those to be tried first before the others."""
    image: Text | None = None
    """The machine image. None: a current one of Ubuntu for CPUs, the cloud's own for deep learning where a type has GPUs."""
    user: Text | None = None
    """The image's user who may log in. None: that of the default image."""
    mounts: Texts = Field(default_factory=dict)
    """Files and folders that are copied to all machines: path there to path here."""
    reach: Text | None = None
    """From which addresses the machines may be reached by SSH, as a CIDR block. None: from this machine's own address alone."""


class Aws(OnVms):
    """Machines of Amazon EC2."""

    on: Literal["aws"]
    """Amazon Web Services."""
    role: Text | None = None
    """An instance profile of the machines. None: one is made with rights for this cluster's machines and nothing else."""
    private: Annotated[bool, Field(strict=True)] = False
    """Whether the machines are reached by their internal addresses, by way of a VPN."""


class Gcp(OnVms):
    """Machines of Google Compute Engine."""

    on: Literal["gcp"]
    """Google Cloud."""
    project: Text
    """The project's id."""


class Azure(OnVms):
    """Machines of Microsoft Azure."""

    on: Literal["azure"]
    """Microsoft Azure."""
    resource_group: Text
    """The resource group in which everything is made."""
    subscription: Text | None = None
    """The subscription's id. None: that of `az account show`."""


class Ssh(Cluster):
    """Machines that are there, and are reached by SSH."""

    on: Literal["ssh"]
    """Machines of your own."""
    user: Text
    """Who logs in on them."""
    key: Text = "~/.ssh/id_ed25519"
    """The private key for that; the head gets a copy, as it starts Ray on the workers."""
    head: Text
    """Address of the machine that is the head; it takes no trials."""
    workers: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Addresses of the others."""
    cpus: Annotated[Count, Field(ge=1)] | None = None
    """How many CPUs of each worker trials may have. None: all."""
    mounts: Texts = Field(default_factory=dict)
    """Files and folders that are copied to all machines: path there to path here."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for place, address in enumerate(self.workers):
            if address == self.head:
                raise SpecError(f"workers.{place}", address, "is the head, which takes no trials", "name another machine")
            if address in self.workers[:place]:
                raise SpecError(f"workers.{place}", address, "is named twice", "leave it out")
        return self


class Kubernetes(Cluster):
    """Pods of a Kubernetes cluster that has the KubeRay operator."""

    on: Literal["kubernetes"]
    """Kubernetes, by the KubeRay operator."""
    image: Text
    """The image of all pods, with regrow in it."""
    namespace: Label = "default"
    """Where its objects are made."""
    context: Text | None = None
    """The context of kubectl. None: the current one."""
    service_account: Text | None = None
    """Of the pods. None: the namespace's default."""
    pull_secrets: tuple[Text, ...] = ()
    """Names of secrets with which the image is pulled."""
    secrets: tuple[Text, ...] = ()
    """Names of secrets whose entries become environment variables of head and workers."""
    head: HeadPod = HeadPod()
    """The head's pod."""
    workers: Annotated[tuple[Pods, ...], Field(min_length=1)]
    """The groups of pods, those to be tried first before the others."""
    volumes: Texts = Field(default_factory=dict)
    """Claims of persistent volumes by the path at which pods see them."""


KINDS: dict[str, type[Cluster]] = {"aws": Aws, "gcp": Gcp, "azure": Azure, "ssh": Ssh, "kubernetes": Kubernetes}
"""By what stands at `on`."""
_PARTS: dict[type[Cluster], dict[str, type[Part]]] = {
    Kubernetes: {"head": HeadPod, "workers": Pods}, Ssh: {},
    **{kind: {"head": Head, "workers": Workers} for kind in (Aws, Gcp, Azure)},
}
"""What stands below their keys."""
