"""The contents of a cluster file: which machines, where, with what. Nothing is started here."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from regrow.infra.machine.ports import Ports
from regrow.search.bounds import MOST_TOGETHER
from regrow.search.durations import Span, bounded_seconds
from regrow.search.errors import SpecError
from regrow.search.options import nearest
from regrow.search.spec.errors import explain
from regrow.search.spec.parts import Count, Memory, Number, Part, StorePrices, in_bytes
from regrow.tasks.errors import UserError

Market = Literal["spot", "on-demand"]
Line = Annotated[str, Field(min_length=1)]
"""A shell command, with any characters."""
Time = Annotated[Number, BeforeValidator(bounded_seconds, json_schema_input_type=Span), Field(gt=0)]
Bytes = Annotated[Count, BeforeValidator(in_bytes, json_schema_input_type=Memory), Field(gt=0)]
_LABEL = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"
"""A name that all clouds accept as part of a name."""
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_OWN_OPTIONS = {
    "array": "agents",
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "time": "time",
    "cpus-per-task": "cpus",
    "mem": "memory",
    "gres": "gres",
    "constraint": "constraint",
    "output": "output",
    "error": "output",
    **dict.fromkeys(
        (
            *("chdir", "comment", "export", "export-file", "hold", "job-name", "no-requeue"),
            *("open-mode", "parsable", "requeue", "signal", "test-only", "wait", "wrap"),
        ),
        "",
    ),
}
"""Options of sbatch that `Slurm` sets, by the key that they are written at; "": by none."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPAN, _SIZE = (
    'write seconds, or text such as "10min" or "2h"',
    'write a number of bytes, or text such as "8GiB"',
)
_FORMS = {
    "prices": "write the path of a CSV file, or a list of {type: ..., on_demand: ..., spot: ...}",
    "expires": _SPAN,
    "idle": _SPAN,
    "time": _SPAN,
    "memory": _SIZE,
    "env": "write NAME: value, one a line",
    "setup": "write a list of commands",
    **{f"workers.{place}.memory": _SIZE for place in range(9)},
}
"""Hints for values that may have several forms."""


def _word(value: str) -> str:
    if not value.isprintable():
        raise ValueError("has a line end or another control character; leave that out")
    if value[:1] in ("-", " "):
        raise ValueError(
            "begins with what a command line could take for something else; write a name, a path or"
            " an address"
        )
    return value


def _of_form(pattern: str, problem: str) -> AfterValidator:
    """Return a validator that accepts only texts of the form."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(problem)
        return value

    return AfterValidator(check)


def _ports(value: str) -> str:
    try:
        Ports.parse(value)
    except UserError:
        raise ValueError(
            f"is no range of {Ports.LEAST} ports or more from 1024 to 65535; write the first and"
            ' the last one, as "20000-20100"'
        ) from None
    return value


Text = Annotated[str, Field(min_length=1), AfterValidator(_word)]
"""Text for command lines of other programs: not an option of theirs, and without line ends."""
User = Annotated[
    str,
    Field(min_length=1),
    _of_form(
        r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*\$?",
        "is no name of a user; write letters, digits, '_', '.', '@', '+' and '-', not beginning"
        " with a '-'",
    ),
]
Address = Annotated[
    str,
    Field(min_length=1),
    _of_form(
        r"[A-Za-z0-9_:\[][A-Za-z0-9_.:%\[\]-]*",
        "is no address of a machine; write a host name or an IP address, without user and port",
    ),
]
PortRange = Annotated[str, AfterValidator(_ports)]
Texts = dict[Text, Annotated[str, AfterValidator(_word)]]
Label = Annotated[
    str,
    _of_form(
        _LABEL,
        "is no name of a cluster; write at most 40 lower-case letters, digits and '-', beginning"
        " with a letter",
    ),
    WithJsonSchema({"type": "string", "pattern": f"^{_LABEL}$"}),
]


class WorkerGroup(Part):
    """Fields of every kind of workers."""

    market: Market = "on-demand"
    """`spot`: cheaper, and may be taken away at any time."""
    most: Annotated[Count, Field(ge=1, le=MOST_TOGETHER)]
    """Workers of the group, as long as the cloud has that many."""


class Workers(WorkerGroup):
    """Machines of one type."""

    type: Text
    """Instance type of the machines."""
    zones: tuple[Text, ...] = ()
    """Availability zones of the group. Empty: the cluster's zones."""
    disk: Annotated[Count, Field(ge=10)] = 100
    """Size of the disk in GB."""


