"""Google Cloud's and Azure's interfaces as far as fleets use them: a server that takes only bodies
of the clouds' published form. No test lives here.

The forms are in `tests/data/cloud_requests.json.xz`, made of Google's discovery documents
(google-api-python-client 2.202, Apache License 2.0) and of the models of azure-mgmt-compute 39.0 and
azure-mgmt-network (MIT License): names and types of all keys.
"""

from __future__ import annotations

import json
import lzma
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships none

Json = dict[str, Any]
FORMS = json.loads(
    lzma.decompress((Path(__file__).parents[1] / "data" / "cloud_requests.json.xz").read_bytes())
)
TOKEN = "a-token-of-the-cloud"
_OF_GOOGLE = {
    "firewalls": "Firewall",
    "instanceTemplates": "InstanceTemplate",
    "instanceGroupManagers": "InstanceGroupManager",
    "secrets": "Secret",
    "setIamPolicy": "SetIamPolicyRequest",
    "addVersion": "AddSecretVersionRequest",
    "deleteInstances": "RegionInstanceGroupManagersDeleteInstancesRequest",
}
_OF_AZURE = {
    "virtualMachineScaleSets": ("azure_compute", "VirtualMachineScaleSet"),
    "networkSecurityGroups": ("azure_network", "NetworkSecurityGroup"),
    "virtualNetworks": ("azure_network", "VirtualNetwork"),
}


def check(part: str, name: str, body: Json) -> None:
    """Raises ValidationError for a body that is not of a form."""
    defs = FORMS[part]
    Draft202012Validator({**defs[name], "$defs": defs}).validate(body)


