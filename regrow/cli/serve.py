"""`serve`: serves an experiment's best checkpoint over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from regrow.cli import options
from regrow.cli.options import option
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError


def serve(
    name: options.Name,
    model: Annotated[
        str | None,
        option(
            "The class that answers, a rg.Served, as in serve.py:Digits [default: models that"
            " trials logged to MLflow]",
            metavar="FILE:CLASS",
        ),
    ] = None,
    follow: Annotated[
        bool, option("Move to a better checkpoint whenever the experiment saves one", "--follow")
    ] = False,
    gate: Annotated[
        str | None,
        option(
            'Serve only checkpoints whose metrics meet it: "accuracy > 0.98 and latency <= 10"',
            metavar="CONDITIONS",
        ),
    ] = None,
    canary: Annotated[
        str | None,
        option(
            'With --follow: first give a better checkpoint this share of the requests, "10% for'
            " 5min\"; or one trial's for"
            " good, 17=10%",
            metavar="SHARE",
        ),
    ] = None,
    replicas: Annotated[
        str,
        typer.Option(
            metavar="N", help="Processes that answer; with --ray also LEAST-MOST, chosen by load"
        ),
    ] = "1",
    ray: Annotated[
        bool,
        option(
            "Have Ray Serve answer, on the cluster at RAY_ADDRESS, else on one that is started"
            " here",
            "--ray",
        ),
    ] = False,
    trial: Annotated[
        int | None, option("Serve the best checkpoint of this trial [default: of all]", min=0)
    ] = None,
    host: options.Host = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one")] = 8000,
    state: options.State = None,
) -> None:
    """Serve requests with an experiment's best checkpoint, while it runs or afterwards."""
    from regrow.apps.serving.serve import Count, ServeRequest
    from regrow.apps.serving.serve import serve as serve_it
    from regrow.search.rollout import Canary, Gate

    if model is None and ray:
        raise UserError("--ray goes with --model, the class that answers, such as serve.py:Digits")
    share = None if canary is None else Canary.parse(canary, "--canary", of_a_trial=True)
    asked = ServeRequest(
        name=name,
        model=model,
        follow=follow,
        trial=trial,
        canary=share,
        replicas=Count.parse(replicas, ray=ray),
        ray=ray,
        host=host,
        port=port,
        gate=None if gate is None else Gate.parse(gate, "--gate"),
    )
    serve_it(Places.at(state), asked)