class Pods(WorkerGroup):
    """Pods of one kind. `node_selector` decides whether their nodes are spot."""

    name: Label
    """Name of the group, part of its pods' names."""
    cpu: Annotated[Number, Field(gt=0)]
    """CPUs of a pod."""
    memory: Bytes
    """Bytes, or text such as "8GiB"."""
    gpu: Annotated[Count, Field(ge=0)] = 0
    """GPUs of a pod."""
    node_selector: Texts = Field(default_factory=dict)
    """Labels that the pods' nodes must have."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """Tolerations of taints of these nodes, in the form of a pod's."""


class Cluster(Part):
    """Fields of every kind of cluster."""

    name: Label
    """Name of the cluster: at most 40 lower-case letters, digits and '-'. Two clusters of one user
    need different names.
    """
    on: str
    """Where the machines are."""
    python: Text | None = None
    """The Python interpreter of an environment with regrow that all machines, or the image, have.
    None: an environment is made; on Slurm, this command's own.
    """
    setup: tuple[Line, ...] = ()
    """Commands that each machine runs before anything else, for example to install a driver or to
    load a module.
    """
    env: dict[Line, str] = Field(default_factory=dict)
    """Environment variables of agents and trials. `$NAME` as the whole value: the
    value of this variable here.
    """
    store_prices: StorePrices | None = None
    """Prices of requests to the state's bucket, for experiments that give none themselves. None:
    requests are not counted as cost.
    """
    shared: tuple[Text, ...] = ()
    """Folders that all machines share, which may hold an experiment's state. Without them the state
    has to be in a bucket.
    """

    @model_validator(mode="after")
    def _environment(self) -> Self:
        for name in self.env:
            if not _VARIABLE.fullmatch(name):
                hint = "write letters, digits and '_'"
                raise SpecError(f"env.{name}", "***", "is no name of a variable", hint)
        return self

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Cluster:
        """Return the cluster that plain data describe. Raises SpecError."""
        if "on" not in data:
            raise SpecError("on", None, "is missing", f"add `on:` with one of {', '.join(KINDS)}")
        kind = KINDS.get(data["on"]) if isinstance(data["on"], str) else None
        if kind is None:
            hint = nearest(data["on"], KINDS)
            raise SpecError("on", data["on"], "is no place for a cluster", hint)
        for key in data.keys() - kind.model_fields.keys():
            if there := [name for name, other in KINDS.items() if key in other.model_fields]:
                problem = f"is for clusters on {' or '.join(there)}"
                raise SpecError(str(key), data[key], problem, "leave it out")
        try:
            return kind.model_validate(data)
        except ValidationError as error:
            raise explain(error, data, kind, _PARTS[kind], _FORMS) from None

    def to_json(self) -> dict[str, Any]:
        """Return plain data that `parse` turns into an equal cluster."""
        return self.model_dump(mode="json", exclude_defaults=True)


class Price(Part):
    """What a machine of a type costs an hour. The currency is the user's."""

    type: Text
    """The instance type."""
    on_demand: Annotated[Number, Field(ge=0, le=1e6)] | None = None
    """On demand. None: unknown."""
    spot: Annotated[Number, Field(ge=0, le=1e6)] | None = None
    """On the spot market. None: unknown."""


