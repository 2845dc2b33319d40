"""The list of dependencies is that of the lock, and names nobody's address."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("sbom", ROOT / "docs" / "site" / "sbom.py")
assert SPEC is not None
assert SPEC.loader is not None
sbom = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(sbom)


def test_it_has_the_locked_versions_and_all_that_is_asked_for_directly() -> None:
    lock = sbom.locked((ROOT / "requirements.lock").read_text())
    listed = {
        sbom.plain(one["name"]): one["version"]
        for one in json.loads((ROOT / "sbom.cdx.json").read_text())["components"]
    }
    assert {name: version for name, version in listed.items() if lock.get(name) != version} == {}, (
        "run `make sbom`"
    )
    assert {"prefect", "ray", "mlflow", "optuna", "msgspec"} <= listed.keys()
    assert len(listed) > 0.9 * len(lock)


def test_it_has_no_address() -> None:
    assert set(re.findall(r"\w+://[^\"]+", (ROOT / "sbom.cdx.json").read_text())) == {
        "http://cyclonedx.org/schema/bom-1.6.schema.json"
    }


def test_what_is_not_locked_is_left_out() -> None:
    part = {
        "name": "A.b",
        "version": "1",
        "bom-ref": "a",
        "externalReferences": [{"url": "x"}],
        "licenses": ["MIT"],
    }
    found = {
        "components": [part, {"name": "c", "version": "1", "bom-ref": "c"}],
        "dependencies": [{"ref": "a", "dependsOn": ["c"]}],
    }
    made = json.loads(
        sbom.written(
            found, sbom.locked("a-b==1 \\\n    --hash=x\nc[x]==2 ; python_version < '3'\n")
        )
    )
    assert made == {
        "components": [{"name": "A.b", "version": "1", "bom-ref": "a", "licenses": ["MIT"]}],
        "dependencies": [{"ref": "a", "dependsOn": []}],
    }
