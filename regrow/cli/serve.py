"""`serve`: serves an experiment's best checkpoint over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from regrow.cli.options import NameArgument, StateOption
from regrow.infra.state.places import Places
from regrow.tasks.errors import UserError


def serve(
    name: NameArgument,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="FILE:CLASS",
            show_default=False,
            help=(
                "The class that answers, a rg.Served, as in serve.py:Digits [default: models that"
                " trials logged to MLflow]"
            ),
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Move to a better checkpoint whenever the experiment saves one"
        ),
    ] = False,
    gate: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITIONS",
            help=(
                'Serve only checkpoints whose metrics meet it: "accuracy > 0.98 and latency <= 10"'
            ),
            show_default=False,
        ),
    ] = None,
    canary: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE",
            show_default=False,
            help=(
                'With --follow: first give a better checkpoint this share of the requests, "10% for'
                " 5min\"; or one trial's for"
                " good, 17=10%"
            ),
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
        typer.Option(
            "--ray",
            help=(
                "Have Ray Serve answer, on the cluster at RAY_ADDRESS, else on one that is started"
                " here"
            ),
        ),
    ] = False,
    trial: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Serve the best checkpoint of this trial [default: of all]",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help=(
                "Listen there as well: a name or address of this machine, or 0.0.0.0 [default:"
                " loopback only]"
            ),
            show_default=False,
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one")] = 8000,
    state: StateOption = None,
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
