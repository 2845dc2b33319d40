"""Content of `/openapi.json` and `/docs` for the user's class. The page is self-contained:
FastAPI's page loads its script from the internet, which an isolated machine cannot.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from regrow.apps.serving.served import Served
from regrow.show import web

_OWN = "regrow.apps.serving"
_REFS = "#/components/schemas/{model}"


@cache
def policy() -> str:
    """Return the content security policy: own script, own style, requests to its own origin."""
    script, style = (web.digest(web.asset(name, _OWN)) for name in ("docs.js", "style.css"))
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src data:; connect-src"
        " 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


_OTHERS = {
    "/healthz": "The process lives.",
    "/readyz": "200 once a model is loaded, 503 before.",
    "/version": "Which trial, step and checkpoint answer, and since when.",
    "/metrics": "Requests, errors, latency and batches, for Prometheus.",
    "/openapi.json": "This page for machines.",
}


def openapi(kind: type[Served], experiment: str) -> dict[str, Any]:
    model: type[BaseModel] = kind.Input
    given = model.model_json_schema(ref_template=_REFS)
    made: dict[str, Any] = {}
    if kind.Output is not None:
        made = TypeAdapter(kind.Output).json_schema(ref_template=_REFS, mode="serialization")
    schemas = {**given.pop("$defs", {}), **made.pop("$defs", {}), "Input": given, "Output": made}
    one, other = {"$ref": "#/components/schemas/Input"}, {"$ref": "#/components/schemas/Output"}

    def either(schema: dict[str, Any]) -> dict[str, Any]:
        return {
            "application/json": {"schema": {"anyOf": [schema, {"type": "array", "items": schema}]}}
        }

    responses = {
        "200": {
            "description": (
                "One output, or a list of outputs. `Regrow-Trial` names the trial that answered."
            ),
            "content": either(other),
        },
        "413": {
            "description": (
                f"More than {kind.max_body} bytes, {kind.max_inputs} inputs or {kind.max_items}"
                " values; or too deep, or too long a number."
            )
        },
        "422": {
            "description": (
                "An input that is none; `detail` has the field (`loc`) and what is wrong with it"
                " (`msg`)."
            )
        },
        "500": {"description": "The model raised."},
        "503": {"description": "No model is loaded yet, or too much waits."},
        "504": {"description": "The model did not answer in time."},
    }
    predict = {
        "summary": "One input, or a list of inputs",
        "operationId": "predict",
        "requestBody": {"required": True, "content": either(one)},
        "responses": responses,
    }
    paths: dict[str, Any] = {"/predict": {"post": predict}}
    for path, summary in _OTHERS.items():
        answers = {"200": {"description": summary}}
        paths[path] = {
            "get": {"summary": summary, "operationId": path.strip("/"), "responses": answers}
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": experiment, "version": "1", "description": (kind.__doc__ or "").strip()},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def page(kind: type[Served], experiment: str) -> str:
    """Return the page of `/docs`: what to send, a form to try it, and the other paths."""
    described = openapi(kind, experiment)
    model: type[BaseModel] = kind.Input
    example = (
        "{}"
        if kind.example is None
        else json.dumps(model.model_validate(kind.example).model_dump(mode="json"))
    )
    schemas = described["components"]["schemas"]
    page = web.templates(_OWN).get_template("docs.html.j2")
    return page.render(
        experiment=experiment,
        described=described["info"]["description"],
        example=example,
        schema=json.dumps({name: value for name, value in schemas.items() if value}, indent=2),
        others=_OTHERS,
    )
