"""Writes `sbom.cdx.json`, the list of what `requirements.lock` installs with its licences: `make
sbom`, which `make lock` runs.

CycloneDX's own tool makes it of the environment. Left out here: packages that are not in the lock,
and every address, as those of other projects change without a change of what is installed.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def locked(lock: str) -> dict[str, str]:
    """The versions that a file of requirements has, by names as PEP 503 has them."""
    return {
        plain(name): version
        for name, version in re.findall(r"^([\w.-]+)(?:\[.*?\])?==([^\s;\\]+)", lock, re.MULTILINE)
    }


def plain(name: str) -> str:
    """A package's name as PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def written(found: dict[str, Any], wanted: dict[str, str]) -> str:
    """The list with those alone that are wanted, without addresses."""
    components = [
        one for one in found["components"] if wanted.get(plain(one["name"])) == one.get("version")
    ]
    kept = {one["bom-ref"] for one in components} | {"root-component"}
    needs = [
        {**one, "dependsOn": [other for other in one.get("dependsOn", ()) if other in kept]}
        for one in found["dependencies"]
        if one["ref"] in kept
    ]
    made = {**found, "components": components, "dependencies": needs}
    return json.dumps(without_addresses(made), indent=1, ensure_ascii=False) + "\n"


def without_addresses(part: Any) -> Any:
    """The same without what names places elsewhere, which free texts do too."""
    if isinstance(part, dict):
        return {
            key: without_addresses(value)
            for key, value in part.items()
            if key not in ("externalReferences", "description")
        }
    return [without_addresses(one) for one in part] if isinstance(part, list) else part


if __name__ == "__main__":
    (ROOT / "sbom.cdx.json").write_text(
        written(
            json.loads(Path(sys.argv[1]).read_text()),
            locked((ROOT / "requirements.lock").read_text()),
        ),
        encoding="utf-8",
    )
