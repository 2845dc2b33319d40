"""The application: its routes. Routes only read, and are short; `views` makes their content."""

from __future__ import annotations

import gzip
import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)

from regrow.apps.page import figures, listing, logged, trial_comparison, trials, views
from regrow.apps.page.asked import MOST_COMPARED, ListQuery, TableQuery, sentence
from regrow.apps.page.experiment_state import ExperimentState, Summary
from regrow.apps.page.figures import FigureRoutes
from regrow.apps.page.links import Links, Schedules
from regrow.apps.page.logged import LoggedMedia
from regrow.apps.page.state_cache import StateCache, StateWatcher
from regrow.infra.log.reading import replayed
from regrow.infra.machine.guard import SAFE, EntryGuard, PasswordEntry, Rules
from regrow.infra.mlflow.ui import runs_page
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import runs
from regrow.infra.state.passwords import USER, Passwords, used_links
from regrow.infra.state.places import Places
from regrow.search.history.orders import TrialOrder
from regrow.show.figures import KINDS, listed
from regrow.show.report import report
from regrow.show.views import media as shown_media
from regrow.show.web import as_yaml, moment, templates
from regrow.show.web import asset as shared_asset
from regrow.tasks.errors import RegrowError, UserError
from regrow.tasks.media.items import Item

T = TypeVar("T")
HOOKS = "/hooks/"
"""Prefix of addresses with their own secrets."""
POLL_SECONDS = (2, 15)
"""Seconds between two refreshes of an open page: while something runs, and otherwise."""
FOREVER = {"Cache-Control": "private, max-age=31536000, immutable"}
"""For files that have their version in their address."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src"
    " 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Nothing from other origins, no inline script, and no framing."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Default headers of each answer."""
WITH_FIGURES = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'").replace(
    "data:", "data: blob:"
)
"""Policy with inline styles, which Plotly's script writes into the elements that it makes."""
OF_A_REPORT = "frame-ancestors 'none'"
"""In addition to the policy in the report itself."""


def app(
    places: Places,
    links: Links,
    known: Passwords,
    *,
    hosts: Collection[str] = (),
    origins: Collection[str] = (),
) -> FastAPI:
    """Make the application on the experiments of a state root, protected by its password.

    Args:
        places: locations of state and services.
        links: links to other pages.
        known: the passwords of the state root.
        hosts: accepted host names in addition to those of this machine's loopback.
        origins: accepted origins of a proxy.

    """
    made = FastAPI(title="regrow", docs_url=None, redoc_url=None, openapi_url=None)
    PageRoutes(places, links).serve(made)
    rules = Rules(
        hosts=hosts, origins=origins, open=frozenset({"/health"}), own=(HOOKS,), headers=HEADERS
    )
    entry = PasswordEntry("page", USER, known.page, known.cookies, used_links(places.services))
    made.add_middleware(EntryGuard, entry=entry, rules=rules)
    return made


