"""Requests a second of one model behind `regrow serve`, plain FastAPI, `mlflow models serve`, and
Ray Serve where it is there.

    python benchmarks/serving.py --rounds 3 --seconds 5

The model is the network of examples/digits.py; a request is one image. The sides are all up, and
take turns: clients that keep their connections ask one request after the other, one client and then
sixteen. *Plain* is FastAPI under uvicorn as one writes it by hand: a route that calls the model for
each request. Ours is asked with one process and with two.

Ray Serve needs `ray[serve]`, which is no dependency of regrow: without it that side is left out,
and said so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.overhead import about
from regrow.apps.serving.messages import TOKEN
from regrow.infra.log.log import Log
from regrow.infra.stores.local import LocalStore
from regrow.search.events import (
    AnyEvent,
    Began,
    Created,
    Opened,
    Proposed,
    Reported,
    Row,
    Saved,
    Started,
    encode,
)
from regrow.search.spec import Spec
from regrow.tasks.checkpoint.saving import save

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
RESULTS = Path(__file__).parent / "results" / "serving.json"
CLIENTS = (1, 16)
PLAIN = """
import sys
import joblib, numpy as np, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
network = joblib.load(sys.argv[2])


class Input(BaseModel):
    pixels: list[float]


@app.post("/predict")
async def predict(asked: Input):
    probabilities = network.predict_proba(np.array([asked.pixels]))[0]
    best = int(probabilities.argmax())
    return {"digit": best, "probability": float(probabilities[best])}


uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
"""
RAY_SERVE = """
import sys, time
import joblib, numpy as np, ray
from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve

app = FastAPI()


class Input(BaseModel):
    pixels: list[float]


@serve.deployment
@serve.ingress(app)
class Digits:
    def __init__(self, path):
        self.network = joblib.load(path)

    @app.post("/predict")
    async def predict(self, asked: Input):
        probabilities = self.network.predict_proba(np.array([asked.pixels]))[0]
        best = int(probabilities.argmax())
        return {"digit": best, "probability": float(probabilities[best])}