class WithEnvironment(Cluster):
    """Fields of clusters on whose machines an environment can be made."""

    lock: Text | None = None
    """A requirements file from which the environment is made; its path is relative to the cluster
    file. None: from the packages installed here.
    """

    @model_validator(mode="after")
    def _packages(self) -> Self:
        if self.python is not None and self.lock is not None:
            problem = "stands beside python, which has its packages already"
            raise SpecError("lock", self.lock, problem, "keep one of them")
        return self


class WithPrices(Cluster):
    """Fields of clusters whose machines come with an experiment and go with it."""

    expires: Time = 7 * 86400.0
    """After this time the machines end, whatever happens: seconds, or "2d"."""
    prices: Text | tuple[Price, ...] | None = None
    """Prices an hour: a list, or a CSV file with columns InstanceType,Region,Price,SpotPrice, whose
    path is relative to the cluster file. None: costs are unknown.
    """


class OnVms(WithPrices, WithEnvironment):
    """Fields of clusters on AWS, GCP and Azure."""

    region: Text
    """The region of its machines."""
    zones: tuple[Text, ...] = ()
    """Availability zones; on AWS the first ones are preferred for machines on demand. Empty: all of
    the region.
    """
    workers: Annotated[tuple[Workers, ...], Field(min_length=1)]
    """The groups of workers."""
    image: Text | None = None
    """The machine image. None: a current Ubuntu image for CPUs, the cloud's deep-learning image for
    types with GPUs.
    """
    idle: Time = 300.0
    """After this time without a trial a machine on demand ends, if there are groups on the spot
    market: seconds, or "5min". One of them stays.
    """
    user: User = "ubuntu"
    """The user as whom agents run. One that the image does not have is made."""


class Aws(OnVms):
    """Machines of Amazon EC2."""

    on: Literal["aws"]
    """Amazon Web Services."""
    role: Text | None = None
    """An instance profile of the machines. None: one is created, with rights for the state's
    objects and this cluster's fleets only.
    """


class Gcp(OnVms):
    """Machines of Google Compute Engine."""

    on: Literal["gcp"]
    """Google Cloud."""
    project: Text
    """The project's id."""
    service_account: Text
    """Email of the machines' service account, which may delete their instance groups."""


class Azure(OnVms):
    """Machines of Microsoft Azure."""

    on: Literal["azure"]
    """Microsoft Azure."""
    resource_group: Text
    """The resource group in which everything is created."""
    subscription: Text | None = None
    """The subscription's id. None: the one of `az account show`."""
    identity: Text
    """Path of the machines' managed identity, which may delete their scale sets."""


class Ssh(WithEnvironment):
    """Existing machines that are reached by SSH. An agent of the experiment runs on each."""

    on: Literal["ssh"]
    """Your own machines."""
    user: User
    """The user for SSH logins."""
    key: Text = "~/.ssh/id_ed25519"
    """The private key for the logins. It stays here."""
    machines: Annotated[tuple[Address, ...], Field(min_length=1)]
    """Addresses of the machines, which are all equal: each runs trials, and may lead."""
    cpus: Annotated[Count, Field(ge=1, le=MOST_TOGETHER)] | None = None
    """How many CPUs of each machine trials may use. None: all."""
    ports: PortRange | None = None
    """The ports that agents use, the same on all machines: "20000-20100". None: any free ones."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for place, address in enumerate(self.machines):
            if address in self.machines[:place]:
                raise SpecError(f"machines.{place}", address, "is named twice", "leave it out")
        return self


class Kubernetes(WithPrices):
    """Jobs of a Kubernetes cluster, each pod of which is an agent of the experiment."""

    on: Literal["kubernetes"]
    """Kubernetes, by `kubectl` on this machine."""
    image: Text
    """The image of all pods, with regrow in it."""
    namespace: Label = "default"
    """The namespace of its objects."""
    context: Text | None = None
    """The context of kubectl. None: the current one."""
    service_account: Text | None = None
    """Service account of the pods. None: the namespace's default."""
    pull_secrets: tuple[Text, ...] = ()
    """Names of secrets for pulling the image."""
    secrets: tuple[Text, ...] = ()
    """Names of secrets whose entries become environment variables of the pods."""
    workers: Annotated[tuple[Pods, ...], Field(min_length=1)]
    """The groups of pods."""
    volumes: Texts = Field(default_factory=dict)
    """Claims of persistent volumes, by the path at which pods mount them."""


