"""Content of `/openapi.json` and `/docs` for the user's class. The page is self-contained:
FastAPI's page loads its script from the internet, which an isolated machine cannot.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from typing import Any

from pydantic import BaseModel, TypeAdapter

from regrow.apps.serving.served import Served

_REFS = "#/components/schemas/{model}"
_SCRIPT = """
document.querySelector("button").onclick = async () => {
  const shown = document.querySelector("output"), began = performance.now();
  try {
    const body = document.querySelector("textarea").value;
    const headers = {"Content-Type": "application/json"};
    const answer = await fetch("predict", {method: "POST", body, headers});
    const trial = answer.headers.get("Regrow-Trial");
    const took = `${answer.status}, ${Math.round(performance.now() - began)} ms`;
    shown.textContent = took + (trial ? `, trial ${trial}` : "") + `\\n${await answer.text()}`;
  } catch (error) { shown.textContent = String(error); }
};
"""
_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
textarea { width: 100%; min-height: 10rem; font: 14px monospace; box-sizing: border-box }
output { white-space: pre-wrap; display: block }
pre, output { font: 14px monospace; overflow-x: auto }
td { padding-right: 1.5rem; vertical-align: top }
"""


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


POLICY = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; connect-src"
    " 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: the page's own script and style, and requests to its origin; nothing
else.
"""
_OTHERS = {
    "/healthz": "The process lives.",
    "/readyz": "200 once a model is loaded, 503 before.",
    "/version": "Which trial, step and checkpoint answer, and since when.",
    "/metrics": "Requests, errors, latency and batches, for Prometheus.",
    "/openapi.json": "This page for machines.",
}


def openapi(kind: type[Served], experiment: str) -> dict[str, Any]:
    """Return the OpenAPI description."""
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

    said = {
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
    }
    predict = {
        "summary": "One input, or a list of inputs",
        "operationId": "predict",
        "requestBody": {"required": True, "content": either(one)},
        "responses": said,
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
    rows = "".join(
        f'<tr><td><a href="{path[1:]}">{path}</a></td><td>{escape(said)}</td></tr>'
        for path, said in _OTHERS.items()
    )
    schema = escape(
        json.dumps(
            {name: value for name, value in described["components"]["schemas"].items() if value},
            indent=2,
        )
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport"'
        f' content="width=device-width">'
        f"<title>{escape(experiment)}</title><style>{_STYLE}</style><h1>{escape(experiment)}</h1>"
        f"<p>{escape(described['info']['description'])}</p>"
        "<h2>POST /predict</h2><p>One input, or a list of inputs, as JSON. The answer has the same"
        " form; its header "
        "<code>Regrow-Trial</code> names the trial that answered.</p>"
        f'<textarea aria-label="Input" spellcheck="false">{escape(example)}</textarea>'
        "<p><button>Ask</button></p><output></output>"
        f"<h2>Schema</h2><pre>{schema}</pre><h2>Other"
        f" addresses</h2><table>{rows}</table><script>{_SCRIPT}</script></html>"
    )
