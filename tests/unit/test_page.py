"""The page of all experiments as its reader is answered: what stands in it, who may ask, and that
nothing of a user's is markup.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote
from uuid import uuid4

import msgspec
import pytest

from regrow.apps.page.links import Links
from regrow.apps.serving.status import ServedCheckpoint, ServerStatus
from regrow.apps.station.state import Serving
from regrow.infra.prefect.deployments import Scheduled
from regrow.infra.state import notes
from regrow.infra.state.driver_lock import driving
from regrow.infra.state.places import Places
from regrow.infra.stores.local import LocalStore
from regrow.search.events import AnyEvent, Ended, Opened
from tests.unit.figured import ASHA, AWAY, PBT, failed, run
from tests.unit.paged import OURS, Reader, logged, reader, stranger, unclosed
from tests.unit.test_report import Page

NASTY = "</script><script>hurt()</script><img src=x onerror=hurt()>{{ 7919*7907 }}"


@pytest.fixture(scope="module")
def lossy() -> Sequence[AnyEvent]:
    return run(
        schedule=ASHA, trials=60, workers=4, machines=(*AWAY, *AWAY), price_per_hour=3.0
    ).events


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, lossy: Sequence[AnyEvent]) -> Path:
    """A state root that nobody writes to any more."""
    root = tmp_path_factory.mktemp("state")
    logged(root, "lossy", lossy)
    logged(root, "longer", run(schedule=ASHA, trials=60, max_steps=27, search="tpe").events)
    logged(root, "least", run(mode="min").events)
    logged(root, "population", run(schedule=PBT, trials=12, workers=12, max_steps=24).events)
    ended = failed(2, message=f"ValueError: {NASTY}")
    last = ended[-1]
    assert isinstance(last, Ended)
    logged(root, "nasty", [*ended[:-1], msgspec.structs.replace(last, trace=NASTY)])
    notes.add(LocalStore(root / "nasty"), NASTY, tags=["<i>tag</i>"])
    damaged = root / "damaged" / "log"
    damaged.mkdir(parents=True)
    for number in (1, 2):
        (damaged / f"{number:010d}.jsonl").write_text("{}\n")
    return root


@pytest.fixture
def readers(root: Path) -> Reader:
    found = reader(root)
    while "Still being read" in found.get("/").text:  # a request reads for a moment only
        pass
    return found


def rows(page: str) -> list[str]:
    """Names in the list of experiments, in order."""
    return [unquote(name) for name in re.findall(r'<th scope="row"><a href="/e/([^"/]+)"', page)]


def trials(page: str) -> list[int]:
    """Numbers in the table of trials, in order."""
    return [
        int(number) for number in re.findall(r'<th scope="row"><a href="/e/[^"]+/t/(\d+)"', page)
    ]


def test_the_list_says_how_each_stands_and_has_the_running_one_first(
    root: Path, lossy: Sequence[AnyEvent]
) -> None:
    places = Places(root=str(root))
    logged(root, "a-crashed", unclosed(lossy, 200))
    logged(root, "z-live", unclosed(lossy, 200))
    with driving(places, "z-live"):
        answer = reader(root).get("/")
    page = Page(answer.text)
    assert answer.status_code == 200
    assert rows(answer.text)[0] == "z-live"
    assert set(rows(answer.text)) == {
        "z-live",
        "a-crashed",
        "lossy",
        "longer",
        "least",
        "population",
        "nasty",
        "damaged",
    }
    assert "8 here, 1 running" in page.text
    assert re.search(r"lossy finished 60 of 60 0\.89022 max score 6 0\.15", page.text), page.text
    assert re.search(r"a-crashed crashed \d+ of 60", page.text)
    assert re.search(
        r"damaged damaged the log of experiment 'damaged' in \S+ is damaged at log/0000000001.jsonl",
        page.text,
    )
    assert answer.text.count('class="spark"') == 6
    assert ("body", {"data-poll": "2"}) in page.elements


def test_the_list_is_filtered_by_name_and_paged(readers: Reader, tmp_path: Path) -> None:
    assert rows(readers.get("/?q=LOSS").text) == ["lossy"]
    events = run(trials=1, max_steps=1).events
    for number in range(101):
        logged(tmp_path, f"e{number:03}", events)
    many = reader(tmp_path)
    while "Still being read" in many.get("/").text:
        pass
    first, second = many.get("/"), many.get("/?page=2")
    assert (len(rows(first.text)), rows(second.text)) == (100, ["e100"])
    assert len(first.content) < 300_000
    assert 'href="?page=2" rel="next"' in first.text


def test_one_experiment_has_its_numbers_its_trials_its_losses_and_decisions(
    readers: Reader,
) -> None:
    answer = readers.get("/e/lossy")
    page = Page(answer.text)
    for words in (
        "Best score 0.89022 trial",
        "60 of 60 ended",
        "Cost 0.15 at 3",
        "6 attempts cut off",
        "1 to 50 of 60",
        "page 1 of 2",
        "preempted: 6 attempts",
        "; it continued",
        "step decided on stopped waiting best there 1 60",
    ):
        assert words in page.text, words
    assert len(trials(answer.text)) == 50
    assert "took the weights of trial" in Page(readers.get("/e/population").text).text


def test_trials_are_sorted_by_value_and_number_and_filtered_by_state(readers: Reader) -> None:
    def asked(query: str, name: str = "lossy") -> list[int]:
        return trials(readers.get(f"/e/{name}?{query}").text)

    def values(query: str, name: str) -> list[float]:
        cells = re.findall(
            r'<td class="num objective">([\d.]+)</td>', readers.get(f"/e/{name}?{query}").text
        )
        return [float(cell) for cell in cells]

    assert asked("sort=number") == list(range(50))
    assert asked("sort=number&order=desc") == list(range(59, 9, -1))
    assert asked("sort=number&page=2") == list(range(50, 60))
    assert asked("sort=number&page=99") == list(range(50, 60))
    best_first, least_first = values("", "lossy"), values("", "least")
    assert best_first == sorted(best_first, reverse=True)
    assert best_first[0] == 0.89022
    assert least_first == sorted(least_first), "the best is the least where less is better"
    assert values("order=asc", "lossy")[0] == min(values("order=asc", "lossy"))
    assert len(asked("state=done")) == 12
    assert readers.get("/e/lossy?sort=nonsense").status_code == 400


def test_a_trial_has_a_page_with_its_attempts(readers: Reader) -> None:
    page = Page(readers.get("/e/nasty/t/1").text)
    assert "Trial 1 failed" in page.text
    assert f"ValueError: {NASTY}" in page.text
    assert readers.get("/e/nasty/t/2").status_code == 404


def test_a_trial_is_dropped_and_kept_from_its_page_by_who_may(root: Path) -> None:
    reading, path, form = reader(root), "/e/least/t/0", "application/x-www-form-urlencoded"
    page = reading.get(path).text
    assert f'action="{path}/drop"' in page
    assert f'action="{path}/stop"' not in page
    own = {"Origin": OURS, "Content-Type": form}
    refused = {
        403: reading.ask("POST", f"{path}/drop", {**own, "Origin": "http://localhost:1"}),
        415: reading.ask("POST", f"{path}/drop", own, b"sure=yes"),
        401: stranger(root).ask("POST", f"{path}/drop", own),
        400: reading.ask("POST", f"{path}/delete", own),
        404: reading.ask("POST", "/e/none/t/0/drop", own),
        409: reading.ask("POST", "/e/least/t/9999/drop", own),
    }
    assert {code: answer.status_code for code, answer in refused.items()} == {c: c for c in refused}
    for what, then in (("drop", "keep"), ("keep", "drop")):
        answer = reading.ask("POST", f"{path}/{what}", own)
        assert (answer.status_code, answer.headers["location"]) == (303, path)
        assert f'action="{path}/{then}"' in reader(root).get(path).text


def test_nothing_that_users_wrote_is_markup(readers: Reader) -> None:
    for path in (
        "/",
        "/e/nasty",
        "/e/nasty/t/1",
        "/compare?e=nasty&e=lossy",
        f"/e/{'%3Cimg%20src=x%3E'}",
        "/?q=%3Cimg%3E%22",
    ):
        page = Page(readers.get(path).text)
        assert not [tag for tag, _ in page.elements if tag in ("img", "i", "b") and tag != "i"], (
            path
        )
        assert all(
            attributes.keys() <= {"class"} for tag, attributes in page.elements if tag == "i"
        ), path
        assert [
            str(a.get("src", "")).partition("?")[0] for tag, a in page.elements if tag == "script"
        ] in ([["/static/page.js"], ["/static/page.js", "/static/figures.js"]]), path
        assert not page.scripts or not "".join(page.scripts).strip(), (
            "a script of the page's own would not run"
        )
        assert "62615533" not in page.text, "a template was made of it"
    assert NASTY in Page(readers.get("/e/nasty").text).text, "it is said, as text"


def test_several_are_compared_as_curves_and_tables(readers: Reader) -> None:
    answer = readers.get("/compare?e=lossy&e=longer")
    page = Page(answer.text)
    assert answer.text.count('class="chart"') == 3
    assert answer.text.count('class="line h1"') == 3
    assert "best score 0.89022" in page.text
    assert "max_steps 9 27" in page.text
    assert "search random tpe" in page.text
    assert (
        "They cannot be compared: one has max score, another min score"
        in Page(readers.get("/compare?e=lossy&e=least").text).text
    )
    assert "called nowhere" in Page(readers.get("/compare?e=nowhere&e=lossy").text).text
    assert readers.get("/compare?" + "&".join(f"e=n{n}" for n in range(9))).status_code == 400


def test_figures_come_as_json_and_their_script_from_the_installed_package(readers: Reader) -> None:
    drawn = readers.get("/e/lossy/figures/rungs").json()
    assert drawn["figure"]["data"]
    assert drawn["height"]
    assert readers.get("/e/least/figures/rungs").json().keys() == {"nothing"}
    assert readers.get("/e/lossy/figures/nonsense").status_code == 404
    script = readers.get("/static/plotly.js")
    assert "immutable" in script.headers["cache-control"]
    assert b"plotly.js v" in script.content[:200]
    assert readers.get("/static/../app.py").status_code == 404


def test_the_report_is_made_now_and_keeps_its_own_policy(readers: Reader) -> None:
    report = readers.get("/e/least/report")
    assert '<meta name="generator" content="regrow' in report.text
    assert "script-src" not in report.headers["content-security-policy"], (
        "the one in the report stands"
    )


def test_every_answer_forbids_what_the_page_does_not_need(readers: Reader) -> None:
    for path in (
        "/",
        "/e/lossy",
        "/compare",
        "/e/nowhere",
        "/health",
        "/static/page.js",
        "/e/least/report",
    ):
        headers = readers.get(path).headers
        assert (
            headers["x-frame-options"],
            headers["referrer-policy"],
            headers["x-content-type-options"],
        ) == (
            "DENY",
            "no-referrer",
            "nosniff",
        )
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
    policy = readers.get("/e/lossy").headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "unsafe-inline" not in readers.get("/").headers["content-security-policy"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", ""],
)
def test_a_foreign_host_is_refused_also_on_health(readers: Reader, host: str) -> None:
    assert [
        readers.get(path, Host=host).status_code for path in ("/", "/health", "/static/page.js")
    ] == [421] * 3


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8", "[::1]:8", "lab.example:8"]
)
def test_our_own_names_are_answered(root: Path, host: str) -> None:
    assert reader(root, hosts=["Lab.example"]).get("/health", Host=host).status_code == 200


def test_a_password_is_wanted_everywhere_but_at_health(root: Path) -> None:
    guarded = stranger(root)

    def status(path: str, told: str, kind: str = "Basic") -> int:
        return guarded.get(
            path, Authorization=f"{kind} {base64.b64encode(told.encode()).decode()}"
        ).status_code

    assert guarded.get("/health").status_code == 200
    for path in (
        "/",
        "/e/lossy",
        "/static/page.js",
        "/go/mlflow",
        "/e/lossy/report",
        "/nowhere",
        "/health/",
        "/e/lossy/figures/rungs",
    ):
        refused = guarded.get(path)
        assert (refused.status_code, "lossy" in refused.text) == (401, False), path
        assert refused.headers["www-authenticate"].startswith("Basic")
    assert status("/", "regrow:grün:er") == 200
    assert [
        status("/", told) for told in ("regrow:", "regrow:grün", "other:grün:er", "", "grün:er")
    ] == [401] * 5
    assert status("/", "regrow:grün:er", "Bearer") == 401
    assert guarded.get("/", Authorization="Basic nonsense!").status_code == 401


def test_there_are_ways_to_prefect_and_mlflow_where_they_are_served(
    root: Path, lossy: Sequence[AnyEvent]
) -> None:
    begun = [
        msgspec.structs.replace(e, flow_run="1-2/3") if isinstance(e, Opened) else e for e in lossy
    ]
    logged(root, "flowing", begun)
    served = reader(root, Links(prefect="http://localhost:4200/", mlflow="http://127.0.0.1:9"))
    assert 'href="http://localhost:4200/runs/flow-run/1-2%2F3"' in served.get("/e/flowing").text
    answer = served.get("/go/mlflow/lossy")
    assert (answer.status_code, answer.headers["location"]) == (303, "http://127.0.0.1:9"), (
        "MLflow does not answer: its front page"
    )
    assert reader(root).get("/go/mlflow/lossy").status_code == 404


def test_what_is_scheduled_is_shown_and_a_failure_to_ask_is_said(root: Path) -> None:
    def broken() -> list[Scheduled]:
        raise OSError("secret-address")

    def schedule(name: str, words: str, *coming: float) -> Scheduled:
        return Scheduled(
            id=uuid4(),
            name=name,
            words=words,
            paused=False,
            parameters={},
            coming=tuple(datetime.fromtimestamp(at, UTC) for at in coming),
            runs=(),
        )

    known = [schedule("etl", "after load"), schedule("<b>nightly</b>", "at 02:00", 4e9)]
    page = Page(reader(root, Links(scheduled=lambda: known)).get("/").text)
    assert "<b>nightly</b> at 02:00 2096-10-02 07:06 UTC in" in page.text
    assert "etl after load not timed" in page.text
    failing = reader(root, Links(scheduled=broken)).get("/")
    assert (
        failing.status_code,
        "cannot be read at present" in failing.text,
        "secret-address" in failing.text,
    ) == (200, True, False)


def test_unknown_addresses_and_other_verbs_are_refused(readers: Reader) -> None:
    assert [
        readers.get(path).status_code
        for path in ("/e/nowhere", "/nowhere", "/e/..%2F..", "/openapi.json", "/docs")
    ] == [404] * 5
    assert readers.get("/e/damaged").status_code == 503
    # Monitors and `curl -I` ask for the head alone.
    asked = [readers.ask("HEAD", path, {}) for path in ("/", "/health", "/e/lossy", "/nowhere")]
    assert [one.status_code for one in asked] == [200, 200, 200, 404]
    assert readers.ask("DELETE", "/e/lossy", {}).status_code == 405
    assert OURS.startswith("http://localhost")


def test_what_a_station_serves_is_shown(root: Path) -> None:
    main = ServedCheckpoint(
        experiment="night-1", trial=3, step=1, metric="score", value=0.5, since=0.0
    )
    state = ServerStatus(url="http://127.0.0.1:8100", main=main, refused="night-2: <b>trial</b> 0")
    trouble = ServerStatus(trouble="serve.port: 8100 cannot be used")
    served = [
        Serving(name="night", running=True, status=state),
        Serving(name="etl", running=True, status=trouble),
    ]
    text = reader(root, Links(served=lambda: served)).get("/").text
    assert "http://127.0.0.1:8100" in text
    assert "night-1, trial 3" in text
    assert "&lt;b&gt;trial&lt;/b&gt; 0" in text
    assert "serve.port: 8100 cannot be used" in text
    assert 'id="served"' not in reader(root).get("/").text