class Slurm(Cluster):
    """Job arrays of a Slurm cluster, each element of which is an agent of the experiment."""

    on: Literal["slurm"]
    """Slurm, by `sbatch` on this machine."""
    agents: Annotated[Count, Field(ge=1, le=10_000)]
    """Number of agents: the size of the job array."""
    most: Annotated[Count, Field(ge=1, le=MOST_TOGETHER)] | None = None
    """Most of them that run at a time. None: all."""
    partition: Text | None = None
    """Partition, or several with commas. None: the default one."""
    account: Text | None = None
    """Account that is charged. None: the user's default."""
    qos: Text | None = None
    """Quality of service. None: the default."""
    time: Annotated[Time, Field(ge=90)] | None = None
    """Time limit of an agent, which leaves a minute before it and is queued again: seconds, or
    "4h"; whole minutes, rounded up. None: the partition's.
    """
    cpus: Annotated[Count, Field(ge=1, le=MOST_TOGETHER)] | None = None
    """CPUs of an agent, all for trials. None: Slurm's default."""
    memory: Bytes | None = None
    """Memory of an agent: bytes, or text such as "8GiB". None: Slurm's default."""
    idle: Time | None = None
    """After this time without a trial an agent ends, once none is left for it: seconds, or "5min".
    None: it stays to the end.
    """
    gres: Text | None = None
    """Generic resources of an agent, such as "gpu:2"."""
    constraint: Text | None = None
    """Features that the nodes must have."""
    prefix: Line | None = None
    """The beginning of the agent's command, such as "apptainer exec IMAGE". None: it runs on the
    node itself.
    """
    options: dict[Text, Annotated[str, AfterValidator(_word)] | Count | bool] = Field(
        default_factory=dict
    )
    """Further options of sbatch by their long names, without the two hyphens; true: without a
    value.
    """
    output: Text | None = None
    """Folder of the agents' output, on a file system of all nodes; its path is relative to the
    cluster file. None: `slurm` in the folder in which the command is typed.
    """

    @model_validator(mode="after")
    def _sbatch(self) -> Self:
        for name, value in self.options.items():
            if not _OPTION.fullmatch(name):
                problem = "is no long option of sbatch"
                raise SpecError(f"options.{name}", value, problem, "write it without hyphens first")
            if name in _OWN_OPTIONS:
                key = _OWN_OPTIONS[name]
                hint = f"write it at `{key}`" if key else "leave it out"
                raise SpecError(f"options.{name}", value, "is set by regrow", hint)
        if self.most is not None and self.most > self.agents:
            problem = f"is more than the {self.agents} agents"
            raise SpecError("most", self.most, problem, "leave it out")
        return self


KINDS: dict[str, type[Cluster]] = {
    "aws": Aws,
    "gcp": Gcp,
    "azure": Azure,
    "ssh": Ssh,
    "kubernetes": Kubernetes,
    "slurm": Slurm,
}
"""Classes of clusters by the value of `on`."""
_PARTS: dict[type[Cluster], dict[str, type[Part]]] = {
    Kubernetes: {"workers": Pods, "prices": Price, "store_prices": StorePrices},
    Ssh: {"store_prices": StorePrices},
    Slurm: {"store_prices": StorePrices},
    **{
        kind: {"workers": Workers, "prices": Price, "store_prices": StorePrices}
        for kind in (Aws, Gcp, Azure)
    },
}
"""Classes of the parts below their keys."""
