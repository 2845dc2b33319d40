"""Files of fleets of agents on AWS for people who type the `aws` commands themselves. Pure."""

from __future__ import annotations

import json
import shlex
from typing import Any

from regrow.infra.clusters.clouds import aws, groups
from regrow.infra.clusters.clouds.fleet import AGENTS_TAG, SCRIPT, Bucket, Order
from regrow.infra.clusters.clouds.fleet_machine import ENVIRONMENT, PARCEL
from regrow.infra.clusters.description import Aws
from regrow.infra.clusters.prices import Prices

_IMAGE, _SECURITY_GROUP = "IMAGE", "SECURITY_GROUP"
"""What the script puts into the launch templates."""


def files(cluster: Aws, order: Order, prices: Prices, parcel: bytes) -> dict[str, bytes]:
    """Return the files by name: a script of `aws` commands, and what they take. Without values of
    variables. `parcel`: see `fleet.parcel`.
    """
    found = {PARCEL: parcel}
    for place, group in enumerate(cluster.workers):
        zones = group.zones or cluster.zones
        template = aws.launch_template(
            cluster, order, prices, place, image=_IMAGE, security_group=_SECURITY_GROUP
        )
        overrides = aws.allowed("AvailabilityZone", zones)
        if groups.first(cluster, place):
            asked = aws.create_fleet(cluster, order, place, overrides)
            found[f"fleet-{place}.json"] = _json(asked)
        found |= {
            f"user-data-{place}.sh": aws.user_data(cluster, order, prices, place).encode(),
            f"launch-template-{place}.json": _json(template),
        }
    if cluster.role is None:
        found |= {
            "trust.json": _json(aws.trust()),
            "rights.json": _json(aws.rights(cluster, order.state)),
        }
    return {SCRIPT: _script(cluster, order).encode(), **found}


def _script(cluster: Aws, order: Order) -> str:
    bucket, name = Bucket.of(order.state), aws.resource_name(cluster.name)
    there = f"s3://{bucket.name}/{bucket.folder(cluster.name, order)}"
    tag = f"{{Key={AGENTS_TAG},Value={cluster.name}}}"
    lines = [
        "#!/bin/bash",
        "# Does what `regrow cluster submit` does. `regrow cluster down` ends it, too.",
        "set -eu",
        f"export AWS_DEFAULT_REGION={shlex.quote(cluster.region)}",
        "",
        f"# What the machines get. In {ENVIRONMENT}, a line `export NAME=value` for each of:",
        f"# {', '.join(sorted(cluster.env)) or 'none'}",
        f"touch {ENVIRONMENT}",
        *(_aws("s3", "cp", one, f"{there}/{one}") for one in (PARCEL, ENVIRONMENT)),
    ]
    lines += ["", "# Their role, security group and templates."]
    if cluster.role is None:
        role, profile = ("--role-name", name), ("--instance-profile-name", name)
        lines += [
            _aws(
                *("iam", "create-role", *role, "--assume-role-policy-document"),
                "file://trust.json",
            ),
            _aws(
                *("iam", "put-role-policy", *role, "--policy-name", "state"),
                *("--policy-document", "file://rights.json"),
            ),
            _aws("iam", "create-instance-profile", *profile),
            _aws("iam", "add-role-to-instance-profile", *profile, *role),
            "sleep 15  # EC2 knows a new role after a while",
        ]
    make = _aws(
        *("ec2", "create-security-group", "--group-name", name, "--description"),
        f"machines of the cluster {cluster.name}",
        *("--tag-specifications", f"ResourceType=security-group,Tags=[{tag}]"),
        *("--query", "GroupId", "--output", "text"),
    )
    allow = _aws("ec2", "authorize-security-group-ingress")
    lines += [
        f"group=$({make})",
        f'{allow} --group-id "$group" --protocol=-1 --source-group "$group"',
    ]
    for place in range(len(cluster.workers)):
        file = f"launch-template-{place}.json"
        lines += [
            f"image={_image(cluster, place)}",
            f'sed -i "s/{_SECURITY_GROUP}/$group/; s/\\"{_IMAGE}\\"/\\"$image\\"/" {file}',
            _aws("ec2", "create-launch-template", "--cli-input-json", f"file://{file}"),
        ]
    services = ["ec2fleet.amazonaws.com"]
    services += ["spot.amazonaws.com"] * any(one.market == "spot" for one in cluster.workers)
    lines += [
        _aws("iam", "create-service-linked-role", "--aws-service-name", service) + " || true"
        for service in services
    ]
    lines += ["", "# From here on it costs money."]
    lines += [
        _aws("ec2", "create-fleet", "--cli-input-json", f"file://fleet-{place}.json")
        for place in range(len(cluster.workers))
        if groups.first(cluster, place)
    ]
    return "".join(f"{line}\n" for line in lines)


def _image(cluster: Aws, place: int) -> str:
    path = f"workers.{place}.type"
    found = cluster.image or aws.image(cluster.workers[place].type, path)
    if not found.startswith(aws.PARAMETER):
        return shlex.quote(found)
    ask = ("ssm", "get-parameter", "--name", found.removeprefix(aws.PARAMETER))
    return f"$({_aws(*ask, '--query', 'Parameter.Value', '--output', 'text')})"


def _aws(*words: str) -> str:
    return shlex.join(("aws", *words))


def _json(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()
