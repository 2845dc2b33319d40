"""What of Ray's launcher is not public. A test says if it changed."""

from __future__ import annotations

import logging
from typing import Any

from regrow.search.errors import SpecError


def validate(file: dict[str, Any]) -> None:
    """Looks through a launcher file as `ray up` does before it asks the cloud for anything. Raises SpecError."""
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        validate_config(prepare_config(file))
    except ValidationError as error:
        place = ".".join(str(part) for part in error.absolute_path) or "the file"
        raise SpecError(place, error.instance, f"is not what Ray's launcher takes: {error.message}", "change it") from None
    except (RuntimeError, ValueError) as error:
        raise SpecError("workers", None, f"are not what Ray's launcher takes: {error}", "change them") from None
