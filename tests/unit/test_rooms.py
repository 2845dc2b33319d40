"""The picture of imports between folders: what it shows of made-up code, and that the one in the
docs is that of the code.
"""

from __future__ import annotations

from graphlib import TopologicalSorter

import pytest

from docs.site import rooms
from docs.site.rooms import arrows, essential, in_page, mermaid, sources

CODE = {
    "regrow.__init__": "from regrow.flows.run import run\nimport regrow.search",
    "regrow.__main__": "from regrow.infra.log import ledger",
    "regrow.flows.__init__": "",
    "regrow.flows.run": "def run():\n    from regrow.infra.views.figures import draw\n    import ray, regrow.infra.log.ledger",
    "regrow.infra.__init__": '"""Nothing but rooms."""',
    "regrow.infra.log.__init__": "",
    "regrow.infra.log.ledger": "from regrow.search import planner",
    "regrow.infra.views.__init__": "from regrow.infra import log\nfrom regrow.infra.views.figures import draw",
    "regrow.infra.views.plain": "import regrow.infra.views.figures",
    "regrow.infra.views.figures.__init__": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from regrow.infra.views import plain",
    "regrow.search.__init__": "",
    "regrow.search.planner": "from regrow.search.space.domains import choice",
    "regrow.search.space.domains": "",
}
"""`regrow.search.space` has no `__init__`."""


def test_a_folder_with_an_init_is_a_room_at_whatever_depth_and_any_import_is_an_arrow() -> None:
    assert arrows(CODE) == {
        ("regrow", "regrow.flows"),
        ("regrow", "regrow.search"),
        ("regrow.flows", "regrow.infra.log"),
        ("regrow.flows", "regrow.infra.views.figures"),
        ("regrow.infra.log", "regrow.search"),
        ("regrow.infra.views", "regrow.infra.log"),
        ("regrow.infra.views", "regrow.infra.views.figures"),
        ("regrow.infra.views.figures", "regrow.infra.views"),
    }


def test_an_arrow_is_left_out_where_others_lead_from_room_to_room_but_none_of_a_circle() -> None:
    assert essential(arrows(CODE)) == [
        ("regrow", "regrow.flows"),
        ("regrow.flows", "regrow.infra.views.figures"),
        ("regrow.infra.log", "regrow.search"),
        ("regrow.infra.views", "regrow.infra.log"),
        ("regrow.infra.views", "regrow.infra.views.figures"),
        ("regrow.infra.views.figures", "regrow.infra.views"),
    ]
    assert essential({("a", "b"), ("b", "c"), ("c", "a"), ("a", "c"), ("c", "d"), ("a", "d")}) == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
        ("c", "a"),
        ("c", "d"),
    ]


def test_the_picture_frames_the_rooms_of_one_folder_and_thickens_circles() -> None:
    assert mermaid(arrows(CODE)).splitlines() == [
        "flowchart TD",
        '    regrow_flows["flows"]',
        '    subgraph infra_ ["infra/"]',
        '        regrow_infra_log["infra/log"]',
        '        regrow_infra_views["infra/views"]',
        '        regrow_infra_views_figures["infra/views/figures"]',
        "    end",
        '    regrow["regrow"]',
        '    regrow_search["search"]',
        "    regrow --> regrow_flows",
        "    regrow_flows --> regrow_infra_views_figures",
        "    regrow_infra_log --> regrow_search",
        "    regrow_infra_views --> regrow_infra_log",
        "    regrow_infra_views <==> regrow_infra_views_figures",
    ]


def test_the_picture_in_the_docs_is_that_of_the_code() -> None:
    page = rooms.PAGE.read_text()
    assert page == in_page(page, arrows(sources())), (
        "python docs/site/rooms.py writes it, docs/site/diagrams.py draws it"
    )


def test_no_rooms_import_in_a_circle() -> None:
    assert "==" not in mermaid(arrows(sources())), "thick arrows are those of a circle"


def test_no_files_import_in_a_circle() -> None:
    code = {name.removesuffix(".__init__"): source for name, source in sources().items()}
    TopologicalSorter(
        {name: {*rooms.imported(source, code)} - {name} for name, source in code.items()}
    ).prepare()


def test_a_page_without_a_place_for_the_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places"):
        in_page("# Architecture\n", arrows(CODE))
