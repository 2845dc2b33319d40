"""Reading a cluster file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regrow.infra.clusters.description import KINDS, Cluster
from regrow.infra.machine.given_files import resolved
from regrow.infra.state.yaml_file import located, read_map
from regrow.search.errors import SpecError

SEE = "regrow cluster schema"


def read_cluster(path: Path) -> Cluster:
    """Return the cluster that a file describes, with absolute paths to other files.

    Raises UserError for a file that cannot be read or is not YAML, SpecError with file and line for
    invalid content.
    """
    data = read_map(path, "cluster", SEE)
    try:
        cluster = Cluster.parse(data)
        absolute = {
            key: str(_beside(path, getattr(cluster, key), key))
            for key in ("prices", "lock")
            if isinstance(getattr(cluster, key, None), str)
        }
        if output := getattr(cluster, "output", None):
            absolute["output"] = str(resolved(output, path.parent, where=f"{path}: output: "))
        return cluster.model_copy(update=absolute)
    except SpecError as error:
        raise located(error, path) from None


def _beside(path: Path, written: str, key: str) -> Path:
    """Return the path of a file named relative to the one at `path`. Raises SpecError."""
    found = resolved(written, path.parent, where=f"{path}: {key}: ")
    if not found.exists():
        raise SpecError(
            key, written, f"there is no file {found}", "write it relative to the cluster file"
        )
    return found


def schema() -> dict[str, Any]:
    """Return the published JSON schema of a cluster file."""
    kinds = {
        name: kind.model_json_schema(ref_template="#/$defs/{model}") for name, kind in KINDS.items()
    }
    parts: dict[str, Any] = {}
    for kind in kinds.values():
        parts |= kind.pop("$defs", {})
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "Cluster", "oneOf": list(kinds.values()), "$defs": parts}
