"""MLflow's web pages as `regrow ui` serves them: those of MLflow, opened without its Assistant's pane.

MLflow's server imports this module, by the name that stands in `pyproject.toml` under `mlflow.app`. Its pages open the pane when
a browser sees them for the first time, and every new port is a first time. Whether it was there before is remembered in the
browser alone, so that the page itself has to say it.
"""

from __future__ import annotations

from flask import Response, request
from mlflow.server import app as pages

from regrow.infra.mlflow.private import web_app

app = web_app()

_SEEN = b"""<script>try { localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true") } catch {}</script>"""


@pages.after_request
def _opened_before(response: Response) -> Response:
    if request.path == "/" and response.mimetype == "text/html" and response.status_code == 200:
        response.direct_passthrough = False  # a file is sent as it is otherwise
        response.set_data(response.get_data().replace(b"<head>", b"<head>" + _SEEN, 1))
        del response.headers["ETag"]  # it stands for the file
    return response