class Service:
    """Both clouds, and both metadata services.

    Attributes:
        there: what exists, by its path.
        asked: method and path of each request, in order.
        refused: a part of paths that are refused, with this message.
        lost: a part of paths whose answers are lost, after they were obeyed; "": none.
        sets: bodies of scale sets, with what Azure never tells again.
        wrong: bodies that are not of the published form.

    """

    def __init__(self) -> None:
        self.there: dict[str, Json] = {}
        self.asked: list[str] = []
        self.refused: tuple[str, str] | None = None
        self.lost = ""
        self.wrong: list[str] = []
        self.sets: list[Json] = []
        self.address = ""

    def names(self, kind: str) -> list[str]:
        """The names of what exists of a kind."""
        return sorted(path.rpartition("/")[2] for path in self.there if path.split("/")[-2] == kind)

    def answer(self, method: str, url: str, body: Json | None, bearer: str) -> tuple[int, Any]:
        path = urlsplit(url).path
        if path.startswith(("/computeMetadata/", "/metadata/")):
            return self._told(path)
        self.asked.append(f"{method} {path}")
        if bearer != f"Bearer {TOKEN}":
            return 401, {"error": {"message": "no token"}}
        if self.refused and self.refused[0] in f"{method} {path}":
            return 403, {"error": {"message": self.refused[1]}}
        try:
            if path.startswith("/subscriptions/"):
                answer = self._azure(method, path, body)
            else:
                answer = self._google(method, path, parse_qs(urlsplit(url).query), body)
            lost = self.lost and self.lost in f"{method} {path}"
            return (502, "<html>a page of the proxy's</html>") if lost else answer
        except Exception as error:
            self.wrong.append(f"{method} {path}: {error}")
            raise

    def _told(self, path: str) -> tuple[int, Any]:
        if path.endswith("token"):
            return 200, {"access_token": TOKEN}
        zone = "projects/7/zones/us-central1-a"
        told = {"zone": zone, "name": "machine-1", "compute": {"resourceId": "/subscriptions/s/vm"}}
        return 200, told[path.rpartition("/")[2]]

    def _google(
        self, method: str, path: str, query: dict[str, list[str]], body: Json | None
    ) -> tuple[int, Any]:
        last = re.split("[/:]", path)[-1]
        if "/operations/" in path:
            return 200, {"status": "DONE", "selfLink": self.address + path.removesuffix("/wait")}
        if last == "resize":
            assert (method, body) == ("POST", None)
            group = self.there[path.removesuffix("/resize")]
            group["targetSize"] = int(query["size"][0])
            return 200, self._operation()
        if method == "POST":
            assert body is not None
            check("gcp", _OF_GOOGLE[last], body)
            if last in ("addVersion", "setIamPolicy", "deleteInstances"):
                self.there[re.sub(f"[:/]{last}$", "", path)].setdefault(last, body)
                return 200, {"status": "DONE"}
            name = body.get("name") or query["secretId"][0]
            if f"{path}/{name}" in self.there:
                return 409, {"error": {"message": f"{name} is there already"}}
            self.there[f"{path}/{name}"] = {
                "name": name,
                "creationTimestamp": "2026-11-27T10:00:00.000-08:00",
                "currentActions": {"none": 1},
                **body,
            }
            return 200, self._operation()
        if path.endswith("/versions/latest:access"):
            kept = self.there.get(path.removesuffix("/versions/latest:access"))
            return (200, kept["addVersion"]) if kept else (404, {})
        if method == "DELETE":
            return (200, self._operation()) if self.there.pop(path, None) else (404, {})
        if path in self.there:
            return 200, self.there[path]
        found = [one for name, one in self.there.items() if name.rpartition("/")[0] == path]
        if last not in _OF_GOOGLE:
            return 404, {}
        place = int(query.get("pageToken", ["0+/="])[0].removesuffix("+/="))
        page = {"secrets" if last == "secrets" else "items": found[place : place + 1]}
        more = {"nextPageToken": f"{place + 1}+/="} if place + 1 < len(found) else {}
        return 200, {**page, **more}

    def _operation(self) -> Json:
        return {"status": "RUNNING", "selfLink": f"{self.address}/compute/v1/operations/one"}

    def _azure(self, method: str, path: str, body: Json | None) -> tuple[int, Any]:
        kind = path.split("/")[-2]
        if method == "PUT":
            assert body is not None
            check(*_OF_AZURE[kind], body)
            made = json.loads(json.dumps(body))
            if kind == "virtualMachineScaleSets":
                profile = made["properties"]["virtualMachineProfile"]
                del profile["extensionProfile"]["extensions"][0]["properties"]["protectedSettings"]
                made["properties"]["timeCreated"] = "2026-11-27T10:00:00.1234567+00:00"
                self.sets.append(body)
            made["name"] = path.rpartition("/")[2]
            made.setdefault("properties", {})["provisioningState"] = "Succeeded"
            self.there[path] = made
            return 201, made
        if method == "PATCH":
            assert body is not None
            assert body.keys() == {"sku"}
            check("azure_compute", "Sku", body["sku"])
            self.there[path]["sku"] = body["sku"]
            return 200, self.there[path]
        if method == "POST":
            return 202, {}
        if method == "DELETE":
            return (202, None) if self.there.pop(path, None) else (204, None)
        if path.endswith("/instanceView"):
            counted = [{"code": "ProvisioningState/succeeded", "count": 1}]
            return 200, {"virtualMachine": {"statusesSummary": counted}}
        if path in self.there:
            return 200, self.there[path]
        if path.endswith("/virtualMachineScaleSets"):
            return 200, {"value": [one for name, one in self.there.items() if path in name]}
        return 404, {"error": {"message": "ResourceNotFound"}}


@contextmanager
def service() -> Iterator[Service]:
    """The clouds at an address of the loopback."""
    found = Service()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def handle_one(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            bearer = self.headers.get("Authorization", "")
            status, said = found.answer(self.command, self.path, body, bearer)
            text = said.encode() if isinstance(said, str) else json.dumps(said).encode()
            text = b"" if said is None else text
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = handle_one  # noqa: N815 - names of http.server

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
