"""EC2, IAM and SSM as moto has them, with a folder beside them by which a cloud's machines are
moved.

`python cloud_server.py ADDRESS PORT FOLDER`. In the folder:

* instances: JSON of all instances, written anew as they change: id to [address, state]
* terminate-ID: made by others: the instance has ended by itself
* no-spot: made by others: no spot machine can be had
* user-data-ID: what an instance runs once, at its first start

What moto leaves out of a fleet of type maintain is done here: a machine that is gone is replaced.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

_ACCOUNT = "123456789012"
_TICK = 0.2


def _watch(folder: Path) -> None:
    shown, known = "", set[str]()
    while True:
        found = {}
        for backend in list(ec2_backends[_ACCOUNT].values()):
            for one in list(backend.all_instances()):
                if one.id not in known and one.user_data:
                    (folder / f"user-data-{one.id}").write_bytes(_decoded(one.user_data))
                known.add(one.id)
                found[one.id] = [one.private_ip, one._state.name]
                if (folder / f"terminate-{one.id}").exists() and one._state.name != "terminated":
                    backend.terminate_instances([one.id])
            for fleet in list(backend.fleets.values()):
                _maintain(fleet, spot_left=not (folder / "no-spot").exists())
        if (text := json.dumps(found)) != shown:
            fresh = folder / "instances.new"
            fresh.write_text(text)
            fresh.replace(folder / "instances")
            shown = text
        time.sleep(_TICK)


def _maintain(fleet: Any, *, spot_left: bool) -> None:
    """Start what a fleet of type maintain lacks, as EC2 does while it is active."""
    if fleet.fleet_type != "maintain":
        return
    fleet.spot_requests = [one for one in fleet.spot_requests if _lives(one.instance)]
    fleet.on_demand_instances = [
        one for one in fleet.on_demand_instances if _lives(one["instance"])
    ]
    there = len(fleet.spot_requests) + len(fleet.on_demand_instances)
    fleet.fulfilled_capacity = float(there)
    if fleet.state == "active" and (missing := fleet.target_capacity - there) > 0:
        spot = fleet.target_capacity_specification["DefaultTargetCapacityType"] == "spot"
        if spot and not spot_left:
            return
        (fleet.create_spot_requests if spot else fleet.create_on_demand_requests)(missing)


def _decoded(user_data: Any) -> bytes:
    """Return what moto has encoded, which it keeps as a text or in a class of its own."""
    return base64.b64decode(
        user_data if isinstance(user_data, str) else user_data.as_bytes(), validate=True
    )


def _lives(instance: Any) -> bool:
    return instance._state.name in ("pending", "running")


def main(address: str, port: str, folder: Path) -> None:
    """Serves for ever."""
    threading.Thread(target=_watch, args=(folder,), daemon=True).start()
    app = DomainDispatcherApplication(create_backend_app)
    run_simple(address, int(port), app, threaded=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
