"""`schema`: prints the JSON schema of the YAML file."""

from __future__ import annotations

import json


def schema() -> None:
    """Print the JSON schema of the YAML file, for editors."""
    from regrow.search.spec import Spec

    print(json.dumps(Spec.model_json_schema(), indent=2))
