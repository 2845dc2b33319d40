"""The tables of experiments and of trials as an address asks for them: what is filtered, grouped
and ticked, that links and forms keep it, and what is refused.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import msgspec
import pytest

from regrow.infra.state import notes
from regrow.infra.stores.local import LocalStore
from regrow.search.events import AnyEvent, Began, Ended, Opened, Started
from tests.unit.figured import ASHA, begun, run
from tests.unit.paged import Reader, logged, reader, unclosed
from tests.unit.test_page import rows, trials
from tests.unit.test_report import Page

OLD: dict[str, Any] = {"git": {"commit": "1a2b3c4d99", "dirty": False}}
NEW: dict[str, Any] = {
    "git": {"commit": "77aa88bb99", "dirty": True},
    "code": {"sha256": "f" * 64, "working_dir_sha256": "5d6e7f80" * 8},
}
NASTY = '<b>"&tag'


def coded(events: Sequence[AnyEvent], environment: dict[str, Any]) -> list[AnyEvent]:
    return [
        msgspec.structs.replace(e, environment=environment) if isinstance(e, Opened) else e
        for e in events
    ]


def two_sessions() -> list[AnyEvent]:
    """Trials 0 to 2 ran with the old code, 2 and 3 with the new one; 4 has not begun."""
    events = coded(begun(3), OLD)
    events += [Ended(t=103.0, trial=n, attempt=1, outcome="done") for n in (0, 1)]
    events += [Ended(t=103.0, trial=2, attempt=1, outcome="lost", cause="preempted")]
    opened = next(e for e in events if isinstance(e, Opened))
    events.append(msgspec.structs.replace(opened, t=200.0, environment=NEW))
    proposed = [e for e in begun(5) if getattr(e, "trial", -1) in (3, 4)]
    events += [
        msgspec.structs.replace(e, t=201.0)
        for e in proposed
        if not (isinstance(e, Started | Began) and e.trial == 4)
    ]
    return [*events, Started(t=202.0, trial=2, attempt=2)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("state")
    short = run(trials=2, max_steps=2).events
    for name, events in {
        "a": coded(run(schedule=ASHA, trials=60).events, OLD),
        "b": coded(short, NEW),
        "c": short,
        "crashed": coded(unclosed(short, 8), OLD),
        "sessions": two_sessions(),
    }.items():
        logged(root, name, events)
    notes.add(LocalStore(root / "a"), "", tags=["night", NASTY])
    notes.add(LocalStore(root / "b"), "", tags=["night"])
    notes.add(LocalStore(root / "b"), "", tags=["old"], untags=[])
    notes.add(LocalStore(root / "b"), "", untags=["old"])
    return root


@pytest.fixture(scope="module")
def readers(root: Path) -> Reader:
    return reader(root)


def groups(page: str) -> list[str]:
    return [
        html.unescape(re.sub(r"<[^>]+>", "", title)).strip()
        for title in re.findall(r'<th scope="rowgroup"[^>]*>(.*?)</th>', page)
    ]


def ticked(page: str, name: str) -> list[str]:
    """Values of the ticked boxes, in order."""
    boxes = [a for tag, a in Page(page).elements if tag == "input" and a.get("name") == name]
    return [str(a["value"]) for a in boxes if "checked" in a]


def chosen(page: str) -> dict[str, str]:
    """What the lists of a form say that is chosen."""
    found, name = {}, ""
    for tag, a in Page(page).elements:
        if tag == "select":
            name = str(a["name"])
        if tag == "option" and "selected" in a:
            found[name] = str(a["value"])
    return found


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("tag=night", {"a", "b"}),
        (f"tag={quote(NASTY)}", {"a"}),
        ("tag=old", set()),
        ("version=1a2b3c4d", {"a", "crashed", "sessions"}),
        ("version=77aa88bb%2B5d6e7f80", {"b", "sessions"}),
        ("version=unknown", {"c"}),
        ("version=1a2b", set()),
        ("state=crashed", {"crashed", "sessions"}),
        ("state=finished&tag=night&version=1a2b3c4d", {"a"}),
        ("q=SESS&tag=&version=&state=&group=", {"sessions"}),
    ],
)
def test_experiments_are_filtered_by_tag_code_and_state(
    readers: Reader, query: str, names: set[str]
) -> None:
    answer = readers.get(f"/?{query}")
    assert (answer.status_code, set(rows(answer.text))) == (200, names)
    asked = {k: v[0] for k, v in parse_qs(query).items() if k != "q"}
    assert chosen(answer.text) == asked, "the form says what is asked"
    assert ("There is no experiment with " in Page(answer.text).text) == (not names)


def test_experiments_are_grouped_and_one_with_two_tags_is_in_both(readers: Reader) -> None:
    by_tag = readers.get("/?group=tag").text
    assert groups(by_tag) == [f"{NASTY} 1", "night 2", "no tag 3"]
    assert rows(by_tag)[0] == "a"
    assert sorted(rows(by_tag)[1:3]) == ["a", "b"]
    by_code = groups(readers.get("/?group=version").text)
    assert sorted(by_code) == ["1a2b3c4d 2", "77aa88bb+5d6e7f80 2", "unknown 1"]
    assert groups(readers.get("/?group=state").text) == ["finished 3", "crashed 2"]
    assert groups(readers.get("/").text) == []


def test_a_group_continues_on_the_next_page(tmp_path: Path) -> None:
    events = run(trials=1, max_steps=1).events
    for number in range(103):
        logged(tmp_path, f"e{number:03}", events)
    for number in (101, 102):
        notes.add(LocalStore(tmp_path / f"e{number}"), "", tags=["few"])
    many = reader(tmp_path)
    while "still being read" in (page := many.get("/?group=tag").text).lower():
        pass
    assert groups(page) == ["few 2", "no tag 101"]
    second = many.get("/?group=tag&page=2").text
    assert (groups(second), rows(second)) == (["no tag 101"], ["e098", "e099", "e100"])
    assert 'href="?group=tag&amp;page=2" rel="next"' in page


def test_what_is_ticked_stays_so_wherever_it_is(readers: Reader) -> None:
    page = readers.get("/?tag=night&e=a&e=c&e=nowhere&e=").text
    assert ticked(page, "e") == ["a", "c"]
    assert "Also ticked: c" in Page(page).text
    assert "No experiment here is called nowhere." in Page(page).text
    nasty = next(str(a["href"]) for tag, a in Page(page).elements if a.get("class") == "tag")
    assert parse_qs(nasty.removeprefix("?"))["e"] == ["a", "c", "nowhere"]
    compared = readers.get("/compare?tag=night&e=a&e=c").text
    assert 'href="/?tag=night&amp;e=a&amp;e=c"' in compared, "the way back keeps it"


def test_trials_are_filtered_and_grouped_by_code_and_state(readers: Reader) -> None:
    def asked(query: str) -> str:
        return readers.get(f"/e/sessions?sort=number&{query}").text

    assert trials(asked("version=1a2b3c4d")) == [0, 1, 2]
    assert trials(asked("version=77aa88bb%2B5d6e7f80")) == [2, 3]
    assert trials(asked("version=77aa88bb%2B5d6e7f80&state=running")) == [2, 3]
    assert trials(asked("version=1a2b3c4d&state=done")) == [0, 1]
    nothing = Page(asked("version=%3Cb%3E")).text
    assert "No trial of 5 has version “<b>” of the code" in nothing
    by_code = asked("group=version")
    assert groups(by_code) == ["77aa88bb+5d6e7f80 2", "1a2b3c4d 2", "no attempt yet 1"]
    assert trials(by_code) == [2, 3, 0, 1, 4]
    assert groups(asked("group=state")) == ["pending 1", "running 2", "done 2"]
    for query in ("group=state&version=1a2b3c4d", "state=done&t=1"):
        page = asked(query)
        head = next(str(a["href"]) for _, a in Page(page).elements if "sort=attempts" in str(a))
        kept = parse_qs(head.removeprefix("?").removesuffix("#trials"))
        assert kept == {**parse_qs(query), "sort": ["attempts"]}, "an order keeps what is asked"
        assert ("input", {"type": "hidden", "name": "sort", "value": "number"}) in Page(
            page
        ).elements, "and what is asked keeps the order"


def test_ticked_trials_are_compared_and_the_way_back_keeps_them(readers: Reader) -> None:
    page = readers.get("/e/a?state=stopped&t=11&t=1&t=99").text
    assert set(ticked(page, "t")) == {"1", "11"}
    assert "Also ticked: trial 11" in Page(page).text
    assert "a has no trial 99." in Page(page).text
    compared = readers.get("/e/a/compare?state=stopped&t=11&t=1").text
    text = Page(compared).text
    assert compared.count("<circle") == compared.count("<path") == 2
    assert re.search(r"score 0\.\d+ 0\.\d+ at step 9 1 state done stopped", text)
    assert re.search(r"lr 0\.\d+ [\d.e-]+", text)
    assert 'href="/e/a?state=stopped&amp;t=11&amp;t=1#trials"' in compared
    assert "Tick two or more trials" in readers.get("/e/a/compare?t=1").text
    assert "a has no trial 99." in Page(readers.get("/e/a/compare?t=1&t=99").text).text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/?state=nonsense", "“nonsense” is not known as “state”; known are running, finished,"),
        ("/?group=nonsense", "known are tag, version or state."),
        ("/?tags=night", "“tags” is nothing that this page can be asked for."),
        ("/?page=first", "“first” as “page” is no number from 0 up."),
        (f"/?q={'x' * 300}", "“q” takes at most 255 characters."),
        ("/?" + "&".join(f"e=n{n}" for n in range(51)), "At most 50 can be ticked."),
        ("/compare?e=a&x=1", "“x” is nothing that this page can be asked for."),
        (
            "/e/a?state=crashed",
            "known are pending, running, paused, lost, done, stopped or failed.",
        ),
        ("/e/a?t=-1", "“-1” as “t” is no number from 0 up."),
        (f"/e/a?t={'9' * 5000}", "is no number from 0 up."),
        ("/e/a?group=tag", "known are version or state."),
        ("/e/a?order=%3Cscript%3E", "“<script>” is not known as “order”; known are asc or desc."),
        (
            "/e/a/compare?" + "&".join(f"t={n}" for n in range(9)),
            "At most 8 trials are compared at a time.",
        ),
    ],
)
def test_an_address_that_asks_for_something_else_is_refused_in_a_sentence(
    readers: Reader, path: str, said: str
) -> None:
    answer = readers.get(path)
    page = Page(answer.text)
    assert (answer.status_code, said in page.text) == (400, True), page.text
    assert not [tag for tag, _ in page.elements if tag == "script"][1:]
    assert len(answer.text) < 10_000