ray.init("local")  # not a cluster that somebody left on this machine
serve.start(http_options={"port": int(sys.argv[1])})
serve.run(Digits.bind(sys.argv[2]))
time.sleep(1e6)
"""


@dataclass(frozen=True, kw_only=True)
class Side:
    """A server that is up: where it is asked, and with what."""

    port: int
    path: str
    body: bytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="of a round, of each side and number of clients"
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the numbers go")
    options = parser.parse_args()
    found: dict[tuple[str, int], list[list[float]]] = defaultdict(list)
    # `regrow serve` asks for it; the others are sent it as well
    os.environ[TOKEN] = secrets.token_hex(16)
    load = [os.getloadavg()[0]]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = started(stack, folder)
        for number in range(options.rounds):
            for name in list(sides)[:: 1 if number % 2 else -1]:
                for clients in CLIENTS:
                    found[name, clients].append(
                        asyncio.run(asked(sides[name], clients, options.seconds))
                    )
        load.append(os.getloadavg()[0])
    results = {
        "load": load,
        "seconds": options.seconds,
        **about(),
        "sides": shown(found, list(sides), options.seconds),
    }
    options.json.parent.mkdir(exist_ok=True)
    options.json.write_text(json.dumps(results, indent=1))
    print(f"load average {load[0]:.1f} to {load[1]:.1f}")


def shown(
    found: dict[tuple[str, int], list[list[float]]], sides: list[str], seconds: float
) -> list[dict[str, Any]]:
    """Prints a line for each side and number of clients: medians of the rounds, and ours (one
    process) against it.
    """
    lines: list[dict[str, Any]] = []
    ours = sides[0]
    print(f"{'':24}{'clients':>8}{'requests/s':>12}{'p50 ms':>9}{'p99 ms':>9}{'ours is':>10}")
    for clients in CLIENTS:
        rates = {
            name: statistics.median(len(round_) / seconds for round_ in found[name, clients])
            for name in sides
        }
        for name in sides:
            took = [sorted(round_) for round_ in found[name, clients] if round_]
            p50, p99 = (
                1000 * statistics.median(one[int(len(one) * part)] for one in took)
                for part in (0.5, 0.99)
            )
            times = rates[ours] / rates[name]
            lines.append(
                {
                    "side": name,
                    "clients": clients,
                    "rate": rates[name],
                    "p50": p50,
                    "p99": p99,
                    "times": times,
                }
            )
            print(f"{name:24}{clients:8}{rates[name]:12.0f}{p50:9.2f}{p99:9.2f}{times:9.2f}x")
    return lines


# ---- clients


async def asked(side: Side, clients: int, seconds: float) -> list[float]:
    """Seconds of each request that was answered with 200. Raises RuntimeError for any other
    answer.
    """
    request = (
        f"POST {side.path} HTTP/1.1\r\nHost: 127.0.0.1:{side.port}\r\nContent-Type:"
        f" application/json\r\nAuthorization: Bearer {os.environ[TOKEN]}\r\nContent-Length:"
        f" {len(side.body)}\r\n\r\n"
    ).encode() + side.body
    took: list[float] = []
    deadline = time.perf_counter() + seconds

    async def client() -> None:
        # Bytes by hand: an HTTP library in Python would be slower than what it asks.
        reader, writer = await asyncio.open_connection("127.0.0.1", side.port)
        while (began := time.perf_counter()) < deadline:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            if b" 200 " not in head.partition(b"\r\n")[0]:
                raise RuntimeError(f"{head.decode()}{body[:500]!r}")
            took.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return took


# ---- sides


def started(stack: ExitStack, folder: Path) -> dict[str, Side]:
    """All sides, up and warm; ours first."""
    network, image = trained(folder)
    body = json.dumps({"pixels": image}).encode()
    state = kept(folder, network)
    sides: dict[str, Side] = {}

    def add(
        name: str, command: Callable[[int], list[str]], path: str = "/predict", sent: bytes = body
    ) -> None:
        port = free_port()
        stack.enter_context(running(name, command(port), folder))
        sides[name] = Side(port=port, path=path, body=sent)
        await_answer(name, sides[name])

    for replicas in (1, 2):
        add(
            f"regrow serve, {replicas}",
            lambda port, replicas=replicas: [  # type: ignore[misc]  # its default is an int
                sys.executable,
                "-m",
                "regrow",
                "serve",
                "digits",
                "--model",
                str(EXAMPLES / "digits_serve.py:Digits"),
                "--state",
                str(state),
                "--port",
                str(port),
                "--replicas",
                str(replicas),
            ],
        )
    add("plain FastAPI", lambda port: [sys.executable, "-c", PLAIN, str(port), str(network)])
    add(
        "mlflow models serve",
        lambda port: [
            str(Path(sys.executable).parent / "mlflow"),
            "models",
            "serve",
            "-m",
            str(logged(folder, network)),
            "--env-manager",
            "local",
            "-p",
            str(port),
        ],
        "/invocations",
        json.dumps({"inputs": [image]}).encode(),
    )
    try:
        from ray import serve  # noqa: F401
    except ImportError as missing:
        print(f"Ray Serve is left out: {missing}")
    else:
        add("Ray Serve", lambda port: [sys.executable, "-c", RAY_SERVE, str(port), str(network)])
    return sides


def trained(folder: Path) -> tuple[Path, list[float]]:
    """The file of a network that knows the digits, and an image."""
    import joblib

    from examples import digits

    train_x, valid_x, train_y, _ = digits.data()
    network = digits.network(
        {"hidden": 64, "layers": 2, "optimizer": "adam", "lr": 0.003, "alpha": 1e-4}, 0
    )
    for _ in range(5):
        network.partial_fit(train_x, train_y, classes=range(10))
    (folder / "checkpoint").mkdir()
    joblib.dump(network, folder / "checkpoint" / "model.joblib")
    return folder / "checkpoint" / "model.joblib", [float(pixel) for pixel in valid_x[0]]


def kept(folder: Path, network: Path) -> Path:
    """A state root with an experiment whose one checkpoint is the network."""
    now, state = time.time(), folder / "state"
    store = LocalStore(state / "digits")
    spec = Spec.parse(
        {
            "name": "digits",
            "trainable": "digits.py:train",
            "metric": "accuracy",
            "mode": "max",
            "search": "random",
            "space": {"hidden": {"choice": [64]}},
            "trials": 1,
            "max_steps": 1,
        }
    )
    log = Log.open(store)
    first: list[AnyEvent] = [
        Created(t=now, id="one", spec=spec.to_json()),
        Opened(t=now, by="driver", driver="d", slots=1, trials=1),
    ]
    log.claim([encode(event) for event in first])
    made = save(store, network.parent, trial=0, attempt=1, step=1)
    then: list[AnyEvent] = [
        Proposed(t=now, trial=0, config={"hidden": 64}),
        Started(t=now, trial=0, attempt=1),
        Began(t=now, trial=0, attempt=1, node="n"),
        Reported(t=now, trial=0, attempt=1, rows=[Row(1, now, {"accuracy": 0.97})]),
        Saved(t=now, trial=0, attempt=1, step=1, manifest=made.manifest, size=made.size),
    ]
    log.append([encode(event) for event in then])
    return state


def logged(folder: Path, network: Path) -> Path:
    """The same network as a model of MLflow's."""
    import joblib
    import mlflow.sklearn

    mlflow.sklearn.save_model(
        joblib.load(network), folder / "mlflow", serialization_format="cloudpickle"
    )
    return folder / "mlflow"


@contextmanager
def running(name: str, command: list[str], folder: Path) -> Iterator[None]:
    """A server, which ends with the block; what it prints is shown where it does not come up."""
    log = folder / f"{name}.log"
    with log.open("wb") as into:
        # MLflow starts `uvicorn`
        found = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        process = subprocess.Popen(
            command, cwd=folder, env=found, stdout=into, stderr=into, start_new_session=True
        )
    try:
        yield
    except TimeoutError:
        shutil.copyfileobj(log.open(), sys.stderr)
        raise
    finally:
        os.killpg(process.pid, 15)
        process.wait(60)


def await_answer(name: str, side: Side, seconds: float = 180.0) -> None:
    """Returns once a request is answered, and some more have been."""
    deadline = time.monotonic() + seconds
    address = f"http://127.0.0.1:{side.port}{side.path}"
    given = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ[TOKEN]}"}
    request = urllib.request.Request(address, side.body, given)
    while True:
        try:
            urllib.request.urlopen(request, timeout=30).read()
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name}: {error}") from None
            time.sleep(0.2)
    asyncio.run(asked(side, 4, 0.5))


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
