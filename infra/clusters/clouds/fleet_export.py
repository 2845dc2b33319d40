"""Files of fleets of agents on Google Cloud and Azure for people who send the requests themselves.
Pure.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from regrow.infra.clusters.clouds import fleet
from regrow.infra.clusters.clouds.fleet import Json, Order
from regrow.infra.clusters.clouds.fleet_machine import ENVIRONMENT, PARCEL
from regrow.infra.clusters.description import OnVms

VALUES, SCRIPT, PASSWORD = "@VALUES@", "@SCRIPT@", "@PASSWORD@"
"""What stands for the values of variables and for a machine's script, in base64, and for a random
password.
"""
_CALL = f"""\
call() {{
  password=aA1-$(openssl rand -hex 32)
  sed -e "s|{VALUES}|$values|" -e "s|{SCRIPT}|$script|" -e "s|{PASSWORD}|$password|" "$3" |
    curl --silent --show-error --fail-with-body --request "$1" --data @- "$2" \\
      --header @<(echo "Authorization: Bearer $token") --header 'Content-Type: application/json'
  sleep 15  # the next request may need what this one makes
}}
"""


@dataclass(frozen=True, slots=True)
class Call:
    """A request of those that start fleets. `script`: what SCRIPT in the body stands for."""

    method: str
    url: str
    body: Json
    script: str | None = None


def files(
    cluster: OnVms, order: Order, parcel: bytes, token: str, calls: Sequence[Call]
) -> dict[str, bytes]:
    """Return the files by name: a script, and what it sends.

    Args:
        cluster: the cluster.
        order: the experiment.
        parcel: see `fleet.parcel`.
        token: command that prints a token.
        calls: in their order.

    """
    found, sent = {PARCEL: parcel}, []
    for number, one in enumerate(calls):
        body, setup = f"request-{number}.json", f"setup-{number}.sh"
        found[body] = (json.dumps(one.body, indent=2) + "\n").encode()
        if one.script is not None:
            found[setup] = one.script.encode()
            sent.append(f'script=$(sed "s|{VALUES}|$values|" {setup} | base64 -w 0)')
        sent.append(f"call {one.method} {shlex.quote(one.url)} {body}")
    lines = [
        "#!/bin/bash",
        "# Does what `regrow cluster submit` does. `regrow cluster down` ends it, too.",
        "set -eu",
        f"# In {ENVIRONMENT}, a line `export NAME='value'` for each of:",
        f"# {', '.join(sorted(cluster.env))}",
        f"values=$(base64 -w 0 {ENVIRONMENT})",
        f"token=$({token})",
        "script=",
    ]
    text = "".join(f"{line}\n" for line in lines) + _CALL
    text += "".join(f"{line}\n" for line in (fleet.copied(order, cluster), *sent))
    return {fleet.SCRIPT: text.encode(), **found}