class PageRoutes:
    def __init__(self, places: Places, links: Links) -> None:
        self.places, self.links = places, links
        self.folds, self.figures, self.schedules = (
            StateCache(places),
            FigureRoutes(),
            Schedules(links),
        )
        self.logged = LoggedMedia()
        versions = {
            f"{name.replace('.', '_')}_v": hashlib.sha256(asset(name)).hexdigest()[:12]
            for name in _ASSETS
        }
        self._everywhere = {
            "links": links,
            "root": places.root,
            "plotly_v": version("plotly"),
            **versions,
        }

    def serve(self, made: FastAPI) -> None:
        route = made.add_api_route
        route("/health", lambda: PlainTextResponse("ok"), methods=sorted(SAFE))
        answers: dict[str, Callable[..., Response]] = {
            "/": self.index,
            "/compare": self.compare,
            "/e/{name}": self.experiment,
            "/e/{name}/compare": self.compare_trials,
            "/e/{name}/report": self.report,
            "/e/{name}/t/{number}": self.trial,
            "/e/{name}/t/{number}/figures/{attempt}/{file}": self.logged_figure,
            "/e/{name}/t/{number}/media/{attempt}/{file}": self.media,
            "/e/{name}/figures/{kind}": self.figure,
            "/go/mlflow": self.mlflow,
            "/go/mlflow/{name}": self.mlflow,
            "/static/plotly.js": self.plotly,
            "/static/look.json": self.figure_styles,
            "/static/{name}": self.static,
        }
        for path, answer in answers.items():
            route(path, answer, methods=sorted(SAFE), response_model=None)
        route("/e/{name}/t/{number}/{what}", self.order, methods=["POST"], response_model=None)
        made.add_exception_handler(HTTPException, self.wrong)
        made.add_exception_handler(RequestValidationError, self.wrong)
        made.add_exception_handler(RegrowError, self.wrong)

    # ---- pages

    def index(self, asked: Annotated[ListQuery, Query()]) -> Response:
        summaries, unread = self.folds.summaries()
        shown = listing.listing(summaries, asked)
        now = time.time()
        for group in shown["groups"]:
            group["rows"] = [views.row(one, self.links, now) for one in group["rows"]]
        running = sum(one.status == "running" for one in summaries)
        here = {*(one.name for one in summaries), *unread}
        return self._page(
            "index.html.j2",
            poll=POLL_SECONDS[not (unread or running or self.folds.untagged)],
            unread=unread,
            untagged=self.folds.untagged,
            count=len(here),
            running=running,
            asked=asked,
            shown=shown,
            words=listing.filter_text(asked),
            elsewhere=[name for name in shown["elsewhere"] if name in here],
            nowhere=[name for name in shown["elsewhere"] if name not in here],
            trouble=self.folds.trouble,
            planned=list(views.planned(self.schedules.next(), now)),
            served=self.links.served(),
            aside=self.links.aside(),
            planned_trouble=self.schedules.trouble,
            query=lambda **changes: asked.query(changes),
        )

    def experiment(self, name: str, asked: Annotated[TableQuery, Query()]) -> Response:
        with self._open(name) as (watched, summary, fold):
            noted = watched.noted()
            if fold is None:
                row = views.row(summary, self.links, time.time())
                return self._page(
                    "unreadable.html.j2", poll=POLL_SECONDS[1], e=row, status_code=503
                )
            live = summary.status == "running"
            answer = self._page(
                "experiment.html.j2",
                poll=POLL_SECONDS[not live],
                table=trials.table(fold.history, asked),
                asked=asked,
                e=views.experiment(fold, summary, noted, self.links, self.places, time.time()),
                figures=listed(),
                query=lambda **changes: asked.query(changes),
            )
        answer.headers["Content-Security-Policy"] = WITH_FIGURES
        return answer

    def compare_trials(self, name: str, asked: Annotated[TableQuery, Query()]) -> Response:
        numbers = self._few(asked.t, "trials")
        with self._open(name) as (_, summary, fold):
            if fold is None:
                raise HTTPException(503, f"Experiment {name} cannot be read.")
            return self._page(
                "compare_trials.html.j2",
                poll=POLL_SECONDS[summary.status != "running"],
                name=name,
                back=asked.query({}),
                **trial_comparison.compared(fold.history, numbers),
            )

    def trial(self, name: str, number: int) -> Response:
        with self._open(name) as (_, summary, fold):
            if fold is None or not 0 <= number < len(fold.history.trials):
                raise HTTPException(404, f"Experiment {name} has no trial {number}.")
            record, store = fold.history.trials[number], self.places.store(name)
            found = trials.one(fold.history, record)
            answer = self._page(
                "trial.html.j2",
                poll=POLL_SECONDS[summary.status != "running"],
                name=name,
                trial=found,
                config=as_yaml(found["config"]),
                metric=fold.history.objective.name,
                ranked=fold.history.spec.resources.ranked,
                logged=self.logged.shown(name, fold.history.id, record, store),
                command=self.places.command("trial", name, str(number)),
            )
        answer.headers["Content-Security-Policy"] = WITH_FIGURES
        return answer

    def order(self, name: str, number: int, what: TrialOrder) -> Response:
        """Stop, drop or keep a trial; the request has no body, so no page of others can make it."""
        from regrow.flows.housekeeping.trial_orders import order

        with self._open(name):
            pass  # 404 without the experiment
        try:
            order(self.places, name, [number], what)
        except UserError as error:
            raise HTTPException(409, f"{error}.") from None
        return RedirectResponse(f"/e/{quote(name)}/t/{number}", 303)

    def compare(self, asked: Annotated[ListQuery, Query()]) -> Response:
        names = self._few([name for name in asked.e if name], "experiments")
        with self.folds.open(names) as folds:
            alive = {name: (one := self.folds.get(name)) is not None and one.live for name in folds}
            found = views.comparison(folds, alive, time.time())
            missing = [name for name in names if name not in folds]
            return self._page(
                "compare.html.j2",
                poll=POLL_SECONDS[not any(alive.values())],
                missing=missing,
                back=asked.query({}),
                **found,
            )

    def report(self, name: str) -> Response:
        self._known(name)
        store = self.places.known(name)
        page = report.html(
            replayed(store, name),
            self.places,
            alive=runs(self.places, name),
            now=time.time(),
            notes=notes.read(store),
        )
        return HTMLResponse(page, headers={"Content-Security-Policy": OF_A_REPORT})

    # ---- links to other pages

    def mlflow(self, name: str | None = None) -> Response:
        """Redirect to MLflow's page on the experiment's trials, whose address only MLflow knows."""
        if self.links.mlflow is None:
            raise HTTPException(404, "MLflow's page is not served.")
        if name is None:
            return RedirectResponse(self.links.mlflow, 303)
        with self._open(name) as (_, _, fold):
            if fold is None:
                return RedirectResponse(self.links.mlflow, 303)
            spec, id_ = fold.history.spec, fold.history.id
        return RedirectResponse(
            runs_page(
                self.links.mlflow,
                spec.recorded_as,
                spec.objective.name,
                spec.objective.mode,
                only=id_,
            ),
            303,
        )

    # ---- parts of pages

    def figure(self, name: str, kind: str) -> Response:
        if kind not in KINDS:
            raise HTTPException(404, f"There is no figure {kind}.")
        with self._open(name) as (_, _, fold):
            if fold is None:
                raise HTTPException(503, f"Experiment {name} cannot be read.")
            data = self.figures.drawn(name, kind, fold, self.places.store(name))
        return Response(data, media_type="application/json")

    def media(self, name: str, number: int, attempt: int, file: str) -> Response:
        item, data = self._item(name, number, attempt, file)
        answer = logged.served(item, data)
        answer.headers.update(FOREVER)
        return answer

    def logged_figure(self, name: str, number: int, attempt: int, file: str) -> Response:
        """Return a figure of Plotly's that a trial logged, as `figure` does."""
        _, data = self._item(name, number, attempt, file)
        found = shown_media.plotted(data) or {"nothing": "It is no figure of Plotly's."}
        return Response(msgspec.json.encode(found), media_type="application/json")

    def _item(self, name: str, number: int, attempt: int, file: str) -> tuple[Item, bytes]:
        """Return a logged item and its content. Raises HTTPException if it does not exist."""
        self._known(name)
        item = logged.item_of(number, attempt, file)
        data = None if item is None else logged.content(self.places.store(name), item)
        if item is None or data is None:
            raise HTTPException(404, f"Trial {number} of {name} logged no such thing.")
        return item, data

    def plotly(self, request: Request) -> Response:
        """Return Plotly's script, from the installed package."""
        from regrow.show.figures.embedded import packed_plotly

        packed = packed_plotly()
        headers = {**FOREVER, "Vary": "Accept-Encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
        else:
            packed = gzip.decompress(packed)
        return Response(packed, media_type="text/javascript", headers=headers)

    def figure_styles(self) -> Response:
        return Response(figures.styles(), media_type="application/json", headers=FOREVER)

    def static(self, name: str) -> Response:
        if name not in _ASSETS:
            raise HTTPException(404, "There is nothing here.")
        return Response(
            asset(name),
            media_type="text/css" if name.endswith(".css") else "text/javascript",
            headers=FOREVER,
        )

    async def wrong(self, request: Request, error: Exception) -> Response:
        code, why = 500, str(error)
        if isinstance(error, HTTPException):
            code, why = (
                error.status_code,
                error.detail if error.detail != "Not Found" else "There is nothing here.",
            )
        elif isinstance(error, RequestValidationError):
            code, why = 400, " ".join(map(sentence, error.errors()))
        if (
            request.url.path.startswith(("/static/", "/health", "/hooks/"))
            or "/figures/" in request.url.path
        ):
            return JSONResponse({"nothing": why}, code)
        return self._page("wrong.html.j2", poll=0, why=why, status_code=code)

    # ---- shared

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[StateWatcher, Summary, ExperimentState | None]]:
        """Yield an experiment, its summary, and its fold, None if it cannot be read. Raises
        HTTPException if it does not exist.
        """
        watched = self._known(name)
        with self.folds.open([name]) as folds:
            if watched.summary is None or watched.gone:
                raise HTTPException(404, f"There is no experiment {name}.")
            yield watched, watched.summary, folds.get(name)

    @staticmethod
    def _few(ticked: Sequence[T], what: str) -> list[T]:
        """Return what is to be compared, each once. Raises HTTPException for too many."""
        found = list(dict.fromkeys(ticked))
        if len(found) > MOST_COMPARED:
            raise HTTPException(400, f"At most {MOST_COMPARED} {what} are compared at a time.")
        return found

    def _known(self, name: str) -> StateWatcher:
        watched = self.folds.get(name)
        if watched is None:
            raise HTTPException(404, f"There is no experiment {name} in {self.places.root}.")
        return watched

    def _page(self, template: str, *, poll: int, status_code: int = 200, **given: Any) -> Response:
        given |= {**self._everywhere, "poll": poll, "now": moment(time.time())}
        page = templates("regrow.apps.page").get_template(template)
        return HTMLResponse(page.render(**given), status_code)


_ASSETS = {
    "style.css": ("style.css",),
    "page.js": ("times.js", "page.js"),
    "figures.js": ("figures.js",),
}
"""Files that we serve, and which shared files and files of `static` they are made of."""


@cache
def asset(name: str) -> bytes:
    return "".join(shared_asset(part, "regrow.apps.page") for part in _ASSETS[name]).encode()
